"""KServe's client, as it is, against a server: run by its own Python, as ``kserve_client.py HTTP_PORT GRPC_PORT``.

Prints as JSON what it saw; test_kserve.py says what that should be.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import grpc
import httpx
import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.protocol.infer_type import RequestedOutput

X = np.arange(8, dtype=np.float32).reshape(2, 4)


def request(name: str, array: Any, datatype: str, *, binary: bool, outputs: list[str] | None = None) -> InferRequest:
    """A request for a model whose input is called x."""
    given = InferInput("x", list(array.shape), datatype)
    given.set_data_from_numpy(array, binary_data=binary)
    parameters = {"binary_data_output": binary}
    wanted = [RequestedOutput(output) for output in outputs] if outputs else None
    return InferRequest(name, [given], request_id="mine", parameters=parameters, request_outputs=wanted)


def told(answer: Any) -> dict[str, Any]:
    """An answer for JSON."""
    outputs = {output.name: output.as_numpy().tolist() for output in answer.outputs}
    return {"model": answer.model_name, "id": answer.id, "outputs": outputs}


async def over_http(port: int) -> dict[str, Any]:
    """What is seen over HTTP."""
    client, url = InferenceRESTClient(RESTConfig(protocol="v2")), f"http://127.0.0.1:{port}"

    async def ask(asked: InferRequest) -> dict[str, Any]:
        return told(await client.infer(url, asked, model_name=asked.model_name))

    found = {
        "ready": await client.is_server_ready(url),
        "live": await client.is_server_live(url),
        "model": await client.is_model_ready(url, "double"),
        "json": await ask(request("double", X, "FP32", binary=False)),
        "bytes": await ask(request("double", X, "FP32", binary=True)),
        "some": await ask(request("double", X, "FP32", binary=True, outputs=["z"])),
        "half": await ask(request("half", X.astype(np.float16), "FP16", binary=True)),
    }
    try:
        await ask(request("double", X.astype(np.int8), "INT8", binary=False))
    except httpx.HTTPStatusError as error:
        found["refused"] = [error.response.status_code, str(error)]
    return found


async def over_grpc(port: int) -> dict[str, Any]:
    """What is seen over gRPC."""
    async with InferenceGRPCClient(f"127.0.0.1:{port}") as client:
        found = {
            "ready": await client.is_server_ready(),
            "live": await client.is_server_live(),
            "model": await client.is_model_ready("double"),
            "bytes": told(await client.infer(request("double", X, "FP32", binary=True))),
            "some": told(await client.infer(request("double", X, "FP32", binary=True, outputs=["z"]))),
            "half": told(await client.infer(request("half", X.astype(np.float16), "FP16", binary=True))),
        }
        try:
            await client.infer(request("nothing", X, "FP32", binary=True))
        except grpc.RpcError as error:
            found["refused"] = [error.code().name, error.details()]
    return found


async def both(http_port: int, grpc_port: int) -> None:
    """All of it, as JSON."""
    found = {"http": await over_http(http_port), "grpc": await over_grpc(grpc_port)}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(both(*map(int, sys.argv[1:])))
