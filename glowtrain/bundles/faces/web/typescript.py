"""``NAME.d.mts``: the types of a bundle's module in JavaScript, for TypeScript and editors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from glowtrain.bundles.codes import ErrorCode
from glowtrain.bundles.faces.web.javascript import method_of
from glowtrain.bundles.faces.web.texts import as_json
from glowtrain.bundles.module import BundleModule
from glowtrain.bundles.signature import BundleFunction
from glowtrain.types import DType, TensorType

ARRAYS: Mapping[str, str] = {
    "f64": "Float64Array", "f32": "Float32Array", "f16": "Uint16Array", "bf16": "Uint16Array",
    "i64": "BigInt64Array", "i32": "Int32Array", "i16": "Int16Array", "i8": "Int8Array", "i4": "Int8Array",
    "i2": "Int8Array", "u64": "BigUint64Array", "u32": "Uint32Array", "u16": "Uint16Array",
}  # fmt: skip
"""Typed arrays of element types; ``model.js`` has the same, and others are ``Uint8Array`` there as well."""


def array_of(dtype: DType) -> str:
    """The typed array of an element type."""
    return ARRAYS.get(dtype.name, "Uint8Array")


def declarations(module: BundleModule) -> str:
    """The text of ``NAME.d.mts``."""
    parts = [
        f"// The types of {module.name}.mjs.\n",
        *(part for function in module.functions for part in _interfaces(module, function)),
        _weights(module),
        _model(module),
        _ERRORS.format(codes=" | ".join(f'"{name}"' for name in _codes())),
        _LOAD.format(name=module.name),
    ]
    return "\n".join(parts)


def _codes() -> list[str]:
    own = [code.name for code in ErrorCode if code != ErrorCode.OK]
    return [*own, "BAD_INPUT", "OUT_OF_MEMORY"]


def _interfaces(module: BundleModule, function: BundleFunction) -> Iterator[str]:
    name = _capital(method_of(function))
    yield _interface(f"{name}Inputs", (_field(each.name, each.type, given=True) for each in function.inputs))
    if function.hyper:
        fields = (f"  /** {module.hyper[e.name]:g} by default. */\n  {e.name}?: number;" for e in function.hyper)
        yield _interface("Hyperparameters", fields)
    if not function.trains:
        yield _interface(f"{name}Outputs", (_field(each.name, each.type) for each in function.outputs))


def _weights(module: BundleModule) -> str:
    fields = (_field(as_json(p.name), p.type, given=True, optional=True) for p in module.memory.places)
    return "/** Variables by name, row-major. */\n" + _interface("Weights", fields)


def _model(module: BundleModule) -> str:
    methods = "\n".join(_method(function) for function in module.functions)
    return _MODEL.format(methods=methods)


def _method(function: BundleFunction) -> str:
    name = _capital(method_of(function))
    if function.trains:
        hyper = ", hyper?: Hyperparameters" if function.hyper else ""
        return (
            "  /** One step of training on a batch; gives the loss. Throws NOT_FINITE, and changes nothing, where the\n"
            f"   * loss is no number. */\n  train(inputs: {name}Inputs{hyper}): number;"
        )
    return f"  /** Predictions for a batch. */\n  {method_of(function)}(inputs: {name}Inputs): {name}Outputs;"


def _interface(name: str, fields: Iterable[str]) -> str:
    return "\n".join([f"export interface {name} {{", *fields, "}\n"])


def _field(name: str, type_: TensorType, *, given: bool = False, optional: bool = False) -> str:
    array = array_of(type_.dtype)
    numbers = "number | bigint" if array.startswith("Big") else "number"
    taken = f"{array} | ArrayLike<{numbers}>" if given and not optional else array
    return f"  /** {type_} */\n  {name}{'?' if optional else ''}: {taken};"


def _capital(name: str) -> str:
    return name[:1].upper() + name[1:]


_MODEL = """export declare class Model {{
  private constructor();
{methods}
  /** The variables of the model, with `state` those of the optimizer as well. */
  getWeights(options?: {{ state?: boolean }}): Weights;
  /** Set some variables. All are checked before the first is set. */
  setWeights(weights: Weights): void;
  /** All variables, those of the optimizer among them, as a file of safetensors. */
  save(): Uint8Array;
  /** Take all variables from such a file. Throws OTHER_WEIGHTS, and changes nothing, for another model's. */
  load(file: Uint8Array | ArrayBuffer): void;
  /** All variables as they were when the model was loaded. */
  reset(): void;
  /** Bytes of the module's memory, which does not grow after loading. */
  readonly memoryBytes: number;
  readonly description: typeof description;
}}
"""
_ERRORS = """export type ErrorCode = {codes};

export declare class GlowtrainError extends Error {{
  readonly code: ErrorCode;
}}
"""
_LOAD = """export interface Tensor {{
  name: string;
  type: string;
  dtype: string;
  shape: number[];
  bytes: number;
}}

/** What is inside. */
export declare const description: {{
  name: string;
  functions: Record<string, {{ inputs: Tensor[]; hyper: (Tensor & {{ default: number }})[]; outputs: Tensor[] }}>;
  variables: (Tensor & {{ role: "parameter" | "statistic" | "state" }})[];
}};

export type Source = ArrayBuffer | ArrayBufferView | URL | string;

/** Load the model from the bytes or the address of its module, by default {name}.wasm beside this file; likewise its
 * weights (safetensors), which need not be given where the module holds them or {name}.safetensors was written. */
export declare function load(source?: Source, weights?: Source | null): Promise<Model>;
"""
