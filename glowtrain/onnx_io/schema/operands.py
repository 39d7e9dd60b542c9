"""Look up what ONNX calls an operator's operands."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from onnx import defs

from glowtrain.graph import Operator


def operand_names(operator: type[Operator], positions: Iterable[int]) -> Iterator[str]:
    """ONNX's names of operands by position; their numbers where ONNX has no such operator, or takes any number of them.

    Inputs that must be known when compiling are attributes here: they are not counted.
    """
    names = _names(operator)
    return (names[position] if position < len(names) else str(position) for position in positions)


def _names(operator: type[Operator]) -> list[str]:
    if not defs.has(operator.onnx, domain=operator.domain):
        return []
    fields = dataclasses.fields(operator)  # type: ignore[arg-type]
    static = {field.metadata["input"] for field in fields if "input" in field.metadata}
    variadic = defs.OpSchema.FormalParameterOption.Variadic
    inputs = defs.get_schema(operator.onnx, operator.domain).inputs
    plain = [value.name for value in inputs if value.option != variadic]
    return [name for position, name in enumerate(plain) if position not in static]
