"""Instructions that multiply small numbers and add several neighbouring products to each lane: integers to i32,
exactly, and bf16 to f32.

A lane of an operand is a *word* of ``group`` neighbours along the sum. x86 multiplies pairs of i16 (``pmaddwd``) and,
with VNNI, groups of four u8 with four i8 (``vpdpbusd``); Arm groups of four bytes (``sdot``, ``udot``, ``usdot``). None
of these saturates. AVX2's products of u8 with i8 (``pmaddubsw``) do where the sum of two exceeds 16 bits, which cannot
be if the i8 are at most 64 in magnitude: weights of seven bits.

x86's ``dpbf16ps`` multiplies pairs of bf16 and adds the second product of each, rounds, and adds the first one and
rounds. A word is four elements of a group there (:data:`~glowtrain.backends.cpu.order.contraction.GROUP`): one
instruction adds the two even ones to one sum of the lane, another one the two odd ones to another.

Where an instruction wants the other signedness of the broadcast operand, its bytes are moved by 128 (the sign bit
flipped), and 128 times the sum of the other operand is taken from the sum at its start: arithmetic modulo 2 ** 32 makes
that exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from glowtrain.backends.llvm.text import LlvmFunction
from glowtrain.backends.llvm.values import LlvmType, LlvmValue, in_all_lanes, vector
from glowtrain.backends.target import Target
from glowtrain.errors import CodegenError

BYTES = frozenset({"i8", "u8"})
PAIRS = frozenset({"i8", "u8", "i16"})
SMALL = 64
"""Two products of u8 with numbers of at most this magnitude have a sum of 16 bits."""


@dataclass(frozen=True)
class Dot:
    """How products of two element types are summed: ``a`` is the operand that is the same in all lanes.

    ``element`` is the LLVM type of what is multiplied, ``group`` elements to a word of 32 bits; ``flip`` says that the
    sign bits of ``a`` are flipped; ``instruction`` is the LLVM intrinsic, whose operands change places if ``turned``,
    and which takes the sum as its first argument if ``adds``; ``second`` is one that adds pairs of its results.
    ``matrices``: it takes registers that hold matrices (see :mod:`.matrices.unit`). ``chains``: sums of a lane that the
    elements of a word go to in turns, an instruction for each.
    """

    group: int
    element: str
    a: str
    b: str
    instruction: str
    adds: bool
    turned: bool = False
    flip: bool = False
    second: str = ""
    matrices: bool = False
    chains: int = 1

    def word(self, width: int) -> LlvmType:
        """The LLVM type of what an instruction takes of a vector of words."""
        return vector(self.element, self.group // self.chains * width)

    @property
    def orders(self) -> tuple[tuple[int, ...], ...]:
        """For each chain, the elements of a word that its instruction takes, those first in memory that it adds
        last."""
        if self.chains == 1:
            return (tuple(range(self.group)),)
        return tuple(tuple(reversed(range(chain, self.group, self.chains))) for chain in range(self.chains))

    def product(self, f: LlvmFunction, a: LlvmValue, b: LlvmValue, total: LlvmValue) -> LlvmValue:
        """``total`` and the products of two vectors of words."""
        x, y = (b, a) if self.turned else (a, b)
        lanes = total.type
        if a.type is not b.type or a.type is not self.word(lanes.width):
            raise CodegenError(f"function {f.name}: {self.instruction} of {a.type} and {b.type} for sums of {lanes}")
        if self.adds:
            return f.call(self.instruction, lanes, total, x, y)
        half = vector("i16", 2 * lanes.width)
        result = f.call(self.instruction, half if self.second else lanes, x, y)
        if self.second:
            result = f.call(self.second, lanes, result, in_all_lanes("1", half))
        return f.op("add", total, result)

    @property
    def correction(self) -> int:
        """What the sum of ``b`` is multiplied by at the start, because bytes of ``a`` are moved."""
        if not self.flip:
            return 0
        return 128 if self.a == "u8" else -128


def dot_of(target: Target, a: str, b: str, *, small: bool = False) -> Dot | None:
    """The best instruction of a target for these element types; ``None`` if lanes have to be multiplied one by one.

    ``small``: no number of ``b`` exceeds :data:`SMALL` in magnitude.
    """
    if {a, b} == {"bf16"}:
        wide = "avx512bf16" in target.families and target.vector_bits == 512
        return Dot(4, "bfloat", a, b, "llvm.x86.avx512bf16.dpbf16ps.512", adds=True, chains=2) if wide else None
    if {a, b} <= BYTES:
        for families, made in ((("avx512vnni", "avxvnni"), _vnni), (("dotprod",), _arm)):
            if target.families & set(families):
                return made(target, a, b)
    if a in BYTES and b == "i8" and small and "avx2" in target.families and target.vector_bits == 256:
        names = "llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmadd.wd"
        return Dot(4, "i8", a, b, names[0], adds=False, flip=a == b, second=names[1])
    pairs = _PAIR_PRODUCTS.get(target.vector_bits)
    if pairs and {a, b} <= PAIRS and target.families & pairs[0]:
        return Dot(2, "i16", a, b, pairs[1], adds=False)
    return None


_PAIR_PRODUCTS = {
    128: (frozenset({"sse2", "avx2"}), "llvm.x86.sse2.pmadd.wd"),
    256: (frozenset({"avx2"}), "llvm.x86.avx2.pmadd.wd"),
    512: (frozenset({"avx512f"}), "llvm.x86.avx512.pmaddw.d.512"),
}


def _vnni(target: Target, a: str, b: str) -> Dot:
    """u8 first, i8 second."""
    flip = a == b
    unsigned = (a == "u8") is not flip
    name = f"llvm.x86.avx512.vpdpbusd.{target.vector_bits}"
    return Dot(4, "i8", a, b, name, adds=True, turned=not unsigned, flip=flip)


def _arm(target: Target, a: str, b: str) -> Dot:
    """Both of one signedness, or with i8mm u8 first and i8 second."""
    form: Callable[[str], str] = "llvm.aarch64.neon.{}.v4i32.v16i8".format
    if a == b:
        return Dot(4, "i8", a, b, form("udot" if a == "u8" else "sdot"), adds=True)
    if "i8mm" in target.families:
        return Dot(4, "i8", a, b, form("usdot"), adds=True, turned=a != "u8")
    return Dot(4, "i8", a, b, form("udot" if b == "u8" else "sdot"), adds=True, flip=True)
