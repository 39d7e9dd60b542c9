"""The attributes of ONNX's convolutions and transposed convolutions, and the windows that they describe.

Convolutions of real numbers, of integers and of quantized numbers have the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from glowtrain.graph import Operator
from glowtrain.ops.convolution.geometry import SlidingWindow, WindowAxis, bounded, split_padding, window, window_axes
from glowtrain.types import Shape, TensorType


@dataclass(frozen=True)
class ConvAttributes(Operator):
    """What every convolution states, whatever it does before and after, and wherever its operands' channels are."""

    auto_pad: str = "NOTSET"
    dilations: Shape = ()
    group: int = 1
    kernel_shape: Shape = ()
    pads: Shape = ()
    strides: Shape = ()

    def of_convolution(self) -> dict[str, Any]:
        """These attributes by name, without those that a subclass adds."""
        return {field.name: getattr(self, field.name) for field in fields(ConvAttributes)}


class ConvWindow(ConvAttributes):
    """A convolution of x[N, C, D...] with w[M, C/group, k...]."""

    def geometry(self, x: Any, w: Any) -> SlidingWindow:
        """The window for operands of these shapes (types, values, arrays or tensors)."""
        types = tuple(v for v in (x, w) if isinstance(v, TensorType))
        return window(
            self, types, x.shape[2:], w.shape[2:],
            strides=self.strides, dilations=self.dilations, pads=self.pads, auto_pad=self.auto_pad,
        )  # fmt: skip


@dataclass(frozen=True)
class ConvTransposeWindow(Operator):
    """A transposed convolution of x[N, C, D...] with w[C, M/group, k...]."""

    auto_pad: str = "NOTSET"
    dilations: Shape = ()
    group: int = 1
    kernel_shape: Shape = ()
    output_padding: Shape = ()
    output_shape: Shape = ()
    pads: Shape = ()
    strides: Shape = ()

    def geometry(self, x: Any, w: Any) -> SlidingWindow:
        """The window of the convolution that leads from y back to x."""
        types = tuple(v for v in (x, w) if isinstance(v, TensorType))
        rank = len(x.shape) - 2
        if 0 in x.shape[2:]:
            raise self.fail("the input needs elements along its spatial axes", *types)
        axes = window_axes(
            self, types, x.shape[2:], w.shape[2:], self.strides, self.dilations, self.pads, self.auto_pad
        )
        extra = self.output_padding or (0,) * rank
        if len(extra) != rank or any(
            not 0 <= e < max(axis.stride, axis.dilation) for e, axis in zip(extra, axes, strict=True)
        ):
            raise self.fail("output_padding must be non-negative and smaller than the stride or the dilation", *types)
        if self.output_shape and len(self.output_shape) not in (rank, rank + 2):
            raise self.fail(f"output_shape must hold {rank} spatial extents", *types)
        wanted = self.output_shape[-rank:] or (0,) * rank
        geometry = SlidingWindow(tuple(self._axis(*entry) for entry in zip(axes, extra, wanted, strict=True)))
        if any(extent < 1 for extent in geometry.spatial):
            raise self.fail(f"the output would have spatial shape {list(geometry.spatial)}", *types)
        return bounded(self, types, geometry)

    def _axis(self, axis: WindowAxis, extra: int, wanted: int) -> WindowAxis:
        """Turn x's axis into y's; SAME padding takes off what the window is wider than its stride."""
        positions = axis.extent
        full = (positions - 1) * axis.stride + extra + axis.width
        if self.auto_pad.startswith("SAME") and not wanted:
            wanted = full - max(0, axis.width - axis.stride)
        if not wanted:
            return replace(axis, extent=full - axis.begin - axis.end, out=positions)
        begin, end = split_padding(max(0, full - wanted), upper=self.auto_pad == "SAME_UPPER")
        return replace(axis, extent=wanted, begin=begin, end=end, out=positions)
