"""A page that trains the model in a browser's tab: one file, for which no server and no network are needed.

It holds the module, the data set, and the model as ONNX, in which the page replaces the weights.
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from glowtrain import data
from glowtrain.backends.target import Target
from glowtrain.bundles.contents import PREDICT, STEP
from glowtrain.bundles.faces.templates import as_json, filled, template_text
from glowtrain.bundles.faces.web.javascript import script
from glowtrain.bundles.libraries.wasm import linked
from glowtrain.bundles.module import BundleModule
from glowtrain.bundles.signature import BundleFunction, BundleTensor
from glowtrain.errors import BundleError
from glowtrain.onnx_io import save
from glowtrain.onnx_io.write.offsets import initializer_offsets
from glowtrain.types import Array

SHADES = 16
"""Of a digit's pixels, above white."""
CLASSES = 10
RATE = "lr"
"""The hyperparameter that the page lets its reader choose."""


def page(module: BundleModule) -> str:
    """The text of ``index.html``.

    Raises :class:`BundleError` unless the module trains, holds its weights, and takes digits.
    """
    names = _names(module)
    wasm = linked(module.code)
    return filled(
        "web/page.html",
        module.name,
        kilobytes=f"{(len(wasm) - len(module.memory.image)) / 1000:.0f}",  # without the weights
        style=template_text("web/page.css"),
        script=template_text("web/page.js"),
        worker=f"{script(module)}\n{template_text('web/page_worker.js')}",
        data=as_json(_data(module, wasm, names)),
    )


def check_target(target: Target) -> None:
    """Raise :class:`BundleError` for processors that no page runs."""
    if target.architecture != "wasm":
        raise BundleError(f"a page runs WebAssembly: choose the target wasm32, not {target.name}")


def _data(module: BundleModule, wasm: bytes, names: dict[str, Any]) -> dict[str, Any]:
    model, digits = save(module.contents.graphs[PREDICT]).SerializeToString(), data.digits()
    trained = {slot.name for slot in module.memory.slots if slot.role != "state"}
    return {
        "name": module.name,
        "names": names,
        "rate": module.hyper.get(RATE),
        "wasm": _text(wasm),
        "onnx": _text(model),
        "offsets": {name: span[0] for name, span in initializer_offsets(model).items() if name in trained},
        "train": _digits(digits.train),
        "valid": _digits(digits.valid),
    }


def _digits(part: Any) -> dict[str, str]:
    images: Array = np.rint(part["x"] * SHADES).astype(np.uint8)
    return {"images": _text(images.tobytes()), "labels": _text(part["y"].astype(np.uint8).tobytes())}


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _names(module: BundleModule) -> dict[str, Any]:
    """The batch and the names of image, labels, scores and learning rate. Raises :class:`BundleError`."""
    functions = {function.name: function for function in module.functions}
    if STEP not in functions:
        raise BundleError("a page trains its model: give a loss (--train)")
    if module.memory.unknown:
        raise BundleError("a page holds the model's weights: choose weights=object (--weights object)")
    predict, step = functions[PREDICT], functions[STEP]
    labels = [each for each in step.inputs if each.name not in {image.name for image in predict.inputs}]
    batch = _batch(predict)
    fits = batch and len(labels) == 1 and not labels[0].type.dtype.is_float and labels[0].type.shape == (batch,)
    if not fits:
        raise BundleError(
            f"a page trains on digits, x f32[N,1,8,8] with scores f32[N,10] and labels [N]; {_found(step, predict)}"
        )
    if batch > (images := len(data.digits().x)):
        raise BundleError(f"a page trains on {images:,} digits: a batch of {batch:,} is too large")
    return {
        "batch": batch,
        "x": predict.inputs[0].name,
        "scores": predict.outputs[0].name,
        "labels": labels[0].name,
        "rate": RATE,
    }


def _batch(predict: BundleFunction) -> int:
    """The batch of a model that scores digits; 0 for others."""
    if len(predict.inputs) != 1 or len(predict.outputs) != 1:
        return 0
    image, scores = predict.inputs[0].type, predict.outputs[0].type
    batch = image.shape[0] if image.shape[1:] == (1, 8, 8) else 0
    floats = str(image.dtype) == str(scores.dtype) == "f32"
    return batch if floats and scores.shape == (batch, CLASSES) else 0


def _found(step: BundleFunction, predict: BundleFunction) -> str:
    return f"this model takes {_listed(step.inputs)} and gives {_listed(predict.outputs)}"


def _listed(tensors: tuple[BundleTensor, ...]) -> str:
    return ", ".join(f"{each.name} {each.type}" for each in tensors)
