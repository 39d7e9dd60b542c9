"""Which scales a quantized model may have, where they are known before it runs.

A result is divided by its scale: that must be positive and finite. The scale that quantized numbers are multiplied by
must be finite; 0 says that all of them are 0, and below 0 it is only for weights, as tools write both: ONNX Runtime's
weights of 4 bits have scales max / -8 (``onnxruntime.quantization.matmul_nbits_quantizer``), and blocks of zeros 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from glowtrain.errors import ShapeError
from glowtrain.graph import Constant, Input, Operator, Value, Variable, topological
from glowtrain.types import Array

ScaleOperands = Mapping[int, int | None]
"""The operands that are scales, by position, and the position of the numbers that each is multiplied with; ``None``
for one that a result is divided by."""


class WithScales(Operator):
    """An operator that reads scales: a family says which operands in ``scale_operands``."""

    scale_operands: ClassVar[ScaleOperands] = {}

    def scales_among(self, count: int) -> ScaleOperands:
        """:attr:`scale_operands` of a use with ``count`` operands."""
        return {position: numbers for position, numbers in self.scale_operands.items() if position < count}

    def check_constants(self, inputs: Sequence[Value | None]) -> None:
        """Raise :class:`ShapeError` for operands that are constants or variables and cannot be what they stand for."""
        for position, numbers in self.scales_among(len(inputs)).items():
            scale = inputs[position]
            array = elements(scale)
            if scale is None or array is None:
                continue
            if numbers is None:
                wrong, rule = ~(array > 0), "numbers are divided by it, so it must be positive and finite"
            elif _computed(inputs[numbers]):
                wrong, rule = array < 0, "activations are multiplied by it, so it must be finite and not negative"
            else:
                wrong, rule = np.zeros(array.shape, bool), "weights are multiplied by it, so it must be finite"
            wrong |= ~np.isfinite(array)
            if wrong.any():
                raise self.refused(named(scale, "scale", array, wrong), f"{rule}; quantize the model again", inputs)

    def refused(self, what: str, rule: str, inputs: Sequence[Value | None]) -> ShapeError:
        """The error for an operand, as :func:`named` says it, that breaks a rule."""
        return self.fail(f"{what}: {rule}", *(None if value is None else value.type for value in inputs))


def named(value: Value, role: str, array: Array, wrong: Array) -> str:
    """An operand with the first of its elements that are wrong, for messages: ``the scale 's' has nan at [3]``."""
    at = np.argwhere(wrong)[0].tolist()
    said = f"is {array[tuple(at)]:g}" if array.size == 1 else f"has {array[tuple(at)]:g} at {at}"
    return f"the {role} {value.name!r} {said}" if value.name else f"a {role} {said}"


def elements(value: Value | None) -> Array | None:
    """What is known of a leaf, in f64."""
    if isinstance(value, Constant):
        return value.array.astype(np.float64)
    return value.initial.astype(np.float64) if isinstance(value, Variable) else None


def _computed(value: Value | None) -> bool:
    """Whether a tensor depends on a call's inputs."""
    if value is None:
        return False
    operands = (operand for node in topological([value]) for operand in node.inputs)
    return isinstance(value, Input) or any(isinstance(operand, Input) for operand in operands)
