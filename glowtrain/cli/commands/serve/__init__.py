"""``glowtrain serve``: models behind the Open Inference Protocol."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import glowtrain
from glowtrain import models as built_in
from glowtrain.cli.arguments.models import FileOptions
from glowtrain.cli.commands.serve import arguments as given
from glowtrain.cli.terminal.console import command
from glowtrain.cli.terminal.records import From, Given
from glowtrain.errors import InputError
from glowtrain.memory.byte_size import parse_bytes
from glowtrain.memory.resources import Resources
from glowtrain.names import is_text
from glowtrain.runtime import HostManager, cpu_devices


@command
def serve(
    models: given.Models = [],  # noqa: B006  typer's way to say "none given"
    repository_path: given.Folder = None,
    *,
    file: FileOptions,
    settings: Annotated[Given, From(Resources, only=("threads",))],
    devices: given.Devices = 1,
    max_batch: given.MaxBatch = None,
    max_delay: given.MaxDelay = 0.0,
    queue: given.Queue = 256,
    host: given.Host = "127.0.0.1",
    port: given.Port = 8000,
    grpc_port: given.GrpcPort = 8001,
    token_file: given.TokenFile = None,
    tls_cert: given.Certificate = None,
    tls_key: given.Key = None,
    max_request: given.MaxRequest = "64MB",
    max_connections: given.MaxConnections = 1000,
    request_timeout: given.RequestTimeout = 60.0,
    drain: given.Drain = 30.0,
    log_format: given.LogFormat = "text",
    log_level: given.LogLevel = "info",
) -> None:
    """Serve models by the Open Inference Protocol v2, over HTTP and gRPC, until SIGINT or SIGTERM.

    Requests that come at the same time share batches. The server says that it is ready (GET /v2/health/ready) when all
    models are compiled for every size of a batch; the metrics for Prometheus are at /metrics.

    Examples:

    glowtrain serve trained.onnx --max-batch 32 --max-delay 2

    glowtrain serve --repository models --port 9000 --grpc-port 9001
    """
    _check_choice("--log-format", log_format, given.FORMATS)
    _check_choice("--log-level", log_level, given.LEVELS)
    if not models and repository_path is None:
        raise InputError("nothing to serve: give ONNX files, or a folder of models with --repository")
    file.import_modules()
    serving = glowtrain.serving  # only now, as it needs an extra
    chosen = serving.server.ServerOptions(
        host, port, grpc_port, serving.access.Access.from_file(token_file), tls_cert, tls_key,
        parse_bytes(max_request, "--max-request"), request_timeout, max_connections, drain,
    )  # fmt: skip
    chosen.check()
    named = {name: partial(file.open, path, training=False) for name, path in _named(models)}
    how = serving.repository.ModelOptions(max_batch=max_batch, max_delay=max_delay, queue=queue, replicas=devices)
    serving.logs.set_up(log_format, log_level)
    manager = HostManager(cpu_devices(devices, **settings))
    try:
        source = serving.repository.Repository(manager, named, repository_path, how)
        serving.server.Server(serving.service.InferenceService(manager, source), source, chosen, own_process=True).run()
    finally:
        manager.close(timeout=drain)


def _check_choice(option: str, given: str, choices: Sequence[str]) -> None:
    if given not in choices:
        raise InputError(f"{option} {given}: choose from {', '.join(choices)}")


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
