"""The server: both ports on one event loop, models that are loaded while it listens, and an end in good order."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import signal
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import uvicorn

from glowtrain.errors import InputError
from glowtrain.runtime.checks import seconds
from glowtrain.serving.access import EVERYBODY, Access
from glowtrain.serving.admission import Admission
from glowtrain.serving.http.app import PATIENCE, application
from glowtrain.serving.http.connections import LINGER, SPARE, guarded
from glowtrain.serving.http.large_json import JsonMessages
from glowtrain.serving.logs import LOGGER
from glowtrain.serving.repository import Repository
from glowtrain.serving.rpc.service import ReadTimeout, handlers
from glowtrain.serving.service import InferenceService

MAX_REQUEST = 64 << 20
"""Bytes of a request, unless it is said."""
DRAIN = 30.0
"""Seconds that requests have to be answered in when the server ends, unless it is said."""
CONNECTIONS = 1000
"""Requests at once, unless it is said."""
TOGETHER = 8
"""Requests of the largest size whose bytes may be there at once."""
RESERVED, DESCRIPTORS = 128, 10240
"""Descriptors of files that are no connections, and of all where the system has no limit: macOS has this one then."""
AGE = 10
"""How many times as long as a request may take to arrive a connection of gRPC lives: then its client makes another."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class ServerOptions:
    """Where the server listens (port 0: a free one; gRPC port ``None``: no gRPC), and what it takes.

    ``certificate`` and ``key`` are files for TLS; ``limit`` is the most bytes of a request; ``patience`` the seconds
    that one has to arrive in, and its client to take the answer; ``connections`` the requests at once; ``drain`` the
    seconds that they have to be answered in when the server ends.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    grpc_port: int | None = 8001
    access: Access = EVERYBODY
    certificate: Path | None = None
    key: Path | None = None
    limit: int = MAX_REQUEST
    patience: float = PATIENCE
    connections: int = CONNECTIONS
    drain: float = DRAIN

    @property
    def scheme(self) -> str:
        return "https" if self.certificate else "http"

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

    def address(self, port: int) -> str:
        """``127.0.0.1:8000``, ``[::1]:8000``"""
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"

    def check(self) -> None:
        """Raise :class:`InputError` for a certificate without its key, a pair that cannot be read, and no time."""
        seconds("--drain", self.drain)
        if (self.certificate is None) != (self.key is None):
            raise InputError("TLS needs both a certificate and its key: --tls-cert and --tls-key")
        if self.certificate and self.key:
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key, _no_password)
            except ssl.SSLError as error:
                raise InputError(f"{self.certificate}, {self.key}: no certificate and its key: {error}") from None
            except OSError as error:  # it has no name
                path = self.key if os.access(self.certificate, os.R_OK) else self.certificate
                raise InputError(f"{path}: it cannot be read: {error.strerror}") from None


def _no_password() -> str:
    """In place of a question on the terminal, which nobody answers."""
    raise InputError("the key of the certificate is encrypted; give one that is not, which only the server can read")


class Server:
    """Serves a repository's models until it is told to stop."""

    def __init__(
        self, service: InferenceService, repository: Repository, options: ServerOptions, *, own_process: bool = False
    ) -> None:
        """``own_process``: whether nothing else is in it, so that the garbage collector may be told what stays."""
        options.check()
        self.options = options
        self.port = self.grpc_port = 0
        """Those that it listens on, once it does."""
        self.listening, self.loaded = threading.Event(), threading.Event()
        self.service = service
        self._own_process = own_process
        self._repository = repository
        self.admission = Admission(options.connections, TOGETHER * options.limit)
        self._read_timeout = ReadTimeout(options.patience)
        descriptors = max(2, _descriptors(own_process) - RESERVED)
        self.http_connections = min(options.connections + SPARE, descriptors // 2)
        """Over HTTP, at most: with a descriptor for each, health is answered whatever others do."""
        self.grpc_connections = descriptors - self.http_connections
        self._failure: BaseException | None = None

    def run(self) -> None:
        """Serve until SIGINT or SIGTERM; a second one ends it at once.

        Raises ``OSError`` for a port that is taken, and what :meth:`Repository.load_all` does; nothing is left open.
        """
        asyncio.run(self._run())

    def stop(self) -> None:
        """Begin the end, from any thread; nothing where it has ended."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._end)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        with contextlib.ExitStack() as stack:
            listener = stack.enter_context(listener_on(self.options.host, self.options.port))
            self.port = listener.getsockname()[1]
            json = JsonMessages()
            stack.callback(json.close)
            self._http = self._http_server(json)
            self._grpc = await self._grpc_server()
            stack.enter_context(self._signals())
            await self._serve(listener)
        if self._failure is not None:
            raise self._failure

    async def _serve(self, listener: socket.socket) -> None:
        over_http = asyncio.create_task(self._http.serve([listener]))
        await self._grpc.start()
        self._listens()
        threading.Thread(target=self._load, name="serving: loading", daemon=True).start()
        await asyncio.wait((over_http, asyncio.create_task(self._stopping.wait())), return_when=asyncio.FIRST_COMPLETED)
        self.service.close()
        self._http.should_exit = True
        self._read_timeout.shorten(min(LINGER, self.options.drain))
        await asyncio.gather(over_http, self._grpc.stop(self.options.drain))

    def _listens(self) -> None:
        options = self.options
        facts = {"http": f"{options.scheme}://{options.address(self.port)}"}
        if options.grpc_port is not None:
            facts["grpc"] = options.address(self.grpc_port)
        LOGGER.info("listening", extra={"fields": facts})
        if not options.is_local and not options.access.tokens:
            LOGGER.warning("anybody who reaches this address can ask: there is no token", extra={"fields": facts})
        self.listening.set()

    def _load(self) -> None:
        """Load the models, in a thread of its own: the ports answer meanwhile that nothing is ready."""
        began = time.perf_counter()
        try:
            self._repository.load_all()
        except BaseException as error:  # noqa: BLE001  whatever it is, the server's own thread raises it
            self._failure = error
            with contextlib.suppress(RuntimeError):  # not as a second signal, if there was one: requests are drained
                self._loop.call_soon_threadsafe(self._stopping.set)
            return
        if self._own_process:  # no collection looks at what is here now: with all models that takes 40 ms
            gc.collect()
            gc.freeze()
        self.loaded.set()
        models = [f"{state.name}:{state.version}" for state in self.service.index(ready=True)]
        LOGGER.info("ready", extra={"fields": {"models": models, "seconds": round(time.perf_counter() - began, 3)}})

    def _end(self) -> None:
        if self._stopping.is_set():
            self._http.force_exit = True
            self._loop.create_task(self._grpc.stop(0))
        else:
            LOGGER.info("stopping", extra={"fields": {"drain": self.options.drain}})
            self._stopping.set()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Signals end the server, if it runs in the thread that they come to."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        for each in _SIGNALS:
            self._loop.add_signal_handler(each, self._end)
        try:
            yield
        finally:
            for each in _SIGNALS:
                self._loop.remove_signal_handler(each)

    def _http_server(self, json: JsonMessages) -> uvicorn.Server:
        options = self.options
        config = uvicorn.Config(
            application(self.service, options.access, options.limit, options.patience, json, self.admission),
            log_config=None, access_log=False, proxy_headers=False, lifespan="off", server_header=False, ws="none",
            http=guarded(options.patience, self.http_connections, options.drain),
            ssl_certfile=options.certificate, ssl_keyfile=options.key,
            timeout_graceful_shutdown=max(1, round(options.drain)),
        )  # fmt: skip
        return _HttpServer(config)

    async def _grpc_server(self) -> grpc.aio.Server:
        options = self.options
        patience = max(1, round(1000 * options.patience))
        limits = {
            "max_receive_message_length": options.limit,
            "max_send_message_length": -1,
            "so_reuseport": 0,
            "server_handshake_timeout_ms": patience,
            "max_allowed_incoming_connections": self.grpc_connections,
            "max_connection_idle_ms": patience,
            "max_connection_age_ms": AGE * patience,  # an answer that nobody reads ends no sooner
            "max_connection_age_grace_ms": patience,
        }
        server = grpc.aio.server(options=[(f"grpc.{name}", value) for name, value in limits.items()])
        server.add_generic_rpc_handlers(handlers(self.service, options.access, self.admission, self._read_timeout))
        if options.grpc_port is not None:
            self.grpc_port = _bound(server, options.address(options.grpc_port), options)
        return server


def _descriptors(own_process: bool) -> int:
    """How many files may be open at once: as many as the system lets this process have, if it may change that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if own_process:
        hard = DESCRIPTORS if hard == resource.RLIM_INFINITY else hard
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            return hard
    return DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


class _HttpServer(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are for the whole server."""
        yield


def listener_on(host: str, port: int) -> socket.socket:
    """What accepts connections. They have its options: an answer's body does not wait until its headers have been
    acknowledged, which clients do 40 ms later."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise InputError(f"cannot listen on {host}, port {port}: {error.strerror or error}") from None
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _bound(server: grpc.aio.Server, address: str, options: ServerOptions) -> int:
    """The port that gRPC listens on. Raises :class:`InputError` for an address that it cannot have."""
    try:
        if options.certificate and options.key:
            pair = (options.key.read_bytes(), options.certificate.read_bytes())
            return int(server.add_secure_port(address, grpc.ssl_server_credentials([pair])))
        return int(server.add_insecure_port(address))
    except RuntimeError as error:
        raise InputError(f"cannot listen on {address} for gRPC: {error}") from None
