"""Do instructions that this processor lacks give the same bits? Their machine code runs in an emulator. By hand:

    apt-get install bochs bochs-term binutils
    python benchmarks/emulated.py [FILE.onnx ...] [--targets avx512vnni] [--cases gemm depthwise] [--output FILE]

Bochs emulates whole PCs, some of them with AVX-512 and VNNI (``vpdpbusd``). Here one runs compiled code with its
constants and inputs, and no operating system:

contractions  those of ``integer.py`` of at most ``--most`` products, for all signs of bytes, random and extreme (255 x
              -128 everywhere): sums that differ from NumPy's
roundings     QuantizeLinear of all ties and of what fits no integer, to both types of bytes, beside the interpreter
models        quantized models of Fashion-MNIST's images, such as ``quantization.py`` makes, beside themselves compiled
              for this processor (``host``) and without vectors (``scalar``): elements of scores and of all results of
              QuantizeLinear whose bits differ, where each layer is given the same integers, and in the whole network
planted       the first case and the first model with an error, which the comparison has to see: one bit of one weight
              (of each layer); products of 16 bits in place of ``vpdpbusd``; a processor that lacks it

Exit code 1 for a bit that differs or a planted error that is not seen. Bochs 2.7 knows ``vpdpbusd`` of 256 bits
without AVX-512, too, but has no processor with that; newer ones do: ``--bochs PATH --targets avxvnni``.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from contraction import products
from emulated_model import Change, Model, unchanged
from emulated_pc import PROCESSORS, Fault, Job, Pc, encodings
from integer import cases
from peers.fashion import Arrays, Engine, Run, compiled, exposed

import glowtrain as gt
from glowtrain.backends.cpu.contraction import Contraction, Operand, OperandAccess, generate
from glowtrain.backends.llvm.toolchain import compile_text
from glowtrain.backends.target import Target
from glowtrain.graph import Template, Value, constant
from glowtrain.ops.quantized.convert import QuantizeLinear

DOT = "vpdpbusd"
SIGNS = (("u8", "i8"), ("i8", "i8"), ("u8", "u8"), ("i8", "u8"))
FILLS = (("random", "random"), ("extreme", "extreme"), ("high", "low"), ("high", "high"), ("low", "low"))
UNTOUCHED = 0x5A5A5A5A
BESIDE = ("host", "scalar")
RESTS = (32 + 16 + 15, 32 + 16 + 1)
"""What roundings leave over after packs of 64: two vectors, one, and many lanes of one or a single one."""
FEW = 2
"""Images that suffice to see an error."""


def bit_flipped(data: bytes) -> bytes:
    """One bit in the middle is another one."""
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def of_pairs(code: bytes, folder: Path) -> bytes:
    """An object with ``vpdpwssd``, products of pairs of 16 bits whose encoding differs in one byte, for all ``DOT``."""
    for one in set(encodings(code, DOT, folder)):
        at = {0x62: 4, 0xC4: 3}[one[0]]
        code = code.replace(one, one[:at] + b"\x52" + one[at + 1 :])
    return code


@dataclass
class Count:
    """Elements that were compared, and those whose bits differ."""

    all: int = 0
    different: int = 0

    def add(self, found: np.ndarray, wanted: np.ndarray) -> None:
        """Count two arrays of one type."""
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
        bits = f"u{wanted.itemsize}"
        self.all += wanted.size
        self.different += int(np.count_nonzero(found.view(bits) != np.ascontiguousarray(wanted).view(bits)))

    def join(self, other: Count) -> None:
        """Count those of another comparison as well."""
        self.all, self.different = self.all + other.all, self.different + other.different

    def __str__(self) -> str:
        return f"{self.different:,} of {self.all:,}"


def compared(found: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> Count:
    """Elements of all arrays."""
    count = Count()
    for one, other in zip(found, wanted, strict=True):
        count.add(one, other)
    return count


def filled(dtype: str, count: int, how: str, rng: np.random.Generator) -> np.ndarray:
    """Bytes of all sizes, or extreme ones."""
    low, high = (0, 255) if dtype == "u8" else (-128, 127)
    choices = {"random": [*range(low, high + 1)], "extreme": [low, 0, high], "low": [low], "high": [high]}[how]
    return np.array(rng.choice(choices, count), np.uint8 if dtype == "u8" else np.int8)


def places(access: OperandAccess, extents: Sequence[int]) -> np.ndarray:
    """Addresses at all indices; of extent 1 along loops that do not move them."""
    grid = np.ogrid[tuple(slice(extent) for extent in extents)]
    result = np.full([1] * len(extents), access.offset)
    for stride, index in zip(access.strides, grid, strict=True):
        result = result + stride * index if stride else result
    return result


def gathered(operand: Operand, access: OperandAccess, extents: Sequence[int], flat: np.ndarray) -> np.ndarray:
    """An operand at the indices of the loops that move it, with what is read outside of it."""
    at, there = places(access, extents), np.full([1] * len(extents), True)
    for axis in operand.axes:
        subscript = places(OperandAccess(axis.offset, axis.coefficients), extents)
        there = there & (subscript >= axis.low) & (subscript < axis.high)
    return np.where(there, flat[np.where(there, at, 0)], operand.fill).astype(np.float64)


def exact(contraction: Contraction, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """C; f64 holds such sums exactly."""
    assert contraction.operands is not None
    terms: list[Any] = []
    for operand, access, flat in zip(contraction.operands, (contraction.a, contraction.b), (a, b), strict=True):
        values = gathered(operand, access, contraction.extents, flat)
        terms += [values.squeeze(), [loop for loop, extent in enumerate(values.shape) if extent > 1]]
    at = places(contraction.c, contraction.extents)
    sums = np.einsum(*terms, [loop for loop, extent in enumerate(at.shape) if extent > 1], optimize=True)
    c = np.full(int(at.max()) + 1, UNTOUCHED, np.int32)
    c[at.squeeze()] = sums.astype(np.int64)
    return c


@dataclass(frozen=True)
class Product:
    """A contraction with numbers for it, and what they give."""

    contraction: Contraction
    inputs: list[list[np.ndarray]] = field(repr=False)
    wanted: list[np.ndarray] = field(repr=False)

    @classmethod
    def of(cls, contraction: Contraction) -> Product:
        assert contraction.operands is not None
        a, b = contraction.operands
        last = sum((axis.high - 1) * axis.stride for axis in a.axes)
        sizes = last + 1, int(places(contraction.b, contraction.extents).max()) + 1
        types, rng = (a.dtype, b.dtype), np.random.default_rng(0)
        inputs = [[filled(*side, rng) for side in zip(types, sizes, how, strict=True)] for how in FILLS]
        return cls(contraction, inputs, [exact(contraction, *sides) for sides in inputs])

    def job(self, target: Target, folder: Path, code: Change = unchanged, weight: Change = unchanged) -> Job:
        """The generated function called with all numbers, with something changed in its code or weights."""
        kernel = generate(self.contraction, "contract", target)
        job = Job(code(compile_text(kernel.text, target)), "contract", folder)
        workspace = job.put(np.zeros(kernel.workspace + 64, np.uint8))
        for (a, b), wanted in zip(self.inputs, self.wanted, strict=True):
            operands = [a, np.frombuffer(weight(b.tobytes()), b.dtype)]
            if kernel.packed is not None:
                at, packing = kernel.packed
                operands[at] = packing.apply(operands[at])
            c = job.result(np.full_like(wanted, UNTOUCHED))
            job.call([c.at, *map(job.put, operands), workspace, 0, kernel.work.tasks], [c])
        return job


def contractions(most: int, parts: Sequence[str]) -> Iterator[tuple[str, list[Contraction]]]:
    """The cases of ``integer.py`` of at most so many products, for all signs."""
    for case in cases():
        if products(case.contraction) <= most and any(part in case.name for part in parts):
            made = case.of_bytes()
            assert made.operands is not None
            a, b = made.operands
            yield case.name, [replace(made, operands=(replace(a, dtype=x), replace(b, dtype=y))) for x, y in SIGNS]


def product_line(case: str, made: Sequence[Contraction], target: Target, pc: Pc) -> tuple[bool, str]:
    """One case with all signs and numbers."""
    count, dots = Count(), list[int]()
    for contraction in made:
        product = Product.of(contraction)
        job = product.job(target, pc.folder)
        count.join(compared(pc.run(job), product.wanted))
        dots.append(len(encodings(job.code, DOT, pc.folder)))
    fine = not count.different and all(dots)
    return fine, f"{target.name} {case}: {count} sums differ; {sum(dots)} {DOT} in {len(dots)} functions"


def emulated(path: Path, target: Target, pc: Pc) -> Run:
    """A model as a function that runs in the emulator."""

    def run(feed: Arrays) -> Arrays:
        model = Model.of(gt.load(path), target, feed)
        job = model.job(pc.folder)
        if not encodings(job.code, DOT, pc.folder):
            raise ValueError(f"{path.stem} has no {DOT} for {target.name}: is it quantized?")
        return dict(zip(model.artifact.outputs, pc.run(job), strict=True))

    return run


def model_lines(path: Path, target: Target, pc: Pc, images: np.ndarray) -> Iterator[tuple[bool, str]]:
    """A line for each of the targets that a model is compared with."""
    batch = {"x": images}
    ours = Engine.made(path, pc.folder, partial(emulated, target=target, pc=pc))
    whole = ours.whole(batch)
    given = {**batch, **{f"given_{name}": array for name, array in whole.items()}}
    parts = ours.parts(given)
    for name in BESIDE:
        other = Engine.made(path, pc.folder, partial(compiled, target=name))
        network, layers = other.whole(batch), other.parts(given)
        single, everything = named(parts, layers), named(whole, network)
        what = f"layers {single} differ, network {everything}"
        fine = single.different == everything.different == 0
        yield fine, f"{target.name} {path.stem} beside {name}, {len(images)} images: {what}"


def named(found: Arrays, wanted: Arrays) -> Count:
    """Elements of all arrays."""
    return compared([found[name] for name in wanted], list(wanted.values()))


def rounding_lines(target: Target, pc: Pc) -> Iterator[tuple[bool, str]]:
    """A line for each type of bytes: QuantizeLinear of all ties, and of what fits no integer."""
    for dtype, zeros in ((gt.types.u8, (0, 3, 128, 255)), (gt.types.i8, (-128, -5, 0, 127))):
        count = Count()
        for zero, rest in itertools.product(zeros, RESTS):
            x = hard_numbers(zero)[: 65 * 64 + rest]
            rounding = quantizer(len(x), np.array(zero, dtype.numpy))
            (found,) = pc.run(Model.of(rounding, target, {"x": x}).job(pc.folder))
            count.add(found, gt.compile(rounding, "interpreter")({"x": x})["output"])
        yield not count.different, f"{target.name} roundings to {dtype}: {count} differ"


def hard_numbers(zero: int) -> np.ndarray:
    """Numbers around both ends and ties between, and what fits no integer: 66 times 64."""
    near = np.arange(-520.0, 520.0, 0.25) - zero
    odd = [np.nan, np.inf, -np.inf, 3e38, -3e38, 2.0**31, -(2.0**31), 2.0**30, 40000, -40000, 1e-40, -0.0, 0.49999997]
    return np.array([*near, *odd * 5], np.float32)[: 66 * 64]


def quantizer(count: int, zero: np.ndarray) -> Template:
    """QuantizeLinear with scale 1."""

    @gt.model(x=gt.f32[count])
    def rounding(x: Value) -> Value:
        result: Value = QuantizeLinear()(x, constant(np.float32(1)), constant(zero))
        return result

    return rounding


def planted(name: str, jobs: Callable[..., Job], pc: Pc, lacking: str) -> Iterator[tuple[bool, str]]:
    """A line for each error that is planted in a job."""
    right = pc.run(jobs())
    wrong = {
        "one bit of weights": jobs(weight=bit_flipped),
        "vpdpwssd": jobs(code=partial(of_pairs, folder=pc.folder)),
    }
    for what, job in wrong.items():
        count = compared(pc.run(job), right)
        yield count.different > 0, f"planted in {name}: {what}: {count} elements differ"
    job = jobs()
    try:
        replace(pc, processor=lacking).run(job)
        yield False, f"planted in {name}: {lacking} without {DOT}: no fault"
    except Fault as fault:
        there = fault.code.startswith(tuple(encodings(job.code, DOT, pc.folder)))
        yield there, f"planted in {name}: {lacking} without {DOT}: stops at {DOT if there else fault}"


def lines(chosen: argparse.Namespace, target: Target, pc: Pc) -> Iterator[tuple[bool, str]]:
    """All comparisons of a target."""
    lacking = PROCESSORS[target.name][1]
    made = list(contractions(chosen.most, chosen.cases))
    for case, signs in made:
        yield product_line(case, signs, target, pc)
    for case, signs in made[:1]:
        yield from planted(case, partial(Product.of(signs[0]).job, target, pc.folder), pc, lacking)
    yield from rounding_lines(target, pc)
    for number, file in enumerate(chosen.files):
        held = gt.data.load("fashion-mnist").valid
        assert held is not None
        yield from model_lines(file, target, pc, held["x"][: chosen.examples])
        if not number:
            model = Model.of(gt.load(exposed(file, pc.folder)), target, {"x": held["x"][:FEW]})
            yield from planted(file.stem, partial(model.job, pc.folder), pc, lacking)


def told_faults(compared_: Iterator[tuple[bool, str]]) -> Iterator[tuple[bool, str]]:
    """The lines, and one for a fault that ends them."""
    try:
        yield from compared_
    except Fault as fault:
        yield False, str(fault)


def main() -> int:
    """Print a line for each comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--targets", nargs="+", default=["avx512vnni"], choices=list(PROCESSORS))
    parser.add_argument("--cases", nargs="+", default=[""], help="only cases whose name contains one of these")
    parser.add_argument("--most", type=int, default=150_000_000, help="multiply-adds of a case")
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--bochs", default="bochs-bin")
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    told, fine = [], True
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen.targets:
            pc, start = Pc(chosen.bochs, PROCESSORS[name][0], Path(folder)), time.perf_counter()
            for right, line in told_faults(lines(chosen, Target.named(name), pc)):
                fine &= right
                told.append(f"{'ok  ' if right else 'FAIL'} {line}")
                print(f"{told[-1]} ({time.perf_counter() - start:.1f} s)", flush=True)
                start = time.perf_counter()
    if not told:
        parser.error(f"no case is called {' or '.join(chosen.cases)}, and there is no file (files come first)")
    if chosen.output:
        chosen.output.write_text("\n".join(told) + "\n")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
