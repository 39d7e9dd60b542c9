"""The options of ``glowtrain serve``, as annotated types."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from glowtrain.cli.arguments import options
from glowtrain.cli.arguments.completion import names

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
MaxBatch = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Examples in the largest batch (8).", rich_help_panel=BATCHES)
]
MaxDelay = Annotated[
    float,
    typer.Option(
        min=0.0,
        metavar="MS",
        help="Milliseconds that a request waits for others to share a batch with.",
        rich_help_panel=BATCHES,
    ),
]
Queue = Annotated[
    int, typer.Option(min=1, metavar="N", help="Requests of a model that may wait.", rich_help_panel=BATCHES)
]
Devices = Annotated[
    int,
    typer.Option(min=1, metavar="N", help="Virtual devices that share the cores; each gets every model."),
]
Host = Annotated[str, typer.Option(metavar="H", help="The address to listen on.", rich_help_panel=NETWORK)]
Port = Annotated[
    int, typer.Option(min=0, max=65535, metavar="P", help="For HTTP; 0 is a free one.", rich_help_panel=NETWORK)
]
GrpcPort = Annotated[
    int, typer.Option(min=0, max=65535, metavar="P", help="For gRPC; 0 is a free one.", rich_help_panel=NETWORK)
]
TokenFile = Annotated[
    Path | None,
    typer.Option(metavar="F", help="A file of tokens, one a line: requests must carry one.", rich_help_panel=NETWORK),
]
Certificate = Annotated[
    Path | None, typer.Option("--tls-cert", metavar="F", help="A certificate, for TLS.", rich_help_panel=NETWORK)
]
Key = Annotated[Path | None, typer.Option("--tls-key", metavar="F", help="Its key.", rich_help_panel=NETWORK)]
MaxRequest = Annotated[
    str, typer.Option(metavar="M", help="The most bytes of a request, such as 64MB.", rich_help_panel=NETWORK)
]
MaxConnections = Annotated[
    int,
    typer.Option(
        min=1, metavar="N", help="The most requests at once; probes do not count.",
        rich_help_panel=NETWORK,
    ),
]  # fmt: skip
RequestTimeout = Annotated[
    float,
    typer.Option(
        min=0.001,
        metavar="S",
        help="Seconds that a request has to arrive in, and its answer to be taken.",
        rich_help_panel=NETWORK,
    ),
]
Drain = Annotated[
    float,
    typer.Option(
        min=0.0, metavar="S", help="Seconds that requests have to be answered in at the end.", rich_help_panel=NETWORK
    ),
]
LogFormat = Annotated[
    str,
    typer.Option(
        metavar="F", help="text or json, a line an event.", autocompletion=names(FORMATS), rich_help_panel=LOG
    ),
]
LogLevel = Annotated[
    str,
    typer.Option(
        metavar="L", help=f"{', '.join(LEVELS)}; debug has a line for each request.", autocompletion=names(LEVELS),
        rich_help_panel=LOG,
    ),
]  # fmt: skip
