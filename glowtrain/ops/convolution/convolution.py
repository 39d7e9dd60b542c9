"""Convolutions, and the two gradients of one as operators of their own.

With p an output position, k a kernel tap, s the stride, d the dilation and b the padding before the first element, all
three are the same trilinear form, solved for one of its tensors:

    Conv                y[n, o, p]  = sum over i, k of  x[n, i, p s + k d - b] w[o, i, k]
    ConvInputGradient   dx[n, i, q] = sum over o and the (p, k) with p s + k d - b = q of  g[n, o, p] w[o, i, k]
    ConvWeightGradient  dw[o, i, k] = sum over n, p of  g[n, o, p] x[n, i, p s + k d - b]

so each one's gradient rule is the other two (Dumoulin and Visin, A guide to convolution arithmetic, arXiv:1603.07285).
With groups, o and i run within the group of o.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from glowtrain.graph import Draw, Operator, Sample, Value, operator
from glowtrain.graph.operator import Quantized
from glowtrain.loops import Expr, For, Statement, Tensor, cast, indices_of, reduce
from glowtrain.ops.contraction.products import product
from glowtrain.ops.convolution.attributes import ConvTransposeWindow, ConvWindow
from glowtrain.ops.convolution.correlation import columns, convolve, gather_nests, position_rows, scatter
from glowtrain.ops.convolution.geometry import SlidingWindow, WindowAxis, window
from glowtrain.ops.convolution.layouts import channels_first, channels_last, is_narrow, outputs_last
from glowtrain.ops.core.family import Grads
from glowtrain.ops.reduce.reduction import ReduceSum, widened
from glowtrain.ops.tensor.move import Slice, Transpose, reshape
from glowtrain.types import Array, Shape, TensorType

FEWEST_CHANNELS = 8
"""Input channels of a group from which on a precision rounds a convolution's factors."""


def _check_kinds(op: Operator, *types: TensorType | None) -> None:
    """Floating operands of one element type, images and kernels of one rank of at least 3."""
    present = [type_ for type_ in types if type_ is not None]
    if len({type_.dtype for type_ in present}) > 1 or not present[0].dtype.is_float:
        raise op.fail("operands must have one floating element type", *types)
    if present[0].rank != present[1].rank or present[0].rank < 3:
        raise op.fail(
            "both operands must have one rank of at least 3: [N, C, D1, ...] and [M, C/group, k1, ...]", *types
        )


def _check_bias(op: Operator, channels: int, *types: TensorType | None) -> None:
    bias = types[2] if len(types) > 2 else None
    if bias is not None and bias.shape != (channels,):
        raise op.fail(f"the bias must have shape [{channels}], one element per output channel", *types)


def _check_kernel(op: Operator, kernel: Shape, *types: Any) -> None:
    if kernel and kernel != types[1].shape[2:]:
        raise op.fail(f"kernel_shape {list(kernel)} differs from the weight's {list(types[1].shape[2:])}", *types)


def _factors(channels: int) -> tuple[int, ...]:
    """The factors of a convolution with so many input channels in each group: none where there are few, as in the first
    layer and where each channel is convolved by itself, and what other layers gain would be lost by rounding."""
    return (0, 1) if channels >= FEWEST_CHANNELS else ()


@operator
@dataclass(frozen=True)
class Conv(ConvWindow):
    """y[N, M, out...] = x[N, C, D...] correlated with w[M, C/group, k...], plus a bias of M elements if given."""

    quantized: ClassVar[Quantized] = "contraction"

    def factors(self, *inputs: Any) -> tuple[int, ...]:
        return _factors(inputs[1].shape[1])

    def weight_axes(self, operand: int, *inputs: TensorType | None) -> tuple[int, int] | None:
        return (0, 1) if operand == 1 else None

    def infer(self, *inputs: Any) -> TensorType:
        x, w = inputs[:2]
        _check_kinds(self, *inputs)
        wanted = w.shape[1] * self.group
        if self.group < 1 or x.shape[1] != wanted:
            raise self.fail(
                f"input has {x.shape[1]} channels but weight expects {wanted} (group={self.group})", *inputs
            )
        if w.shape[0] % self.group:
            raise self.fail(f"{w.shape[0]} output channels do not divide into {self.group} groups", *inputs)
        _check_kernel(self, self.kernel_shape, *inputs)
        _check_bias(self, w.shape[0], *inputs)
        result: TensorType = x.with_shape((x.shape[0], w.shape[0], *self.geometry(x, w).out))
        return result

    def reference(self, *inputs: Any) -> Array:
        x, w = inputs[:2]
        y = convolve(x, w, self.geometry(x, w), self.group)
        return _biased(y, *inputs[2:]).astype(x.dtype)

    def vjp(self, g: Value, y: Value, *inputs: Any) -> Grads:
        x, w = inputs[:2]
        geometry = self.geometry(x, w)
        dx = _input_gradient(geometry, self.group)(g, w)
        dw = _weight_gradient(geometry, self.group)(g, x)
        return (dx, dw, *_bias_gradients(g, inputs[2:]))

    def layouts(self, *inputs: Any) -> tuple[Shape | None, ...]:
        rank = inputs[0].rank
        if self.layouts_matter(*inputs):
            return None, channels_first(rank), outputs_last(rank)
        return channels_last(rank), channels_last(rank), outputs_last(rank)

    def layouts_matter(self, *inputs: Any) -> bool:
        x, w = inputs[:2]
        geometry = self.geometry(x, w)
        return self.group == 1 and geometry.strides[-1] == 1 and is_narrow(w.shape, geometry.out[-1])

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Any) -> list[Statement]:
        (y,), (x, w) = outputs, inputs[:2]
        geometry = self.geometry(x, w)
        bias = inputs[2] if len(inputs) > 2 else None
        per_group = w.shape[0] // self.group
        n, block, inner, *position = indices = indices_of((x.shape[0], self.group, per_group, *geometry.out))
        channel = block * per_group + inner

        def term(i: Expr, *tap: Expr) -> Expr:
            source = (n, block * w.shape[1] + i, *geometry.source(position, tap))
            return product(x.load(source, fill=0), w[(channel, i, *tap)])

        value = reduce("add", w.shape[1:], term)
        if bias is not None:
            value = value + cast(bias[(channel,)], value.dtype)
        return [For(indices, (y.store((n, channel, *position), value),))]

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        conv, x, w = draw_convolution(draw)
        bias = draw.floats(w.shape[:1]) if draw.boolean() else None
        return Sample(conv, (x, w, bias))


def _biased(y: Array, bias: Array | None = None) -> Array:
    """An image in the type in which it is summed, with a bias for each channel."""
    return y if bias is None else y + widened(bias).reshape(-1, *(1 for _ in y.shape[2:]))


def _bias_gradients(g: Value, biases: Sequence[Value | None]) -> Grads:
    axes = (0, *range(2, g.rank))
    return tuple(None if bias is None else ReduceSum(axes=axes, keepdims=False)(g) for bias in biases)


def draw_convolution(draw: Draw) -> tuple[Conv, Array, Array]:
    """A convolution of 1 to 3 spatial axes whose window fits, its input and its weight."""
    rank, group = draw.choice((1, 2, 2, 3)), draw.choice((1, 1, 2, 3))
    kernel = tuple(draw.integer(1, 3 if rank < 3 else 2) for _ in range(rank))
    strides = tuple(draw.integer(1, 3 if rank < 3 else 2) for _ in range(rank))
    dilations = tuple(draw.integer(1, 2) for _ in range(rank))
    auto_pad = draw.choice(("NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"))
    pads = tuple(draw.integer(0, 2) for _ in range(2 * rank)) if auto_pad == "NOTSET" and draw.boolean() else ()
    positions = draw.shape(rank, rank, max_extent=4 if rank < 3 else 2)
    spatial = tuple((k - 1) * d + n for k, d, n in zip(kernel, dilations, positions, strict=True))
    conv = Conv(auto_pad, dilations, group, kernel if draw.boolean() else (), pads, strides)
    images, (per_group, outputs) = draw.integer(1, 2), draw.shape(2, 2, max_extent=3)
    x = draw.floats((images, group * per_group, *spatial))
    return conv, x, draw.floats((group * outputs, per_group, *kernel))


@operator
@dataclass(frozen=True)
class ConvTranspose(ConvTransposeWindow):
    """y[N, M, out...]: the input gradient of the convolution with w[C, M/group, k...] at x[N, C, D...], plus a bias."""

    quantized: ClassVar[Quantized] = "contraction"

    def factors(self, *inputs: Any) -> tuple[int, ...]:
        return _factors(inputs[1].shape[0] // self.group)

    def weight_axes(self, operand: int, *inputs: TensorType | None) -> tuple[int, int] | None:
        return (1, 0) if operand == 1 else None

    def infer(self, *inputs: Any) -> TensorType:
        x, w = inputs[:2]
        _check_kinds(self, *inputs)
        if x.shape[1] != w.shape[0] or self.group < 1 or w.shape[0] % self.group:
            rule = f"input has {x.shape[1]} channels but weight expects {w.shape[0]} (group={self.group})"
            raise self.fail(rule, *inputs)
        _check_kernel(self, self.kernel_shape, *inputs)
        channels = w.shape[1] * self.group
        _check_bias(self, channels, *inputs)
        result: TensorType = x.with_shape((x.shape[0], channels, *self.geometry(x, w).spatial))
        return result

    def reference(self, *inputs: Any) -> Array:
        x, w = inputs[:2]
        y = scatter(x, w, self.geometry(x, w), self.group)
        return _biased(y, *inputs[2:]).astype(x.dtype)

    def vjp(self, g: Value, y: Value, *inputs: Any) -> Grads:
        x, w = inputs[:2]
        cropped, geometry = _exact(g, self.geometry(x, w))
        conv = Conv("NOTSET", geometry.dilations, self.group, geometry.kernel, geometry.pads, geometry.strides)
        dx, dw = conv(cropped, w), _weight_gradient(geometry, self.group)(x, cropped)
        return (dx, dw, *_bias_gradients(g, inputs[2:]))

    def layouts(self, *inputs: Any) -> tuple[Shape | None, ...]:
        rank = inputs[0].rank
        return channels_last(rank), channels_last(rank), (*range(2, rank), 0, 1)

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Any) -> list[Statement]:
        bias = inputs[2] if len(inputs) > 2 else None
        return gather_nests(outputs[0], inputs[0], inputs[1], self.geometry(inputs[0], inputs[1]), self.group, bias)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        rank, group = draw.choice((1, 2, 2, 3)), draw.choice((1, 1, 2))
        (per_group, inner), largest = draw.shape(2, 2, max_extent=3), 3 if rank < 3 else 2
        shapes = [tuple(draw.integer(1, largest) for _ in range(rank)) for _ in range(4)]
        shapes[0] = draw.shape(rank, rank, max_extent=largest)
        axes = [WindowAxis(*shape) for shape in zip(*shapes, strict=True)]
        x = draw.floats((draw.integer(1, 2), group * inner, *shapes[0]))
        w = draw.floats((group * inner, per_group, *shapes[1]))
        bias = draw.floats((group * per_group,)) if draw.boolean() else None
        padding = _draw_transposed_padding(draw, axes)
        window = {"kernel_shape": draw.choice(((), shapes[1])), "strides": shapes[2], "dilations": shapes[3]}
        return Sample(cls(group=group, **window, **padding), (x, w, bias))


def _draw_transposed_padding(draw: Draw, axes: Sequence[WindowAxis]) -> dict[str, Any]:
    """One of the ways in which a transposed convolution's output extents are given."""
    form = draw.choice(("plain", "pads", "output_padding", "output_shape", "SAME_UPPER", "SAME_LOWER", "VALID"))
    if form.isupper():
        return {"auto_pad": form}
    if form == "output_padding":
        return {form: tuple(draw.integer(0, max(axis.stride, axis.dilation) - 1) for axis in axes)}
    full = [(axis.extent - 1) * axis.stride + axis.width for axis in axes]
    begin = tuple(draw.integer(0, min(2, extent - 1)) for extent in full)
    rest = [extent - b for extent, b in zip(full, begin, strict=True)]
    if form == "pads":
        return {form: (*begin, *(draw.integer(0, min(1, extent - 1)) for extent in rest))}
    return {form: tuple(rest), "auto_pad": draw.choice(("NOTSET", "SAME_UPPER"))} if form == "output_shape" else {}


def _exact(g: Value, geometry: SlidingWindow) -> tuple[Value, SlidingWindow]:
    """Fit the end padding (or crop ``g``) so that the convolution over ``g`` has exactly the window's positions."""
    axes = [replace(axis, end=axis.after) for axis in geometry.axes]
    if any(-axis.exact_end >= axis.stride for axis in axes):
        axes = [replace(axis, extent=axis.extent + min(axis.exact_end, 0)) for axis in axes]
        spatial = tuple(axis.extent for axis in axes)
        g = Slice(starts=(0,) * len(axes), ends=spatial, axes=tuple(range(2, g.rank)))(g)
    return g, SlidingWindow(tuple(axes))


def output_padding(geometry: SlidingWindow) -> Shape:
    """What a transposed convolution must add at the end to reach the input's extents again."""
    return tuple(axis.end - axis.exact_end for axis in geometry.axes)


def _input_gradient(geometry: SlidingWindow, group: int) -> ConvInputGradient:
    return ConvInputGradient(geometry.spatial, geometry.strides, geometry.dilations, geometry.pads, group)


def _weight_gradient(geometry: SlidingWindow, group: int) -> ConvWeightGradient:
    return ConvWeightGradient(geometry.kernel, geometry.strides, geometry.dilations, geometry.pads, group)


@operator
@dataclass(frozen=True)
class ConvInputGradient(Operator):
    """dx[N, C, D...] from the output's cotangent g[N, M, out...] and w[M, C/group, k...]; ``spatial`` is D..."""

    domain = "glowtrain"
    spatial: Shape
    strides: Shape
    dilations: Shape
    pads: Shape
    group: int = 1

    def geometry(self, g: Any, w: Any) -> SlidingWindow:
        """The window of the convolution whose gradient this is."""
        types = tuple(v for v in (g, w) if isinstance(v, TensorType))
        geometry = window(
            self, types, self.spatial, w.shape[2:], strides=self.strides, dilations=self.dilations, pads=self.pads
        )
        if geometry.out != g.shape[2:]:
            raise self.fail(
                f"the convolution has spatial shape {list(geometry.out)}, but g has {list(g.shape[2:])}", *types
            )
        return geometry

    def factors(self, *inputs: Any) -> tuple[int, ...]:
        return _factors(inputs[1].shape[1])

    def infer(self, *inputs: Any) -> TensorType:
        g, w = inputs
        _check_kinds(self, g, w)
        if g.shape[1] != w.shape[0] or w.shape[0] % self.group:
            raise self.fail(f"g has {g.shape[1]} channels but weight gives {w.shape[0]} (group={self.group})", g, w)
        self.geometry(g, w)
        result: TensorType = g.with_shape((g.shape[0], w.shape[1] * self.group, *self.spatial))
        return result

    def reference(self, *inputs: Any) -> Array:
        g, w = inputs
        return scatter(g, w, self.geometry(g, w), self.group).astype(g.dtype)

    def vjp(self, g: Value, y: Value, *inputs: Any) -> Grads:
        cotangent, w = inputs
        conv = Conv("NOTSET", self.dilations, self.group, w.shape[2:], self.pads, self.strides)
        weight = ConvWeightGradient(w.shape[2:], self.strides, self.dilations, self.pads, self.group)
        return conv(g, w), weight(cotangent, g)

    def layouts(self, *inputs: Any) -> tuple[Shape | None, ...]:
        rank = inputs[0].rank
        return channels_last(rank), channels_last(rank), outputs_last(rank)

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Any) -> list[Statement]:
        return gather_nests(outputs[0], inputs[0], inputs[1], self.geometry(inputs[0], inputs[1]), self.group, None)

    def decompose(self, *inputs: Any) -> Value:
        g, w = inputs
        geometry = self.geometry(g, w)
        short = output_padding(geometry)
        transpose = ConvTranspose("NOTSET", self.dilations, self.group, w.shape[2:], short, (), self.pads, self.strides)
        result: Value = transpose(g, w)
        return result

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        conv, x, w = draw_convolution(draw)
        geometry = conv.geometry(x, w)
        return Sample(_input_gradient(geometry, conv.group), (draw.floats((x.shape[0], w.shape[0], *geometry.out)), w))


@operator
@dataclass(frozen=True)
class ConvWeightGradient(Operator):
    """dw[M, C/group, k...] from the output's cotangent g[N, M, out...] and the input x[N, C, D...]."""

    domain = "glowtrain"
    kernel_shape: Shape
    strides: Shape
    dilations: Shape
    pads: Shape
    group: int = 1

    def geometry(self, g: Any, x: Any) -> SlidingWindow:
        """The window of the convolution whose gradient this is."""
        types = tuple(v for v in (g, x) if isinstance(v, TensorType))
        geometry = window(
            self, types, x.shape[2:], self.kernel_shape, strides=self.strides, dilations=self.dilations, pads=self.pads
        )
        if geometry.out != g.shape[2:]:
            raise self.fail(
                f"the convolution has spatial shape {list(geometry.out)}, but g has {list(g.shape[2:])}", *types
            )
        return geometry

    def factors(self, *inputs: Any) -> tuple[int, ...]:
        return _factors(inputs[1].shape[1] // self.group)

    def infer(self, *inputs: Any) -> TensorType:
        g, x = inputs
        _check_kinds(self, g, x)
        if g.shape[0] != x.shape[0]:
            raise self.fail(f"g has {g.shape[0]} images but x has {x.shape[0]}", g, x)
        if x.shape[1] % self.group or g.shape[1] % self.group:
            raise self.fail(f"{g.shape[1]} and {x.shape[1]} channels do not divide into {self.group} groups", g, x)
        self.geometry(g, x)
        result: TensorType = g.with_shape((g.shape[1], x.shape[1] // self.group, *self.kernel_shape))
        return result

    def reference(self, *inputs: Any) -> Array:
        g, x = inputs
        dw = position_rows(g, self.group).transpose(0, 2, 1) @ columns(x, self.geometry(g, x), self.group)
        return dw.reshape(g.shape[1], x.shape[1] // self.group, *self.kernel_shape).astype(g.dtype)

    def vjp(self, g: Value, y: Value, *inputs: Any) -> Grads:
        cotangent, x = inputs
        conv = Conv("NOTSET", self.dilations, self.group, self.kernel_shape, self.pads, self.strides)
        image = ConvInputGradient(x.shape[2:], self.strides, self.dilations, self.pads, self.group)
        return conv(x, g), image(cotangent, g)

    def layouts(self, *inputs: Any) -> tuple[Shape | None, ...]:
        rank = inputs[0].rank
        return outputs_last(rank), channels_last(rank), channels_last(rank)

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Any) -> list[Statement]:
        (dw,), (g, x) = outputs, inputs
        geometry = self.geometry(g, x)
        per_group = dw.shape[0] // self.group
        block, inner, i, *tap = indices = indices_of((self.group, per_group, *dw.shape[1:]))
        channel = block * per_group + inner

        def term(n: Expr, *position: Expr) -> Expr:
            source = (n, block * dw.shape[1] + i, *geometry.source(position, tap))
            return product(g[(n, channel, *position)], x.load(source, fill=0))

        value = reduce("add", (g.shape[0], *geometry.out), term)
        return [For(indices, (dw.store((channel, i, *tap), value),))]

    def decompose(self, *inputs: Any) -> Value:
        """A convolution of x with g in which images and channels, and strides and dilations, have changed places."""
        g, x = inputs
        geometry = self.geometry(g, x)
        images, spatial, rest = x.shape[0], x.shape[2:], tuple(range(3, x.rank + 1))
        split = reshape(x, (images, self.group, x.shape[1] // self.group, *spatial))
        swapped = Transpose(perm=(2, 1, 0, *rest))(split)
        image = reshape(swapped, (x.shape[1] // self.group, self.group * images, *spatial))
        kernel = Transpose(perm=(1, 0, *range(2, g.rank)))(g)
        # Strides and dilations change places, so the last tap of dw decides how far the padding must reach.
        positions = [
            replace(axis, kernel=axis.out, stride=axis.dilation, dilation=axis.stride, out=axis.kernel)
            for axis in geometry.axes
        ]
        pads = SlidingWindow(tuple(positions)).exact_pads
        wide = Conv("NOTSET", self.strides, self.group, geometry.out, pads, self.dilations)(image, kernel)
        if wide.shape[2:] != self.kernel_shape:
            axes = tuple(range(2, wide.rank))
            wide = Slice(starts=(0,) * len(axes), ends=self.kernel_shape, axes=axes)(wide)
        result: Value = Transpose(perm=(1, 0, *range(2, wide.rank)))(wide)
        return result

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        conv, x, w = draw_convolution(draw)
        geometry = conv.geometry(x, w)
        return Sample(_weight_gradient(geometry, conv.group), (draw.floats((x.shape[0], w.shape[0], *geometry.out)), x))
