"""``NAME.mjs``: the bundle as a module in JavaScript, for browsers, Node and workers; with an example and a worker."""

from __future__ import annotations

from typing import Any

from glowtrain.bundles.codes import ErrorCode
from glowtrain.bundles.faces.templates import as_json, filled
from glowtrain.bundles.module import BundleModule
from glowtrain.bundles.signature import BundleFunction, BundleTensor
from glowtrain.bundles.verify.trace import printable
from glowtrain.bundles.weights import Weights, header_of
from glowtrain.types import TensorType

OWN_METHODS = ("reset", "getWeights", "setWeights", "save", "load")
"""Methods of every model, as the worker takes them."""


def script(module: BundleModule) -> str:
    """JavaScript that loads the module and calls it, for a script that stands by itself: it exports nothing."""
    return _library(module, exports=False)


def javascript(module: BundleModule, weights: Weights) -> str:
    """The text of ``NAME.mjs``."""
    beside = f' = new URL("{module.name}.safetensors", import.meta.url)' if weights == "file" else ""
    given = f'source = new URL("{module.name}.wasm", import.meta.url), weights{beside}'
    return _library(module, exports=True, load=f"const load = ({given}) => instantiate(source, weights);")


def _library(module: BundleModule, **parts: object) -> str:
    said = f"const description = {as_json(description(module), 1)};"
    return filled("web/model.js", module.name, description=said, **parts)


def worker(module: BundleModule) -> str:
    """The text of ``worker.mjs``."""
    methods = [method_of(function) for function in module.functions]
    inputs = ", ".join(each.name for each in module.functions[0].inputs)
    listed = f"const METHODS = {as_json([*methods, *OWN_METHODS])};"
    return filled("web/worker.mjs", module.name, method=methods[0], inputs=inputs, methods=listed)


def example(module: BundleModule) -> str:
    """The text of ``example.mjs``, which prints what ``main.c`` does."""
    return filled("web/example.mjs", module.name)


def method_of(function: BundleFunction) -> str:
    """What a function is called in JavaScript."""
    return "train" if function.trains else function.name


def description(module: BundleModule) -> dict[str, Any]:
    """What JavaScript knows of a module."""
    slots = module.memory.slots
    return {
        "name": module.name,
        "version": module.version,
        "alignment": module.memory.alignment,
        "variablesBytes": module.memory.size,
        "arenaBytes": module.interface.arena,
        "functions": {function.name: _function(module, function) for function in module.functions},
        "variables": [{"name": p.name, **_type(p.type), "role": p.role} for p in slots],
        "header": header_of(module.memory.types)[8:].decode() if slots else "{}",
        "errors": {code.value: [code.name, code.text] for code in ErrorCode if code != ErrorCode.OK},
    }


def _function(module: BundleModule, function: BundleFunction) -> dict[str, Any]:
    return {
        "inputs": [*map(_tensor, function.inputs)],
        "hyper": [{**_tensor(each), "default": module.hyper[each.name]} for each in function.hyper],
        "outputs": [*map(_tensor, function.outputs)],
    }


def _tensor(tensor: BundleTensor) -> dict[str, Any]:
    return {"name": tensor.name, "source": printable(tensor.source), **_type(tensor.type)}


def _type(type_: TensorType) -> dict[str, Any]:
    return {
        "type": str(type_),
        "dtype": str(type_.dtype),
        "shape": list(type_.shape),
        "size": type_.dtype.size,
        "bytes": type_.nbytes,
    }
