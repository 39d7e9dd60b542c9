"""Speed of contractions of bytes with sums in i32, beside our own in f32 and ONNX Runtime's. By hand:

    python benchmarks/integer.py [NAME_PART ...] [--plans]

One core; least processor times of interleaved runs of warm buffers. The second operand is constant, as weights are.
``% peak`` is of what the processor does when it multiplies and adds in registers with the same instruction, and nothing
else. Other times are multiples of ours: with weights of seven bits, our own f32, and ONNX Runtime's
MatMulInteger or ConvInteger and QLinearMatMul or QLinearConv. Its sums saturate in 16 bits on processors without
instructions for four products, unless it is told to be exact (``session.x64quantprecision``; QLinearMatMul does even
then: 64 products 255 x 127 come out halved); ``loose`` is QLinear* without that.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx
import onnxruntime
from contraction import CHAINS, PEAK_TRIPS, aligned, chains, convolution, depthwise, matmul, products, reach
from onnx import TensorProto, helper, numpy_helper

from glowtrain.backends.cpu.contraction import Axis, Contraction, Operand, generate
from glowtrain.backends.cpu.contraction.dot import dot_of
from glowtrain.backends.llvm.text import LlvmFunction
from glowtrain.backends.llvm.toolchain import build
from glowtrain.backends.llvm.values import LlvmValue, vector
from glowtrain.backends.target import Target

CONVOLUTIONS = (
    (224, 3, 64, 7, 2), (56, 64, 64, 1, 1), (56, 64, 64, 3, 1), (56, 64, 256, 1, 1), (56, 256, 64, 1, 1),
    (28, 128, 128, 3, 1), (28, 128, 512, 1, 1), (28, 512, 128, 1, 1), (14, 256, 256, 3, 1), (14, 256, 1024, 1, 1),
    (7, 512, 512, 3, 1), (7, 2048, 512, 1, 1), (112, 32, 16, 1, 1), (56, 24, 144, 1, 1), (14, 96, 576, 1, 1),
    (7, 320, 1280, 1, 1),
)  # fmt: skip
"""Height and width, channels in and out, kernel, stride: of ResNet-50 and MobileNetV2."""
DEPTHWISE = ((112, 32, 1), (112, 96, 2), (56, 144, 1), (28, 192, 1), (14, 576, 1), (7, 960, 1))
OPSET = 21


@dataclass(frozen=True)
class Case:
    """A contraction in f32, how its image lies in memory, and the same as an ONNX graph."""

    name: str
    contraction: Contraction
    axes: tuple[Axis, ...]
    model: Callable[[str], onnx.ModelProto]

    def of_bytes(self, *, small: bool = False) -> Contraction:
        """The contraction of u8 and constant i8; ``small``: of seven bits."""
        operands = Operand("u8", self.axes), Operand("i8", constant=True, small=small)
        return replace(self.contraction, dtype="i32", operands=operands)


def cases() -> Iterator[Case]:
    """Square products, then convolutions."""
    for size in (64, 128, 256, 512, 1024):
        axes = Axis((1, 0, 0), 0, 0, size, size), Axis((0, 0, 1), 0, 0, size, 1)
        yield Case(f"gemm {size}", matmul(size, size, size), axes, lambda form, n=size: product_model(form, n))
    for h, i, o, k, s in CONVOLUTIONS:
        axes = image_axes(h, i, k, s, channel=4, taps=(5, 6))
        yield Case(
            f"conv {h}x{h}x{i}->{o} {k}x{k} s{s}", convolution("forward", 1, h, i, o, k, s), axes,
            lambda form, shape=(h, i, o, k, s, 1): convolution_model(form, *shape),
        )  # fmt: skip
    for h, c, s in DEPTHWISE:
        axes = image_axes(h, c, 3, s, channel=3, taps=(4, 5))
        yield Case(
            f"depthwise {h}x{h}x{c} 3x3 s{s}", depthwise("forward", 1, h, c, 3, s), axes,
            lambda form, shape=(h, c, c, 3, s, c): convolution_model(form, *shape),
        )  # fmt: skip


def image_axes(h: int, c: int, k: int, s: int, *, channel: int, taps: tuple[int, int]) -> tuple[Axis, ...]:
    """The axes of an image, channels last, in a convolution."""
    loops = 1 + max(*taps)

    def at(**places: int) -> tuple[int, ...]:
        return tuple(places.get(f"l{loop}", 0) for loop in range(loops))

    rows, columns = at(l1=s, **{f"l{taps[0]}": 1}), at(l2=s, **{f"l{taps[1]}": 1})
    return (
        Axis(at(l0=1), 0, 0, 1, h * h * c), Axis(rows, -(k // 2), 0, h, h * c), Axis(columns, -(k // 2), 0, h, c),
        Axis(at(**{f"l{channel}": 1}), 0, 0, c, 1),
    )  # fmt: skip


def constants(**arrays: np.ndarray) -> list[TensorProto]:
    """Arrays by name as ONNX constants."""
    return [numpy_helper.from_array(array, name) for name, array in arrays.items()]


def parameters(weight: np.ndarray) -> list[TensorProto]:
    """The constants of a quantized operator."""
    scale, zero, rng = np.float32(0.02), np.uint8(0), np.random.default_rng(1)
    return constants(
        w=rng.integers(-128, 128, weight.shape).astype(np.int8), sx=np.array(scale), zx=np.array(zero),
        sw=np.array(scale), zw=np.array(np.int8(0)), sy=np.array(scale * 9), zy=np.array(zero),
    )  # fmt: skip


def product_model(form: str, n: int) -> onnx.ModelProto:
    """MatMulInteger (``integer``) or QLinearMatMul (``quantized``) of square matrices."""
    if form == "integer":
        node, kind = helper.make_node("MatMulInteger", ["x", "w"], ["y"]), TensorProto.INT32
    else:
        node = helper.make_node("QLinearMatMul", ["x", "sx", "zx", "w", "sw", "zw", "sy", "zy"], ["y"])
        kind = TensorProto.UINT8
    return model(node, (n, n), (n, n), kind, parameters(np.empty((n, n))))


def convolution_model(form: str, h: int, i: int, o: int, k: int, s: int, group: int) -> onnx.ModelProto:
    """ConvInteger (``integer``) or QLinearConv (``quantized``), channels first."""
    y, attributes = (h + 2 * (k // 2) - k) // s + 1, {"pads": [k // 2] * 4, "strides": [s, s], "group": group}
    if form == "integer":
        node, kind = helper.make_node("ConvInteger", ["x", "w"], ["y"], **attributes), TensorProto.INT32
    else:
        inputs = ["x", "sx", "zx", "w", "sw", "zw", "sy", "zy"]
        node, kind = helper.make_node("QLinearConv", inputs, ["y"], **attributes), TensorProto.UINT8
    return model(node, (1, i, h, h), (1, o, y, y), kind, parameters(np.empty((o, i // group, k, k))))


def model(
    node: onnx.NodeProto, x: tuple[int, ...], y: tuple[int, ...], kind: int, weights: list[TensorProto]
) -> onnx.ModelProto:
    """A graph of one node, with those of the constants that it reads."""
    read = [tensor for tensor in weights if tensor.name in node.input]
    operand = helper.make_tensor_value_info("x", TensorProto.UINT8, x)
    graph = helper.make_graph([node], "g", [operand], [helper.make_tensor_value_info("y", kind, y)], read)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)


def session(made: onnx.ModelProto, exact: bool) -> Callable[[], None]:
    """One run of ONNX Runtime, input and output bound."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    if exact:
        options.add_session_config_entry("session.x64quantprecision", "1")
    run = onnxruntime.InferenceSession(made.SerializeToString(), options, ["CPUExecutionProvider"])
    (x,), (y,) = run.get_inputs(), run.get_outputs()
    image = np.random.default_rng(0).integers(0, 256, x.shape).astype(np.uint8)
    binding = run.io_binding()
    binding.bind_cpu_input("x", image)
    result = np.zeros(y.shape, np.int32 if "int32" in y.type else np.uint8)
    binding.bind_output("y", "cpu", 0, result.dtype, result.shape, result.ctypes.data)

    def once(keep: object = (image, result)) -> None:
        run.run_with_iobinding(binding)

    return once


def ours(contraction: Contraction, target: Target) -> tuple[Callable[[], None], str]:
    """One run of the generated function, and its plan."""
    kernel = generate(contraction, "contract", target)
    call = build(kernel.text, target, ["contract"]).function("contract", 6)
    arrays = [aligned(reach(contraction, x)) for x in "cab"]
    if contraction.operands is not None:
        arrays = [np.random.default_rng(0).integers(0, 127, array.shape).astype(np.uint8) for array in arrays]
        arrays[0] = aligned(reach(contraction, "c"))
    if kernel.packed is not None:
        packed = kernel.packed[1].apply(arrays[2].view(np.int8))
        arrays[2] = aligned(-(-packed.nbytes // 4)).view(np.uint8)
        arrays[2][: packed.nbytes] = packed
    arrays.append(aligned(kernel.workspace // 4 + 16))
    pointers = [array.ctypes.data for array in arrays]

    def run() -> None:
        call(*pointers, 0, kernel.work.tasks)
        arrays[0].flags  # noqa: B018  keeps the buffers alive

    return run, kernel.plan


def peak(target: Target) -> tuple[Callable[[], None], int]:
    """A function that does nothing but multiply and add u8 and i8 in registers, and how many products it does."""
    dot, width = dot_of(target, "u8", "i8"), target.width("i32")
    if dot is None:
        raise SystemExit(f"{target.name} has no instruction for products of bytes")
    lanes, word = vector("i32", width), dot.word(width)

    def step(f: LlvmFunction, x: LlvmValue, one: LlvmValue) -> LlvmValue:
        a, b = (f.cast("bitcast", value, word) for value in (x, one))
        return dot.product(f, a, b, one)

    return chains(target, lanes, step), PEAK_TRIPS * CHAINS * width * dot.group


def timings(runs: list[Callable[[], None]], rounds: int = 15) -> list[float]:
    """Least seconds of each, taken in turns."""
    counts = []
    for run in runs:
        run()
        run()
        counts.append(max(1, round(2e-3 / max(1e-7, timed(run, 1)))))
    found: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for run, count, times in zip(runs, counts, found, strict=True):
            times.append(timed(run, count) / count)
    return [min(times) for times in found]


def timed(run: Callable[[], None], count: int) -> float:
    """Seconds of the processor in so many runs."""
    start = time.thread_time()
    for _ in range(count):
        run()
    return time.thread_time() - start


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only cases whose name contains one of these")
    parser.add_argument("--plans", action="store_true", help="print how each was arranged")
    options = parser.parse_args()
    target = Target.host()
    titles = " ".join(f"{'ORT ' + n:>13s}" for n in ("integer", "quantized", "loose"))
    top, most = peak(target)
    print(f"{'case':34s} {'us':>9s} {'GMAC/s':>7s} {'% peak':>7s} {'7 bits':>7s} {'f32':>6s} {titles}")
    for case in cases():
        if options.names and not any(part in case.name for part in options.names):
            continue
        run, plan = ours(case.of_bytes(), target)
        theirs = [("integer", True), ("quantized", True), ("quantized", False)]
        runs = [run, ours(case.of_bytes(small=True), target)[0], ours(case.contraction, target)[0]]
        runs += [session(case.model(form), exact) for form, exact in theirs]
        mine, *others, bare = timings([*runs, top])
        ratios = " ".join(f"{other / mine:12.2f}x" for other in others[2:])
        work = products(case.contraction)
        share = 100 * work / mine / (most / bare)
        ours_too = f"{others[0] / mine:6.2f}x {others[1] / mine:5.2f}x"
        print(
            f"{case.name:34s} {1e6 * mine:9.1f} {1e-9 * work / mine:7.1f} {share:7.1f} {ours_too} {ratios}", flush=True
        )
        if options.plans:
            print(f"      {plan}")


if __name__ == "__main__":
    main()
