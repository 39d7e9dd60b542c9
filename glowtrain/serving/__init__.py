"""Networks behind the Open Inference Protocol v2, over HTTP and gRPC. Needs the extra ``serve``.

::

    client ─HTTP, gRPC→ http/, rpc/ ─InferRequest→ InferenceService ─run→ a host of networks ─→ answer

``tensors`` has the protocol's element types and their encodings, which both ways in share; ``http`` and ``rpc`` are the
two; ``service`` answers what they ask, from the host (``host``: what serving needs of one) and the ``repository`` of
models; ``server`` opens the ports and closes them in good order.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from glowtrain.errors import check_extra

if TYPE_CHECKING:
    from glowtrain.serving import access as access
    from glowtrain.serving import logs as logs
    from glowtrain.serving import repository as repository
    from glowtrain.serving import server as server
    from glowtrain.serving import service as service

for _name, _package in (
    ("Starlette", "starlette"),
    ("uvicorn", "uvicorn"),
    ("httptools", "httptools"),
    ("gRPC", "grpc"),
    ("gRPC's health checking", "grpc_health"),
):
    check_extra("glowtrain.serving", _name, _package, "serve")

_LATER = ("access", "logs", "repository", "server", "service")


def __getattr__(name: str) -> ModuleType:
    """What the command line serves with, imported when it does."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
