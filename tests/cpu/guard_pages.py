"""Random programs run with every buffer directly before, and directly behind, memory that must not be touched.

A fault ends the process, so tests run this in one of its own; the last line says which program it was. By hand:

    python -m tests.cpu.guard_pages convolutions 0 1000
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

import numpy as np

from glowtrain.backends.target import Target, target_names
from glowtrain.compiler.walk import arrive
from glowtrain.grad.reverse import pullback
from glowtrain.gradcheck.draw import ChoiceDraw
from glowtrain.graph import Graph, Input, Value
from glowtrain.memory.precision import RoundedFactors
from glowtrain.ops.convolution.convolution import Conv
from glowtrain.program.memory.plan import Plan
from glowtrain.program.program import Program
from glowtrain.stages import DEFAULT, Options
from glowtrain.types import Array, f32
from tests.cpu.cpu_kernels import runnable, same
from tests.cpu.native_program import Native, Pages
from tests.cpu.random_nests import Programs
from tests.program.random_graphs import RandomGraph

Drawn = tuple[Program, Mapping[str, Array]]
TARGETS = [Target.host(), *runnable(*target_names())]
"""Where nothing is masked or all is scalar there is little to find, but it costs little."""


def nest(seed: int) -> Drawn:
    """Loop nests of all kinds."""
    programs = Programs(ChoiceDraw(seed))
    return (program := programs.program()), programs.feeds(program)


def graph(seed: int) -> Drawn:
    """Graphs with gradients and state."""
    draw = RandomGraph(ChoiceDraw(seed))
    return arrive(draw.graph()).program, draw.feeds()


def convolution(seed: int, options: Options = DEFAULT) -> Drawn:
    """A convolution and its gradients: depthwise, in groups or neither, often with more padding than kernel."""
    integer = ChoiceDraw(seed).integer
    group = (1, 2, integer(1, 64))[integer(0, 2)]
    deep = group > 2 and integer(0, 2) > 0
    channels = group if deep else group * integer(1, max(1, 32 // group))
    made = channels * integer(1, 2) if deep else group * integer(1, max(1, 32 // group))
    kernel = (integer(1, 4), (1, 1, 2, 3, 5)[integer(0, 4)])
    dilations = (integer(1, 3), integer(1, 2))
    extents = tuple((k - 1) * d + integer(1, 24) for k, d in zip(kernel, dilations, strict=True))
    pads = tuple(integer(0, 4) for _ in range(4))
    strides = (integer(1, 2), (1, 1, 2)[integer(0, 2)])
    x = Input(f32[integer(1, 2), channels, *extents], "x")
    w = Input(f32[made, channels // group, *kernel], "w")
    conv = Conv(group=group, kernel_shape=kernel, dilations=dilations, pads=pads, strides=strides)
    return with_gradients(conv(x, w), x, w, seed, options)


def rounded(seed: int) -> Drawn:
    """The same with factors in bf16, where there are channels enough."""
    return convolution(seed, Options(precision=RoundedFactors()))


def reported(seed: int) -> Drawn:
    """Kernels 1 wide over channels of their own, with padding: LLVM 22.1 dropped masks of these on AVX-512."""
    x, w = Input(f32[1, 64, 9, 18 + seed], "x"), Input(f32[64, 1, 3, 1], "w")
    conv = Conv(group=64, kernel_shape=(3, 1), dilations=(2, 1), pads=(1, 3, 1, 3))
    return with_gradients(conv(x, w), x, w, seed)


def with_gradients(y: Value, x: Input, w: Input, seed: int, options: Options = DEFAULT) -> Drawn:
    """y and its gradients, with arguments."""
    g = Input(y.type, "g")
    dx, dw = pullback([y], [g], [x, w])
    assert dx is not None
    assert dw is not None
    random = np.random.default_rng(seed)
    feeds = {value.name: random.normal(size=value.shape).astype(np.float32) for value in (x, w, g)}
    return arrive(Graph((x, w, g), {"y": y, "dx": dx, "dw": dw}), options).program, feeds


KINDS: dict[str, Callable[[int], Drawn]] = {
    "nests": nest,
    "graphs": graph,
    "convolutions": convolution,
    "rounded": rounded,
    "reported": reported,
}


def run(kind: str, seed: int) -> None:
    """One program, in ordinary memory and then at the edges of pages: the same bits."""
    program, feeds = KINDS[kind](seed)
    target = TARGETS[seed % len(TARGETS)]
    print(f"{kind} {seed} for {target.name}", flush=True)
    native = Native(program, target, Plan(program, {}, 0, 0))
    expected = native.run(feeds)
    for at_end in (True, False):
        for found, wanted in zip(native.run(feeds, memory=Pages(native.sizes, at_end)), expected, strict=True):
            for name, array in wanted.items():
                assert np.all(same(found[name], array)), f"{name} of {kind} {seed} depends on where it lies"


if __name__ == "__main__":
    for number in range(int(sys.argv[2]), int(sys.argv[2]) + int(sys.argv[3])):
        run(sys.argv[1], number)
