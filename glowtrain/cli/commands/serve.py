"""``glowtrain serve``: models behind the Open Inference Protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

import glowtrain
from glowtrain import models as built_in
from glowtrain.cli.arguments import options
from glowtrain.cli.arguments.models import FileOptions
from glowtrain.cli.terminal.console import command
from glowtrain.cli.terminal.records import From, Given
from glowtrain.errors import InputError
from glowtrain.memory.byte_size import parse_bytes
from glowtrain.memory.resources import Resources
from glowtrain.names import is_text
from glowtrain.runtime import HostManager, cpu_devices
from glowtrain.settings import setting

BATCHES, NETWORK, LOG = "Batches", "Network", "Log"
FORMATS, LEVELS = ("text", "json"), ("debug", "info", "warning", "error")
Models = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL",
        help="ONNX files; a model's name is its file's without the ending.",
        autocompletion=options.MODELS,
        show_default=False,
    ),
]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--repository",
        metavar="DIR",
        help="A folder of models, MODEL/VERSION/model.onnx, that clients may load and unload.",
    ),
]


@dataclass(frozen=True)
class BatchOptions:
    """Where requests are run, and how many together."""

    devices: int = setting(1, "Virtual devices that share the cores; each gets every model.", metavar="N", least=1)
    max_batch: int | None = setting(None, "Examples in the largest batch (8).", metavar="N", least=1, panel=BATCHES)
    max_delay: float = setting(
        0.0, "Milliseconds that a request waits for others to share a batch with.", metavar="MS", least=0.0,
        panel=BATCHES,
    )  # fmt: skip
    queue: int = setting(256, "Requests of a model that may wait.", metavar="N", least=1, panel=BATCHES)


@dataclass(frozen=True)
class NetworkOptions:
    """How the server is reached, and by whom."""

    host: str = setting("127.0.0.1", "The address to listen on.", metavar="H", panel=NETWORK)
    port: int = setting(8000, "For HTTP; 0 is a free one.", metavar="P", least=0, most=65535, panel=NETWORK)
    grpc_port: int = setting(8001, "For gRPC; 0 is a free one.", metavar="P", least=0, most=65535, panel=NETWORK)
    token_file: Path | None = setting(
        None, "A file of tokens, one a line: requests must carry one.", metavar="F", panel=NETWORK
    )
    tls_cert: Path | None = setting(None, "A certificate, for TLS.", metavar="F", panel=NETWORK)
    tls_key: Path | None = setting(None, "Its key.", metavar="F", panel=NETWORK)
    max_request: str = setting("64MB", "The most bytes of a request, such as 64MB.", metavar="M", panel=NETWORK)
    max_connections: int = setting(
        1000, "The most requests at once; probes do not count.", metavar="N", least=1, panel=NETWORK
    )
    request_timeout: float = setting(
        60.0, "Seconds that a request has to arrive in, and its answer to be taken.", metavar="S", least=0.001,
        panel=NETWORK,
    )  # fmt: skip
    drain: float = setting(
        30.0, "Seconds that requests have to be answered in at the end.", metavar="S", least=0.0, panel=NETWORK
    )

    def server_options(self) -> Any:
        """They as the server has them, with what files hold. Raises :class:`InputError`."""
        serving = glowtrain.serving
        return serving.server.ServerOptions(
            self.host, self.port, self.grpc_port, serving.access.Access.from_file(self.token_file), self.tls_cert,
            self.tls_key, parse_bytes(self.max_request, "--max-request"), self.request_timeout, self.max_connections,
            self.drain,
        )  # fmt: skip


@dataclass(frozen=True)
class LogOptions:
    """What is written of requests."""

    log_format: str = setting("text", "text or json, a line an event.", metavar="F", choices=FORMATS, panel=LOG)
    log_level: str = setting(
        "info", f"{', '.join(LEVELS)}; debug has a line for each request.", metavar="L", choices=LEVELS, panel=LOG
    )

    def check(self) -> None:
        """Raise :class:`InputError` for another format or level."""
        for option, value, choices in ("format", self.log_format, FORMATS), ("level", self.log_level, LEVELS):
            if value not in choices:
                raise InputError(f"--log-{option} {value}: choose from {', '.join(choices)}")


@command
def serve(
    models: Models = [],  # noqa: B006  typer's way to say "none given"
    repository_path: Folder = None,
    *,
    file: FileOptions,
    settings: Annotated[Given, From(Resources, only=("threads",))],
    batches: BatchOptions,
    network: NetworkOptions,
    log: LogOptions,
) -> None:
    """Serve models by the Open Inference Protocol v2, over HTTP and gRPC, until SIGINT or SIGTERM.

    Requests that come at the same time share batches. The server says that it is ready (GET /v2/health/ready) when all
    models are compiled for every size of a batch; the metrics for Prometheus are at /metrics.

    Examples:

    glowtrain serve trained.onnx --max-batch 32 --max-delay 2

    glowtrain serve --repository models --port 9000 --grpc-port 9001
    """
    log.check()
    if not models and repository_path is None:
        raise InputError("nothing to serve: give ONNX files, or a folder of models with --repository")
    file.import_modules()
    serving = glowtrain.serving  # only now, as it needs an extra
    chosen = network.server_options()
    chosen.check()
    named = {name: partial(file.open, path, training=False) for name, path in _named(models)}
    how = serving.repository.ModelOptions(
        max_batch=batches.max_batch, max_delay=batches.max_delay, queue=batches.queue, replicas=batches.devices
    )
    serving.logs.set_up(log.log_format, log.log_level)
    manager = HostManager(cpu_devices(batches.devices, **settings))
    try:
        source = serving.repository.Repository(manager, named, repository_path, how)
        serving.server.Server(serving.service.InferenceService(manager, source), source, chosen, own_process=True).run()
    finally:
        manager.close(timeout=network.drain)


def _named(models: Sequence[str]) -> list[tuple[str, str]]:
    """Models by the names that they are asked for by. Raises :class:`InputError` for two of one name."""
    found = [(model if model in built_in.MODELS else Path(model).stem, model) for model in models]
    known = [name for name, _ in found]
    twice = sorted({name for name in known if known.count(name) > 1})
    if strange := [name for name in known if not is_text(name)]:
        raise InputError(f"the model {strange[0]!r}: its file's name is not UTF-8, and no client can say it; rename it")
    if twice:
        raise InputError(f"several models are called {', '.join(twice)}: a model's name is its file's; rename one")
    return found
