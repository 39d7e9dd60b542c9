"""The recipe: what is quantized, to which types, by which method; and what stays in floating point."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from glowtrain.errors import QuantizationError
from glowtrain.quantization.calibration.ranges import METHODS, WEIGHT_METHODS, Method, method_of
from glowtrain.quantization.checks import check_count, check_kind, check_names
from glowtrain.quantization.placement.scheme import ACTIVATIONS, WEIGHTS, Scheme
from glowtrain.types import byte_of, i4, i8, u4, u8


@dataclass(frozen=True)
class Recipe:
    """How a model is quantized.

    ``activations`` and ``weights`` are schemes; biases are i32 with the scale of the products. ``method`` is the
    calibration method of activations and ``weight_method`` that of weights ("minmax" or "mse"), by name or as an
    object. ``keep`` lists what stays in floating point: names of nodes, of their results or of their weights, and
    operators ("Softmax"), or patterns (:func:`glowtrain.names.matches`). With ``only`` everything else stays so.
    ``keep_sensitive`` is a number of layers that stay in floating point as well: those that cost the results the most.
    ``inputs`` and ``outputs`` say whether what comes from outside and what is only returned is rounded too.
    ``equalize``, ``correct_bias`` and ``round_weights`` (steps of AdaRound; 0: to the nearest) change weights before
    they are rounded. Raises :class:`QuantizationError` for schemes that activations cannot have and unknown methods.
    """

    activations: Scheme = ACTIVATIONS
    weights: Scheme = WEIGHTS
    method: str | Method = "minmax"
    weight_method: str | Method = "minmax"
    keep: Collection[str] = ()
    only: Collection[str] = ()
    keep_sensitive: int = 0
    inputs: bool = True
    outputs: bool = False
    equalize: bool = False
    correct_bias: bool = False
    round_weights: int = 0

    def __post_init__(self) -> None:
        check_kind("the scheme of activations", self.activations, Scheme)
        check_kind("the scheme of weights", self.weights, Scheme)
        for name in ("round_weights", "keep_sensitive"):
            check_count(name, getattr(self, name))
        if self.activations.granularity != "tensor":
            raise QuantizationError(f"activations are quantized per tensor, not {self.activations}: use it for weights")
        if self.activations.dtype in (i4, u4):
            raise QuantizationError(f"activations are quantized to 8 or 16 bits, not to {self.activations.dtype}")
        if self.activations.dtype == i8 and self.weights.dtype == u8:
            raise QuantizationError(
                "signed activations with unsigned weights: no runtime multiplies i8 with u8 in this order; use i8 "
                "weights, or u8 activations"
            )
        for patterns in (self.keep, self.only):
            if isinstance(patterns, str):
                raise QuantizationError(f"keep and only are lists of names: write [{patterns!r}]")
            check_names("keep and only are lists of names", patterns)
        object.__setattr__(self, "keep", tuple(self.keep))  # so that recipes can be compared and hashed
        object.__setattr__(self, "only", tuple(self.only))
        weights = method_of(self.weight_method)
        if type(weights) not in [METHODS[name] for name in WEIGHT_METHODS]:
            known = " or ".join(f'"{name}"' for name in WEIGHT_METHODS)
            raise QuantizationError(f"the ranges of weights are found by {known}")
        method_of(self.method)
        if self.round_weights < 0 or self.keep_sensitive < 0:
            given = f"{self.round_weights} and {self.keep_sensitive}"
            raise QuantizationError(f"round_weights (steps) and keep_sensitive (layers) are from 0 up, not {given}")

    @property
    def least_opset(self) -> int:
        """The first ONNX operator set in which the quantized model can be written."""
        return max(self.activations.least_opset, self.weights.least_opset)

    def with_(self, **changes: Any) -> Recipe:
        """A copy with some fields changed."""
        return replace(self, **changes)

    def check_opset(self, opset: int, *, as_bytes: bool = False) -> None:
        """Raise :class:`QuantizationError` if an ONNX operator set is too old for the schemes. ``as_bytes``: weights
        of less than a byte are stored in bytes, unless blocks of them share scales."""
        wider = as_bytes and not self.weights.block
        weights = self.weights.with_(dtype=byte_of(self.weights.dtype)) if wider else self.weights
        for scheme in (self.activations, weights):
            if opset < scheme.least_opset:
                raise QuantizationError(
                    f"opset {opset} cannot say {scheme}: it needs opset {scheme.least_opset} or newer"
                )

    def __str__(self) -> str:
        words = [f"activations {self.activations}", f"weights {self.weights}", f"method {_said(self.method)}"]
        words += [f"weights' method {_said(self.weight_method)}"] if self.weight_method != "minmax" else []
        words += ["equalised"] if self.equalize else []
        words += ["biases corrected"] if self.correct_bias else []
        words += [f"weights rounded in {self.round_weights} steps"] if self.round_weights else []
        words += [f"in float: {', '.join(self.keep)}"] if self.keep else []
        words += [f"only: {', '.join(self.only)}"] if self.only else []
        return ", ".join(words)


def _said(method: str | Method) -> str:
    return method if isinstance(method, str) else str(method)
