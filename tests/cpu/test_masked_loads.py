"""Masked loads read what their masks say, in every instruction that the code generator makes of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import glowtrain as gt
from glowtrain import models
from glowtrain.backends.llvm.toolchain import build
from glowtrain.backends.target import Target
from glowtrain.grad.reverse import pullback
from glowtrain.graph import Graph, Input, Value
from glowtrain.ops.convolution.convolution import Conv
from glowtrain.types import f32
from tests.cpu.cpu_kernels import runnable
from tests.cpu.masked_loads import X86, MaskedLoad, graphs_of, lost_masks, marked, text_of, unmarked, unmasked

AVX512 = Target.named("avx512")
HALF = (True,) * 8 + (False,) * 8

USED_AGAIN = """define void @kernel(ptr %p, ptr %c, ptr %x, ptr %y, ptr %n) #0 {
  %i = load <16 x i32>, ptr %n, align 4
  %a = load <16 x float>, ptr %x, align 4
  %b = load <16 x float>, ptr %y, align 4
  %m = icmp ult <16 x i32> %i, splat (i32 5)
  %l = call <16 x float> @llvm.masked.load.v16f32.p0(ptr align 4 %p, <16 x i1> %m, <16 x float> zeroinitializer)
  %r = call <16 x float> @llvm.fma.v16f32(<16 x float> %a, <16 x float> %l, <16 x float> %b)
  %s = select <16 x i1> %m, <16 x float> %r, <16 x float> zeroinitializer
  store <16 x float> %s, ptr %c, align 4
  store <16 x float> %a, ptr %x, align 4
  store <16 x float> %b, ptr %y, align 4
  ret void
}
"""
"""A multiply-add whose other operands are used after it, with the mask of the load."""

ORDER = ", ".join(f"i32 {15 - lane}" for lane in range(16))
REVERSED = f"""define void @kernel(ptr %p, ptr %c, ptr %n) #0 {{
  %i = load <16 x i32>, ptr %n, align 4
  %m = icmp ult <16 x i32> %i, splat (i32 5)
  %l = call <16 x float> @llvm.masked.load.v16f32.p0(ptr align 4 %p, <16 x i1> %m, <16 x float> zeroinitializer)
  %r = shufflevector <16 x float> %l, <16 x float> poison, <16 x i32> <{ORDER}>
  %s = select <16 x i1> %m, <16 x float> %r, <16 x float> zeroinitializer
  store <16 x float> %s, ptr %c, align 4
  ret void
}}
"""
"""Lanes that the mask leaves out come to where it lets through."""


@pytest.mark.parametrize("text", [USED_AGAIN, REVERSED], ids=["used again", "reversed"])
def test_a_load_stays_apart_from_what_has_the_same_mask(text: str) -> None:
    assert not lost_masks(text, AVX512)


@pytest.mark.parametrize("target", runnable("avx512", "avx2", "sse4"), ids=lambda target: target.name)
def test_lanes_outside_of_a_mask_are_0_wherever_they_go(target: Target) -> None:
    x, y, n = np.arange(1, 17, dtype=np.float32), np.ones(16, np.float32), np.arange(16, dtype=np.int32)
    build(REVERSED, target, ["kernel"]).function("kernel", 3)(*(each.ctypes.data for each in (x, y, n)))
    assert y.tolist() == [0] * 16


# ---- graphs


def convolution(
    group: int, channels: int, made: int, extents: tuple[int, int], kernel: tuple[int, int], pads: tuple[int, int]
) -> Graph:
    """A dilated convolution and its gradients."""
    x = Input(f32[1, channels, *extents], "x")
    w = Input(f32[made, channels // group, *kernel], "w")
    y = Conv(group=group, kernel_shape=kernel, dilations=(2, 1), pads=(*pads, *pads))(x, w)
    g = Input(y.type, "g")
    dx, dw = pullback([y], [g], [x, w])
    assert dx is not None
    assert dw is not None
    return Graph((x, w, g), {"y": y, "dx": dx, "dw": dw})


@gt.model(x=gt.f32["batch", 7, 10])
def recurrent(x: Value) -> dict[str, Value]:
    """Rows of odd lengths, in both directions."""
    return {"scores": gt.nn.linear(gt.nn.mean(gt.nn.lstm(x, 9, direction="bidirectional"), 1), 5, name="scores")}


def of_glowtrain(name: str, kind: str = "training") -> Graph:
    """A model that comes with Glowtrain, for small images."""
    return dict(graphs_of(models.build(name, (1, 12, 12)), batch=5))[kind]


GRAPHS: dict[str, Callable[[], Graph]] = {
    "depthwise, kernel 1 wide": lambda: convolution(64, 64, 64, (9, 18), (3, 1), (1, 3)),
    "depthwise, in 32 columns": lambda: convolution(16, 16, 16, (11, 32), (2, 1), (0, 4)),
    "depthwise, kernel 3 wide": lambda: convolution(40, 40, 40, (13, 13), (3, 3), (2, 1)),
    "depthwise, two of each": lambda: convolution(12, 12, 24, (8, 19), (1, 1), (2, 2)),
    "grouped": lambda: convolution(3, 15, 21, (7, 11), (3, 2), (2, 3)),
    "cnn": lambda: of_glowtrain("cnn"),
    "mobilenet": lambda: of_glowtrain("mobilenet", "forward"),
    "transformer": lambda: of_glowtrain("transformer"),
    "recurrent": lambda: dict(graphs_of(recurrent, batch=5))["training"],
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", GRAPHS)
def test_kernels_keep_their_masks(name: str) -> None:
    graph = GRAPHS[name]()
    for target in map(Target.named, X86):
        assert not lost_masks(text_of(graph, target), target), target.name


# ---- the check itself


def test_masks_of_constants_are_known() -> None:
    text = """define void @kernel(ptr %p, i64 %n) #0 {
  %i = add <4 x i64> splat (i64 2), <i64 0, i64 1, i64 2, i64 3>
  %d = add <4 x i64> splat (i64 -3), %i
  %m = icmp ult <4 x i64> %d, splat (i64 2)
  %a = call <4 x float> @llvm.masked.load.v4f32.p0(ptr align 4 %p, <4 x i1> %m, <4 x float> zeroinitializer)
  %u = add <4 x i64> %unknown, %i
  %o = icmp ult <4 x i64> %u, splat (i64 2)
  %b = call <4 x float> @llvm.masked.load.v4f32.p0(ptr align 4 %p, <4 x i1> %o, <4 x float> zeroinitializer)
  ret void
}
"""
    _, loads = marked(text)
    assert [load.read for load in loads["kernel"]] == [(False, True, True, False), None]


@pytest.mark.parametrize(
    ("load", "line"),
    [
        (MaskedLoad(16, 4, None), "vmovups zmm0, zmmword ptr gs:[rdi]"),
        (MaskedLoad(16, 4, None), "vpermps zmm0 {k1} {z}, zmm1, zmmword ptr gs:[rdi]"),
        (MaskedLoad(16, 4, None), "vmovsd xmm0, qword ptr gs:[rdi]"),
        (MaskedLoad(16, 4, HALF), "vmovups zmm0, zmmword ptr fs:[rdi]"),
        (MaskedLoad(8, 4, HALF[4:12]), "vaddps ymm0, ymm1, ymmword ptr fs:[rdi]"),
    ],
)
def test_what_reads_too_much_is_seen(load: MaskedLoad, line: str) -> None:
    assert list(unmasked(["ret", line], [load], AVX512)) == [line]


@pytest.mark.parametrize(
    ("load", "line"),
    [
        (MaskedLoad(16, 4, None), "vmovups zmm0 {k1} {z}, zmmword ptr gs:[rdi]"),
        (MaskedLoad(16, 1, None), "vpmovzxbd zmm0 {k1} {z}, xmmword ptr gs:[rdi]"),
        (MaskedLoad(8, 4, None), "vmaskmovps ymm0, ymm1, ymmword ptr gs:[rdi]"),
        (MaskedLoad(16, 4, None), "vmovss xmm0, dword ptr gs:[rdi + 8]"),
        (MaskedLoad(16, 8, HALF), "vpcmpeqq k1, zmm0, zmmword ptr fs:[rdi]"),
        (MaskedLoad(16, 8, HALF), "vpcmpeqq k1 {k2}, zmm0, zmmword ptr fs:[rdi]"),
        (MaskedLoad(16, 4, None), "vmovups zmm0, zmmword ptr [rdi]"),
    ],
)
def test_what_reads_no_more_passes(load: MaskedLoad, line: str) -> None:
    assert not list(unmasked(["ret", line], [load], AVX512))


def test_an_instruction_more_without_marks_is_seen() -> None:
    plain = ["vmovups zmm3, zmmword ptr [rsi]", "vaddps zmm0, zmm3, zmmword ptr [rdi + 64]", "vmovups zmm1, zmm0"]
    marked = ["vmovups zmm5, zmmword ptr [rax]", "vmovups zmm4, zmmword ptr gs:[rdi + 64]", "vaddps zmm0, zmm5, zmm4"]
    assert list(unmarked(plain, marked)) == ["vaddps zmm, zmm, zmmword ptr [] (1 more without marks)"]
    assert not list(unmarked(marked[:2], marked))
