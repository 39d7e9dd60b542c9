"""What ``benchmarks/serving_beside.py`` compares with: ONNX Runtime behind FastAPI, as their users write it.

    python benchmarks/serving_fastapi.py MODEL.onnx PORT

Needs ``pip install fastapi 'uvicorn[standard]' onnxruntime``: uvicorn with httptools and uvloop.
"""

from __future__ import annotations

import sys

import numpy as np
import onnxruntime
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options)
app = FastAPI()


class Tensor(BaseModel):
    """An input of the protocol."""

    name: str
    datatype: str
    shape: list[int]
    data: list[float]


class Request(BaseModel):
    """A request of the protocol."""

    inputs: list[Tensor]


@app.post("/v2/models/digits/infer")
async def infer(request: Request) -> dict[str, object]:
    """Runs in the event loop: a thread for each request would take longer than the model does."""
    given = {each.name: np.array(each.data, np.float32).reshape(each.shape) for each in request.inputs}
    (scores,) = session.run(None, given)
    output = {"name": "scores", "datatype": "FP32", "shape": scores.shape, "data": scores.ravel().tolist()}
    return {"model_name": "digits", "outputs": [output]}


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[2]), log_level="warning")
