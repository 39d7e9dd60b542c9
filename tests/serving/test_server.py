"""``glowtrain serve`` as a process: what it says, signals, tokens, TLS, and starts that fail."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner

import glowtrain as gt
from glowtrain.cli import application
from glowtrain.errors import ModelError
from glowtrain.runtime import HostManager
from glowtrain.serving.repository import Repository
from glowtrain.serving.server import Server, ServerOptions, listener_on
from glowtrain.serving.service import InferenceService
from tests.serving.certificates import certificate
from tests.serving.serving_networks import FakeHost, fake_service, running, scaled

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": os.environ["XDG_CACHE_HOME"], "PATH": os.environ["PATH"]}
BODY = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}).encode()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "double.onnx"
    gt.save(scaled(), path)
    return path


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "glowtrain", "serve", *map(str, arguments)]


class Process:
    """A server, and the events that it has told of."""

    def __init__(self, *arguments: object) -> None:
        ports = ("--port", 0, "--grpc-port", 0, "--log-format", "json", "--log-level", "debug")
        self.process = subprocess.Popen(command(*arguments, *ports), env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
        self.events: list[dict[str, Any]] = []
        self.listening = self.until("listening")

    def until(self, event: str) -> dict[str, Any]:
        """The next event of a kind."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.events.append(json.loads(line))
            if self.events[-1]["event"] == event:
                return self.events[-1]
        raise AssertionError(f"no {event}: {self.events}")

    def end(self) -> int:
        """Its exit status, after it was told to stop."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.stderr is not None
        self.events += [json.loads(line) for line in self.process.stderr]
        return self.process.wait(60)


@contextlib.contextmanager
def serving(*arguments: object) -> Iterator[Process]:
    made = Process(*arguments)
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.process.kill()
        made.process.wait()


def get(url: str, data: bytes | None = None, context: ssl.SSLContext | None = None, **headers: str) -> Any:
    request = urllib.request.Request(url, data, headers)
    with urllib.request.urlopen(request, timeout=30, context=context) as answer:
        return json.loads(answer.read())


def refused(*arguments: object) -> str:
    """The message of a server that does not start."""
    done = subprocess.run(command(*arguments), env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    return " ".join(done.stderr.split())


def test_a_model_is_served_until_sigterm(model: Path) -> None:
    with serving(model, "--max-batch", 4) as server:
        url = server.listening["http"]
        assert url.startswith("http://127.0.0.1:")
        assert server.until("ready")["models"] == ["double:1"]
        assert get(f"{url}/v2/health/ready") == {"ready": True}
        assert get(f"{url}/v2/models/double/infer", BODY)["outputs"][0]["data"] == [2, 4, 6, 8]
        with grpc.insecure_channel(server.listening["grpc"]) as channel:
            assert channel.unary_unary("/inference.GRPCInferenceService/ServerReady")(b"", timeout=30) == b"\x08\x01"
        assert server.end() == 0
        told = {(event["call"], event["status"]) for event in server.events if event["event"] == "request"}
        assert {("GET /v2/health/ready", 200), ("POST /v2/models/double/infer", 200), ("ServerReady", "OK")} <= told
        assert server.events[-1]["event"] == "stopping"


def test_it_listens_before_its_models_are_ready_and_says_so(tmp_path: Path) -> None:
    """The model is a pipe, which is read to its end before anything is loaded."""
    pipe = tmp_path / "slow.onnx"
    os.mkfifo(pipe)
    with serving(pipe) as server:
        url = server.listening["http"]
        assert get(f"{url}/v2/health/live") == {"live": True}
        with pytest.raises(urllib.error.HTTPError) as caught:
            get(f"{url}/v2/health/ready")
        assert (caught.value.code, json.loads(caught.value.read())) == (503, {"ready": False})
        with pytest.raises(urllib.error.HTTPError) as caught:
            get(f"{url}/v2/models/slow/infer", BODY)
        assert (caught.value.code, "'slow' is being loaded" in caught.value.read().decode()) == (503, True)
        gt.save(scaled(), tmp_path / "model.onnx")
        with pipe.open("wb") as file:
            file.write((tmp_path / "model.onnx").read_bytes())
        server.until("ready")
        assert get(f"{url}/v2/health/ready") == {"ready": True}
        assert server.end() == 0


def test_it_ends_while_a_model_is_read(tmp_path: Path) -> None:
    pipe = tmp_path / "never.onnx"
    os.mkfifo(pipe)
    with serving(pipe) as server:
        assert server.end() == 0


def test_it_ends_while_a_client_has_a_model_loaded(tmp_path: Path) -> None:
    """It does not wait for longer than it may until the model is there."""
    reading, read = threading.Event(), threading.Event()

    def slow() -> Any:
        reading.set()
        assert read.wait(60)
        return scaled()

    (tmp_path / "folder").mkdir()
    with HostManager() as host:
        repository = Repository(host, {"slow": slow}, tmp_path / "folder")
        server = Server(InferenceService(host, repository), repository, ServerOptions(port=0, grpc_port=0, drain=0.1))
        repository.load_all = lambda: None  # type: ignore[method-assign]
        serving = threading.Thread(target=server.run)
        serving.start()
        assert server.loaded.wait(60)
        loading = threading.Thread(target=_load, args=[server.port])
        loading.start()
        assert reading.wait(60)
        server.stop()
        serving.join(20)
        assert not serving.is_alive()
        read.set()
        loading.join(20)
        assert not loading.is_alive()


def _load(port: int) -> None:
    with contextlib.suppress(OSError, http.client.HTTPException):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("POST", "/v2/repository/models/slow/load")
        connection.getresponse()


def test_requests_are_answered_when_the_server_ends() -> None:
    host = FakeHost()
    answers: list[Any] = []
    with running(*fake_service(host)) as server:
        url = f"http://127.0.0.1:{server.port}/v2/models/slow/infer"
        body = BODY.replace(b"[1, 4]", b"[4, 1]")
        asking = threading.Thread(target=lambda: answers.append(get(url, body)))
        asking.start()
        assert host.came.acquire(timeout=30)
        server.stop()
        while not refuses(server.port):
            pass
        assert not answers
        host.asked[0].answer()
        asking.join(30)
    assert answers[0]["outputs"][0]["data"] == [1, 2, 3, 4]


def test_a_model_that_fails_to_load_while_the_server_ends_takes_no_time_from_requests() -> None:
    host, failing = FakeHost(), threading.Event()
    service, repository = fake_service(host)

    def fails() -> None:
        assert failing.wait(60)
        raise ModelError("no model")

    repository.load_all = fails  # type: ignore[method-assign]
    server = Server(service, repository, ServerOptions(port=0, grpc_port=0, drain=20.0))
    with ThreadPoolExecutor() as pool:
        serving = pool.submit(server.run)
        assert server.listening.wait(60)
        url = f"http://127.0.0.1:{server.port}/v2/models/slow/infer"
        answer = pool.submit(get, url, BODY.replace(b"[1, 4]", b"[4, 1]"))
        assert host.came.acquire(timeout=30)
        server.stop()
        while not refuses(server.port):
            pass
        failing.set()
        for thread in threading.enumerate():
            if thread.name == "serving: loading":
                thread.join(30)
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), server._loop).result(30)  # what it told the loop is done
        assert not server._http.force_exit
        host.asked[0].answer()
        assert answer.result(30)["outputs"][0]["data"] == [1, 2, 3, 4]
        assert isinstance(serving.exception(30), ModelError)


def refuses(port: int) -> bool:
    """Whether nobody listens any more."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=30).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:  # it closed while this connection waited to be accepted
        pass
    return False


def test_a_request_that_is_not_answered_in_time_does_not_keep_the_server() -> None:
    host = FakeHost()
    with running(*fake_service(host), drain=0.2) as server:
        url = f"http://127.0.0.1:{server.port}/v2/models/slow/infer"

        def ask() -> None:
            with pytest.raises(OSError):
                get(url, BODY.replace(b"[1, 4]", b"[4, 1]"))

        asking = threading.Thread(target=ask)
        asking.start()
        assert host.came.acquire(timeout=30)
    asking.join(30)
    assert not asking.is_alive()


def test_tokens_of_a_file(model: Path, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("\nfirst\nsecond\n")
    with serving(model, "--token-file", tmp_path / "tokens") as server:
        url = server.listening["http"]
        server.until("ready")
        assert get(f"{url}/v2/health/ready") == {"ready": True}
        assert get(f"{url}/v2", Authorization="Bearer second")["name"] == "glowtrain"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            get(f"{url}/v2")


def test_tls(model: Path, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    with serving(model, "--tls-cert", cert, "--tls-key", key) as server:
        url = server.listening["http"]
        assert url.startswith("https://")
        server.until("ready")
        trusting = ssl.create_default_context(cafile=cert)
        assert get(f"{url}/v2/health/ready", context=trusting) == {"ready": True}
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            get(f"{url}/v2/health/ready")
        credentials = grpc.ssl_channel_credentials(cert.read_bytes())
        with grpc.secure_channel(server.listening["grpc"], credentials) as channel:
            assert channel.unary_unary("/inference.GRPCInferenceService/ServerLive")(b"", timeout=30) == b"\x08\x01"
        assert server.end() == 0


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("127.1.2.3", True), ("::1", True), ("localhost", True), ("0.0.0.0", False)],
)
def test_which_addresses_only_this_machine_reaches(host: str, local: bool) -> None:
    """Elsewhere there is a warning where no token is asked for."""
    assert ServerOptions(host=host).is_local == local


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_answers_are_sent_without_delay(host: str) -> None:
    """A small body behind its headers does not wait for the client to acknowledge them."""
    with listener_on(host, 0) as listener, socket.create_connection(listener.getsockname()[:2]):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_addresses_are_told_as_they_are_asked() -> None:
    assert ServerOptions(host="127.0.0.1").address(8000) == "127.0.0.1:8000"
    assert ServerOptions(host="::1").address(8000) == "[::1]:8000"


def test_options_that_cannot_be_meant(model: Path, tmp_path: Path) -> None:
    def told(*arguments: object) -> str:
        result = CliRunner().invoke(application("serve"), ["serve", *map(str, arguments)])
        assert result.exit_code == 1
        return result.stderr

    empty = tmp_path / "empty"
    empty.touch()
    assert "nothing to serve: give ONNX files" in told()
    assert "several models are called double" in told(model, model)
    assert "no token is in it" in told(model, "--token-file", empty)
    (tmp_path / "tokens").write_bytes("schl\u00fcssel\n".encode())
    assert "a token is of letters, digits and signs of ASCII" in told(model, "--token-file", tmp_path / "tokens")
    assert "TLS needs both" in told(model, "--tls-cert", empty)
    assert "no certificate and its key" in told(model, "--tls-cert", empty, "--tls-key", empty)
    missing = tmp_path / "missing.pem"
    assert "missing.pem: it cannot be read: No such file" in told(model, "--tls-cert", missing, "--tls-key", empty)
    assert "missing.pem: it cannot be read: No such file" in told(
        model, "--tls-cert", certificate(tmp_path)[0], "--tls-key", missing
    )
    cert, key = certificate(tmp_path, password=b"secret")
    assert "the key of the certificate is encrypted" in told(model, "--tls-cert", cert, "--tls-key", key)
    assert "--drain is a number of seconds from 0, not inf" in told(model, "--drain", "inf")
    assert "is not UTF-8, and no client can say it" in told(os.fsdecode(b"no-\xff.onnx"))
    assert "--max-request '0MB'" in told(model, "--max-request", "0MB")
    assert "--log-format xml: choose from text, json" in told(model, "--log-format", "xml")


def test_models_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"nothing")
    assert "nowhere.onnx: no such file" in refused(tmp_path / "nowhere.onnx", "--port", 0, "--grpc-port", 0)
    assert "broken.onnx" in refused(tmp_path / "broken.onnx", "--port", 0, "--grpc-port", 0)
    assert "no such folder of models" in refused("--repository", tmp_path / "no", "--port", 0, "--grpc-port", 0)


@pytest.mark.parametrize("option", ["--port", "--grpc-port"])
def test_a_port_that_is_taken(model: Path, option: str) -> None:
    other = {"--port": "--grpc-port", "--grpc-port": "--port"}[option]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "cannot listen on 127.0.0.1" in refused(model, option, taken.getsockname()[1], other, 0)
