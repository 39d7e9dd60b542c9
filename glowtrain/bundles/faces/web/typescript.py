"""``NAME.d.mts``: the types of a bundle's module in JavaScript, for TypeScript and editors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from glowtrain.bundles.codes import ErrorCode
from glowtrain.bundles.faces.templates import as_json, filled
from glowtrain.bundles.faces.web.javascript import method_of
from glowtrain.bundles.module import BundleModule
from glowtrain.bundles.signature import BundleFunction, element_of
from glowtrain.types import TensorType


def declarations(module: BundleModule) -> str:
    """The text of ``NAME.d.mts``."""
    names = [code.name for code in ErrorCode if code != ErrorCode.OK]
    interfaces = [part for function in module.functions for part in _interfaces(module, function)]
    return filled(
        "web/model.d.mts",
        module.name,
        interfaces="\n\n".join([*interfaces, _weights(module)]),
        methods=map(_method, module.functions),
        codes=f"export type ErrorCode = {' | '.join(map(as_json, (*names, 'BAD_INPUT', 'OUT_OF_MEMORY')))};",
    )


def _interfaces(module: BundleModule, function: BundleFunction) -> Iterator[str]:
    name = _capital(method_of(function))
    yield _interface(f"{name}Inputs", (_field(each.name, each.type, given=True) for each in function.inputs))
    if function.hyper:
        fields = (f"  /** {module.hyper[e.name]:g} by default. */\n  {e.name}?: number;" for e in function.hyper)
        yield _interface("Hyperparameters", fields)
    if not function.trains:
        yield _interface(f"{name}Outputs", (_field(each.name, each.type) for each in function.outputs))


def _weights(module: BundleModule) -> str:
    fields = (_field(as_json(p.name), p.type, given=True, optional=True) for p in module.memory.slots)
    return "/** Variables by name, row-major. */\n" + _interface("Weights", fields)


def _method(function: BundleFunction) -> str:
    name = _capital(method_of(function))
    if function.trains:
        hyper = ", hyper?: Hyperparameters" if function.hyper else ""
        return (
            "/** One step of training on a batch; gives the loss. Throws NOT_FINITE, and changes nothing, where the\n"
            f" * loss is no number. */\ntrain(inputs: {name}Inputs{hyper}): number;"
        )
    return f"/** Predictions for a batch. */\n{method_of(function)}(inputs: {name}Inputs): {name}Outputs;"


def _interface(name: str, fields: Iterable[str]) -> str:
    return "\n".join([f"export interface {name} {{", *fields, "}"])


def _field(name: str, type_: TensorType, *, given: bool = False, optional: bool = False) -> str:
    array = element_of(type_.dtype).javascript
    numbers = "number | bigint" if array.startswith("Big") else "number"
    taken = f"{array} | ArrayLike<{numbers}>" if given and not optional else array
    return f"  /** {type_} */\n  {name}{'?' if optional else ''}: {taken};"


def _capital(name: str) -> str:
    return name[:1].upper() + name[1:]
