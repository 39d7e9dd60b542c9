"""Speed of generated contractions, as a percentage of the multiply-add peak measured next to each run. By hand:

    python benchmarks/contraction.py [NAME_PART ...] [--plans]

One core; minima over many short batches. Operands are warm (the same buffers again and again); packing counts in the
time. Products that zero padding drops are not counted as work.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator

import numpy as np

from glowtrain.backends.cpu.contraction import Contraction, EpilogueClip, OperandAccess, generate
from glowtrain.backends.llvm.text import LlvmFunction
from glowtrain.backends.llvm.toolchain import build, compile_text
from glowtrain.backends.llvm.values import LlvmType, LlvmValue, pointer, vector
from glowtrain.backends.target import Target

PEAK_TRIPS = 20000
CHAINS = 12
"""Values that are in flight: more than the latency of any instruction."""
LINE = 16
"""Floats of a cache line."""
CONVOLUTIONS = (
    (32, 32, 16, 16, 3, 1), (32, 16, 32, 32, 3, 1), (32, 8, 64, 64, 3, 1), (32, 32, 16, 32, 3, 2),
    (32, 16, 32, 64, 3, 2), (32, 32, 16, 32, 1, 2), (8, 48, 16, 96, 1, 1), (8, 24, 96, 24, 1, 1),
    (8, 24, 24, 144, 1, 1), (64, 28, 1, 32, 3, 1), (32, 32, 3, 16, 3, 1), (1, 14, 256, 256, 3, 1),
)  # fmt: skip
"""Batch, height and width, channels in and out, kernel, stride: ResNet-20, MobileNetV2, first layers, ResNet-50."""


def matmul(m: int, n: int, k: int, form: str = "NN") -> Contraction:
    """C[m, n] = A B, a T where the operand is stored transposed."""
    a = (k, 0, 1) if form[0] == "N" else (1, 0, m)
    b = (0, 1, n) if form[1] == "N" else (0, k, 1)
    return Contraction(
        ("m", "n", "k"), (m, n, k), OperandAccess(0, (n, 1, 0)), OperandAccess(0, a), OperandAccess(0, b)
    )


def batched(batch: int, m: int, n: int, k: int, form: str) -> Contraction:
    """As many independent products as ``batch``, each operand one after another."""
    one = matmul(m, n, k, form)
    operands = zip((m * n, m * k, n * k), (one.c, one.a, one.b), strict=True)
    c, a, b = (OperandAccess(0, (size, *access.strides)) for size, access in operands)
    return Contraction(("h", *one.names), (batch, m, n, k), c, a, b)


def convolution(kind: str, n: int, h: int, i: int, o: int, k: int, stride: int = 1) -> Contraction:
    """``forward`` or ``weights`` of a padded square convolution; images channels last, weights [kh, kw, i, o]."""
    pad, y = k // 2, (h + 2 * (k // 2) - k) // stride + 1
    s = stride
    image = OperandAccess(-pad * (h * i + i), (h * h * i, s * h * i, s * i, 0, 1, h * i, i))
    weights, result = (
        OperandAccess(0, (0, 0, 0, 1, o, k * i * o, i * o)),
        OperandAccess(0, (y * y * o, y * o, o, 1, 0, 0, 0)),
    )
    clips = EpilogueClip((0, s, 0, 0, 0, 1, 0), -pad, h), EpilogueClip((0, 0, s, 0, 0, 0, 1), -pad, h)
    c, b = (result, weights) if kind == "forward" else (weights, result)
    return Contraction(("n", "y", "x", "o", "i", "p", "q"), (n, y, y, o, i, k, k), c, image, b, clips)


def data_gradient(n: int, h: int, i: int, o: int, k: int, stride: int = 1) -> list[Contraction]:
    """The gradient of the image: one contraction for each of the stride's phases, weights as the forward has them."""
    places = [(u, v) for u in range(stride) for v in range(stride)]
    return [
        _phase(n, h, i, o, k, stride, u, v) for u, v in places if max((u + k // 2) % stride, (v + k // 2) % stride) < k
    ]


def _phase(n: int, h: int, i: int, o: int, k: int, s: int, u: int, v: int) -> Contraction:
    """Rows ``s*y + u - pad`` of dX, for which the taps are ``kh = u % s + s*p`` and the rows of dY are ``y' - p``."""
    pad, out = k // 2, (h + 2 * (k // 2) - k) // s + 1
    tap_y, tap_x = (u + pad) % s, (v + pad) % s
    taps_y, taps_x = -(-(k - tap_y) // s), -(-(k - tap_x) // s)
    from_y, from_x = (u + pad) // s, (v + pad) // s
    rows, columns = -(-(h - u) // s), -(-(h - v) // s)
    c = OperandAccess(u * h * i + v * i, (h * h * i, s * h * i, s * i, 1, 0, 0, 0))
    a = OperandAccess((from_y * out + from_x) * o, (out * out * o, out * o, o, 0, 1, -out * o, -o))
    b = OperandAccess((tap_y * k + tap_x) * i * o, (0, 0, 0, o, 1, s * k * i * o, s * i * o))
    clips = EpilogueClip((0, 1, 0, 0, 0, -1, 0), from_y, out), EpilogueClip((0, 0, 1, 0, 0, 0, -1), from_x, out)
    return Contraction(("n", "y", "x", "i", "o", "p", "q"), (n, rows, columns, i, o, taps_y, taps_x), c, a, b, clips)


def depthwise(kind: str, n: int, h: int, c: int, k: int, stride: int = 1) -> Contraction:
    """``forward`` or ``weights`` of a padded convolution of each channel by itself, channels last."""
    pad, s, y = k // 2, stride, (h - 1) // stride + 1
    image = OperandAccess(-pad * (h * c + c), (h * h * c, s * h * c, s * c, 1, h * c, c))
    weights, result = OperandAccess(0, (0, 0, 0, 1, k * c, c)), OperandAccess(0, (y * y * c, y * c, c, 1, 0, 0))
    clips = EpilogueClip((0, s, 0, 0, 1, 0), -pad, h), EpilogueClip((0, 0, s, 0, 0, 1), -pad, h)
    out, b = (result, weights) if kind == "forward" else (weights, result)
    return Contraction(("n", "y", "x", "c", "p", "q"), (n, y, y, c, k, k), out, image, b, clips)


def cases() -> Iterator[tuple[str, list[Contraction]]]:
    """Name and contractions, run one after the other."""
    for size in (64, 128, 256, 512, 1024):
        for form in ("NN", "NT", "TN"):
            yield f"gemm {size} {form}", [matmul(size, size, size, form)]
    for m, n, k in ((64, 512, 784), (64, 512, 512), (64, 10, 512), (768, 384, 128), (768, 128, 512), (32, 1024, 256)):
        for form, shape in (("NN", (m, n, k)), ("NT", (m, k, n)), ("TN", (k, n, m))):
            yield f"matmul {'x'.join(map(str, shape))} {form}", [matmul(*shape, form)]
    yield "attention QK 64x65x65x32", [batched(64, 65, 65, 32, "NT")]
    yield "attention PV 64x128x32x128", [batched(64, 128, 32, 128, "NN")]
    for n, h, i, o, k, s in CONVOLUTIONS:
        label = f"conv {n}x{h}x{h}x{i}->{o} {k}x{k} s{s}"
        yield f"{label} forward", [convolution("forward", n, h, i, o, k, s)]
        yield f"{label} data", data_gradient(n, h, i, o, k, s)
        yield f"{label} weights", [convolution("weights", n, h, i, o, k, s)]
    for n, h, c, s in ((8, 48, 96, 1), (8, 24, 144, 1), (8, 6, 576, 1), (8, 48, 96, 2)):
        for kind in ("forward", "weights"):
            yield f"depthwise {n}x{h}x{h}x{c} 3x3 s{s} {kind}", [depthwise(kind, n, h, c, 3, s)]
    yield "matvec 1x1024x1024", [matmul(1, 1024, 1024)]
    yield "matvec 1024x1x1024", [matmul(1024, 1, 1024)]
    yield "dot 4096", [matmul(1, 1, 4096)]
    yield "outer 512x512", [matmul(512, 512, 1)]


def products(contraction: Contraction) -> int:
    """Multiply-adds that no clip drops; each clip here joins one output and one reduction loop, apart from the
    others.
    """
    total, loops = 1.0, np.prod(contraction.extents, dtype=np.int64)
    for clip in contraction.clips:
        moved = [loop for loop, factor in enumerate(clip.coefficients) if factor]
        places = np.full([contraction.extents[loop] for loop in moved], clip.offset)
        for axis, loop in zip(np.indices(places.shape), moved, strict=True):
            places += clip.coefficients[loop] * axis
        total *= float(np.mean((places >= 0) & (places < clip.extent)))
    return round(total * int(loops))


def reach(contraction: Contraction, operand: str) -> int:
    """Elements of a buffer that holds everything an operand touches."""
    access: OperandAccess = getattr(contraction, operand)
    spans = [max(0, s) * (e - 1) for s, e in zip(access.strides, contraction.extents, strict=True)]
    return max(0, access.offset) + sum(spans) + 64


def peak(target: Target) -> Callable[[], None]:
    """A function that does ``PEAK_TRIPS * CHAINS`` multiply-adds of vectors held in registers."""

    def multiply_add(f: LlvmFunction, x: LlvmValue, one: LlvmValue) -> LlvmValue:
        return f.intrinsic("fma", x, one, one)

    return chains(target, vector("float", target.width("f32")), multiply_add)


def chains(
    target: Target, kind: LlvmType, step: Callable[[LlvmFunction, LlvmValue, LlvmValue], LlvmValue]
) -> Callable[[], None]:
    """A function that takes ``CHAINS`` values of a type ``PEAK_TRIPS`` times through a step, which reads one more."""
    f = LlvmFunction("peak", [("ptr", "out")])
    places = [f.address(pointer("%out"), LINE * at, 4) for at in range(CHAINS)]
    first, *_ = started = [f.load(kind, place, 4) for place in places]
    with f.loop(PEAK_TRIPS, started) as loop:
        loop.next = [step(f, x, first) for x in loop.carried]
    for place, value in zip(places, loop.results, strict=True):
        f.store(value, place, 4)
    out = aligned(CHAINS * LINE)
    function = build(f.finish(), target, ["peak"]).function("peak", 1)
    return lambda: function(out.ctypes.data)


def aligned(elements: int) -> np.ndarray:
    """Random floats from a cache line on."""
    raw = np.zeros(elements + LINE, np.float32)
    start = (-raw.ctypes.data // 4) % LINE
    raw[:] = np.random.default_rng(0).standard_normal(len(raw)) * 0.1
    return raw[start : start + elements]


def runner(contractions: list[Contraction], target: Target) -> tuple[Callable[[], None], float, list[str]]:
    """What runs them all, the milliseconds it took to generate and compile, and their plans."""
    start = time.perf_counter()
    kernels = [generate(contraction, "contract", target) for contraction in contractions]
    for kernel in kernels:
        compile_text(kernel.text, target)
    spent = 1e3 * (time.perf_counter() - start)
    calls = [build(kernel.text, target, ["contract"]).function("contract", 6) for kernel in kernels]
    arrays = [aligned(max(reach(contraction, x) for contraction in contractions)) for x in "cab"]
    arrays.append(aligned(max(kernel.workspace for kernel in kernels) // 4 + 16))
    pointers = [array.ctypes.data for array in arrays]

    def run() -> None:
        for call, kernel in zip(calls, kernels, strict=True):
            call(*pointers, 0, kernel.work.tasks)
        arrays[0].flags  # noqa: B018  keeps the buffers alive

    return run, spent, [kernel.plan for kernel in kernels]


def seconds(run: Callable[[], None], target: Callable[[], None], width: int) -> tuple[float, float]:
    """Least time of one run, and the peak's multiply-adds per second around it."""
    run()
    count, best, top = 1, float("inf"), 0.0
    while timed(run, count) < 1e-3:
        count *= 2
    for _ in range(25):
        best = min(best, timed(run, count) / count)
        top = max(top, *(PEAK_TRIPS * CHAINS * width / timed(target, 1) for _ in range(4)))
    return best, top


def timed(run: Callable[[], None], count: int) -> float:
    """Seconds of so many runs."""
    start = time.perf_counter()
    for _ in range(count):
        run()
    return time.perf_counter() - start


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only cases whose name contains one of these")
    parser.add_argument("--plans", action="store_true", help="print how each was arranged")
    options = parser.parse_args()
    target = Target.host()
    top = peak(target)
    print(f"{'case':44s} {'% peak':>6s} {'GFLOP/s':>8s} {'us':>9s} {'compile ms':>10s}")
    for name, contractions in cases():
        if options.names and not any(part in name for part in options.names):
            continue
        run, spent, plans = runner(contractions, target)
        best, rate = seconds(run, top, target.width("f32"))
        work = sum(map(products, contractions))
        print(
            f"{name:44s} {100 * work / best / rate:6.1f} {2e-9 * work / best:8.1f} {1e6 * best:9.1f} {spent:10.1f}",
            flush=True,
        )
        for plan in plans if options.plans else []:
            print(f"      {plan}")


if __name__ == "__main__":
    main()
