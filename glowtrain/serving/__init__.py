"""Networks behind the Open Inference Protocol v2, over HTTP and gRPC. Needs the extra ``serve``.

::

    client ─HTTP, gRPC→ http/, rpc/ ─InferRequest→ InferenceService ─run→ a host of networks ─→ answer

``tensors`` has the protocol's element types and their encodings, which both ways in share; ``http`` and ``rpc`` are the
two; ``service`` answers what they ask, from the host (``host``: what serving needs of one) and the ``repository`` of
models; ``server`` opens the ports and closes them in good order.
"""

from glowtrain.errors import check_extra

for _name, _package in (
    ("Starlette", "starlette"),
    ("uvicorn", "uvicorn"),
    ("httptools", "httptools"),
    ("gRPC", "grpc"),
    ("gRPC's health checking", "grpc_health"),
):
    check_extra("glowtrain.serving", _name, _package, "serve")
