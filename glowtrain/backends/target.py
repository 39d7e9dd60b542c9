"""What code generation must know of a processor, as data.

A target says how wide vectors are, how many registers there are and which instructions may be asked for. LLVM ends the
process on an intrinsic that a processor lacks, so nothing may be emitted that a target does not allow.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace

from glowtrain.backends.llvm import host
from glowtrain.backends.permission import permitted_matrices
from glowtrain.errors import CodegenError

COMPUTE_BITS: Mapping[str, int] = {
    "f64": 64, "f32": 32, "f16": 32, "bf16": 32, "i64": 64, "i32": 32, "i16": 16, "i8": 8,
    "u64": 64, "u32": 32, "u16": 16, "u8": 8, "bool": 8,
    "f8e4m3fn": 8, "f8e4m3fnuz": 8, "f8e5m2": 8, "f8e5m2fnuz": 8, "f8e8m0": 8, "f6e2m3": 8, "f6e3m2": 8, "f4e2m1": 8,
    "i4": 8, "u4": 8, "i2": 8, "u2": 8,
}  # fmt: skip
"""Bits of a lane while it is computed with: half precision is computed in f32, smaller types are only moved."""

MATRICES = "amx-int8"
"""The family of instructions on registers that hold matrices, which a process must ask the system for."""
_FAMILIES = frozenset(
    [MATRICES, "avx512vnni", "avxvnni", "avx512bf16", "avx2", "avx512f", "sse2", "dotprod", "i8mm", "bf16"]
)

_CACHES = 32 << 10, 512 << 10
"""Bytes of L1d and L2: those of Zen 2 and 3, and no more than most present cores have."""
_SERVER_CACHES = 48 << 10, 1 << 20
"""Of processors with AVX-512: 48 KiB from Ice Lake on, and 1 MiB or more on servers."""
_SMALL_CACHES = 16 << 10, 16 << 10
"""Of microcontrollers: 16 KiB is usual for a Cortex-M7; others have none, and none has a second level."""
_ARCHITECTURES: Mapping[str, tuple[str, ...]] = {
    "x86": ("x86_64", "amd64"), "aarch64": ("aarch64", "arm64"), "arm": ("arm", "thumb"), "riscv": ("riscv",),
    "wasm": ("wasm",),
}  # fmt: skip
"""What triples of an architecture begin with."""
LINE, WORD = 64, 8
"""Bytes of a line of the cache, and of the largest elements."""


@dataclass(frozen=True)
class Target:
    """One processor, or one way to use it.

    ``features`` is LLVM's comma-separated list (``+fma,-avx512f``); ``vector_bits`` is 0 where only scalar code is
    wanted; ``masked`` says whether masked loads and stores are cheap (elsewhere a scalar tail loop is better);
    ``has_half`` whether conversions between f16 and f32 are instructions; ``has_rounding`` whether rounding to
    integers (floor, ceil) is; ``families`` names the groups of target intrinsics that may be used; ``abi`` is LLVM's
    ABI name where the triple does not imply it; ``pointer_bits`` the width of addresses. ``soft`` names the float types
    that the processor has no arithmetic for: LLVM calls routines, which a program must be linked with (:attr:`needs`).

    ``l1`` and ``l2`` are the bytes of the first-level data cache and of the second-level cache that a core can count
    on: what is typical of its class, for the host as well. They decide how loops are blocked, and with it the code,
    which must not differ between two machines with the same instructions.

    ``fused`` says whether a product is rounded before it is added to a sum: if fused, not, otherwise always. Targets
    that are alike in this compute the same bits. By default multiply-adds are fused where the processor has
    instructions for them; elsewhere, where that is asked for, they are computed by other operations, which is slow.

    ``compact`` asks for code that is small rather than fast; the bits are the same.
    """

    name: str
    triple: str
    cpu: str
    features: str
    vector_bits: int
    vector_registers: int
    masked: bool
    has_fma: bool
    has_half: bool
    has_rounding: bool = True
    families: frozenset[str] = frozenset()
    abi: str = ""
    pointer_bits: int = 64
    soft: tuple[str, ...] = ()
    l1: int = _CACHES[0]
    l2: int = _CACHES[1]
    fused: bool | None = None
    compact: bool = False

    def __post_init__(self) -> None:
        if self.fused is None:
            object.__setattr__(self, "fused", self.has_fma)

    @staticmethod
    def host() -> Target:
        """The processor this process runs on."""
        return _host()

    @staticmethod
    def named(name: str) -> Target:
        """A target by name: ``host``, one of :func:`target_names`, or one of :data:`ALIASES`. Raises
        :class:`CodegenError` for an unknown name."""
        if name == "host":
            return _host()
        known = _NAMED.get(ALIASES.get(name, name))
        if known is None:
            raise CodegenError(f"target {name!r} is unknown; use host or one of {', '.join([*_NAMED, *ALIASES])}")
        return known

    @property
    def runs_here(self) -> bool:
        """Whether the processor this process runs on can execute this target's code."""
        host = _host()
        same = self.triple.split("-")[0] == host.triple.split("-")[0] and self.system == host.system
        return same and _enabled(self) <= _enabled(host)

    @property
    def system(self) -> str:
        """``windows``, ``macos``, ``none``, or ``linux``, which stands for all whose objects are like Linux's."""
        parts = (("windows", "windows"), ("apple", "macos"), ("-none-", "none"), ("wasm", "none"))
        return next((system for part, system in parts if part in self.triple), "linux")

    @property
    def architecture(self) -> str:
        """``x86``, ``aarch64``, ``arm``, ``riscv`` or ``wasm``; of others what their triple begins with."""
        first = self.triple.partition("-")[0]
        return next((name for name, known in _ARCHITECTURES.items() if first.startswith(known)), first)

    @property
    def alignment(self) -> int:
        """Bytes at a multiple of which memory begins: a line of the cache, which holds the widest vectors; a word of 64
        bits where there are no vectors."""
        return LINE if self.vector_bits else WORD

    @property
    def plan_alignment(self) -> int:
        """Bytes at multiples of which activations lie: on small processors without vectors memory is scarce, elsewhere
        what is used at the same time lies in lines of the cache of its own."""
        return self.alignment if self.pointer_bits == 32 else LINE

    @property
    def hosted(self) -> bool:
        """Whether an operating system runs below, which has threads."""
        return self.system != "none"

    @property
    def integer_bits(self) -> int:
        """The widest integers that the processor divides and converts to floats."""
        return 32 if self.pointer_bits == 32 and self.architecture != "wasm" else 64

    @property
    def needs(self) -> str:
        """What a program must be linked with, in words; nothing for code that calls nothing."""
        if not self.soft:
            return ""
        return f"routines of libgcc or compiler-rt for what it computes in {' and '.join(self.soft)}"

    @property
    def unasked(self) -> Target:
        """What a program may run that asks the system for nothing: the same target without matrices. Bits are alike."""
        if MATRICES not in self.families:
            return self
        return replace(self, families=self.families - {MATRICES}, features=_without_matrices(self.features))

    def fuses(self, dtype: str) -> bool:
        """Whether multiplying and adding numbers of a float type, rounded once, is an instruction."""
        return self.has_fma and dtype not in self.soft

    def rounds(self, dtype: str) -> bool:
        """Whether rounding numbers of a float type to integers is an instruction."""
        return self.has_rounding and dtype not in self.soft

    @property
    def fingerprint(self) -> str:
        """A short hash of everything that changes the code; part of cache keys."""
        families = ",".join(sorted(self.families))
        return hashlib.sha256(repr((astuple(replace(self, families=frozenset())), families)).encode()).hexdigest()[:16]

    def width(self, dtype: str) -> int:
        """Lanes of one vector register when computing in ``dtype`` (1 where only scalar code is wanted)."""
        return max(1, self.vector_bits // COMPUTE_BITS[dtype])


def target_names() -> tuple[str, ...]:
    """The names that :meth:`Target.named` knows, without ``host``."""
    return tuple(_NAMED)


def _enabled(target: Target) -> frozenset[str]:
    return frozenset(re.findall(r"\+([\w.\-]+)", target.features))


@functools.cache
def _host() -> Target:
    triple, cpu, known = host.triple(), host.cpu(), host.features()
    present = {name for name, there in known.items() if there}
    features = ",".join(f"{'+' if there else '-'}{name}" for name, there in sorted(known.items()))
    families = _FAMILIES & present
    if triple.startswith(("x86_64", "amd64", "i686")):
        return _host_x86(triple, cpu, features, families, present)
    if triple.startswith(("aarch64", "arm64")):
        return replace(_NAMED["neon"], name="host", triple=triple, cpu=cpu, features=features, families=families)
    return replace(_NAMED["generic"], name="host", triple=triple, cpu=cpu, features=features)


def _host_x86(triple: str, cpu: str, features: str, families: frozenset[str], present: set[str]) -> Target:
    wide = {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= present
    matrices = wide and {"amx-tile", "amx-int8"} <= present and permitted_matrices()
    if not matrices:
        families, features = families - {MATRICES}, _without_matrices(features)
    caches = _SERVER_CACHES if wide else _CACHES
    return Target(
        name="host",
        triple=triple,
        cpu=cpu,
        features=features + (",-prefer-256-bit" if wide else ""),
        vector_bits=512 if wide else 256 if "avx2" in present else 128,
        vector_registers=32 if wide else 16,
        masked="avx2" in present,
        has_fma="fma" in present,
        has_half="f16c" in present,
        has_rounding="sse4.1" in present,
        families=families if wide else families - {"avx512f", "avx512vnni", "avx512bf16"},
        l1=caches[0],
        l2=caches[1],
    )


def _without_matrices(features: str) -> str:
    return re.sub(r"\+amx-", "-amx-", features)


def _x86(
    name: str,
    cpu: str,
    features: str,
    bits: int,
    registers: int,
    families: str = "",
    *,
    masked: bool = True,
    modern: bool = True,
    caches: tuple[int, int] = _CACHES,
) -> Target:
    """An x86-64 target; ``modern`` processors have fused multiply-add and f16 conversions."""
    triple = host.triple()
    triple = triple if triple.startswith("x86_64") else "x86_64-unknown-linux-gnu"
    given = name, triple, cpu, features, bits, registers, masked, modern, modern
    return Target(*given, families=frozenset(families.split()), l1=caches[0], l2=caches[1])


_V2 = "+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+cx16,+sahf"
_V3 = f"{_V2},+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt,+movbe"
_V4 = f"{_V3},+avx512f,+avx512bw,+avx512cd,+avx512dq,+avx512vl"


def _table() -> dict[str, Target]:
    avx2 = _x86("avx2", "x86-64-v3", _V3, 256, 16, "avx2")
    a64 = Target("neon", "aarch64-unknown-linux-gnu", "generic", "+neon,+fp-armv8", 128, 32, False, True, True)
    dot = "+neon,+fp-armv8,+dotprod,+i8mm"
    windows = replace(avx2, name="x86-64-windows", triple="x86_64-pc-windows-gnu")
    all_of = [
        _x86("avx512", "x86-64-v4", f"{_V4},-prefer-256-bit", 512, 32, "avx2 avx512f", caches=_SERVER_CACHES),
        _x86(
            "avx512vnni",
            "x86-64-v4",
            f"{_V4},+avx512vnni,+avx512bf16,-prefer-256-bit",
            512,
            32,
            "avx2 avx512f avx512vnni avx512bf16",
            caches=_SERVER_CACHES,
        ),
        _x86(
            "avx512amx",
            "x86-64-v4",
            f"{_V4},+avx512vnni,+avx512bf16,+amx-tile,+amx-int8,-prefer-256-bit",
            512,
            32,
            f"avx2 avx512f avx512vnni avx512bf16 {MATRICES}",
            caches=_SERVER_CACHES,
        ),
        avx2,
        _x86("avxvnni", "x86-64-v3", f"{_V3},+avxvnni", 256, 16, "avx2 avxvnni"),
        _x86("sse4", "x86-64-v2", _V2, 128, 16, "sse2", masked=False, modern=False),
        _x86("scalar", "x86-64-v3", _V3, 0, 16, masked=False),
        a64,
        replace(a64, name="neon-dot", features=dot, families=frozenset({"dotprod", "i8mm"})),
        *_riscv(),
        *_arm_of_32_bits(),
        _wasm(),
        windows,
        replace(avx2, name="x86-64-macos", triple="x86_64-apple-macosx11.0.0"),
        replace(a64, name="aarch64-macos", triple="arm64-apple-macosx11.0.0", cpu="apple-m1", features=""),
        Target("generic", "x86_64-unknown-linux-gnu", "", "", 0, 16, False, False, False, False),
    ]
    return {target.name: target for target in all_of}


def _riscv() -> list[Target]:
    """With the general extensions; with vectors of 128 bits, in registers that may be wider, where rounding to integers
    changes the rounding mode twice; and a microcontroller without floats, such as the ESP32-C3."""
    triple, features = "riscv64-unknown-linux-gnu", "+m,+a,+f,+d,+c"
    scalar = Target("riscv64", triple, "generic-rv64", features, 0, 32, False, True, False, abi="lp64d")
    wide = replace(
        scalar, name="riscv64-v", features=f"{features},+v", vector_bits=128, masked=True, has_rounding=False
    )
    given = "riscv32-unknown-none-elf", "generic-rv32", "+m,+c", 0, 16, False, False, False, False
    small = Target("riscv32imc", *given, abi="ilp32", pointer_bits=32, soft=("f32", "f64"))
    return [scalar, wide, small]


def _arm_of_32_bits() -> list[Target]:
    """Linux on ARMv7-A with VFPv4 (Cortex-A5, A7 and later), whose vectors flush denormals and are not used; and
    microcontrollers: those of ARMv7E-M and ARMv8-M with a unit for f32, or for f64 as well."""
    vfp4 = "+vfp4,+fp16,+d32,-neon,+hwdiv,+hwdiv-arm"
    a7 = Target(
        "armv7", "armv7-unknown-linux-gnueabihf", "generic", vfp4, 0, 32, False, True, True, False, pointer_bits=32
    )
    seventh, eighth = "thumbv7em-unknown-none-eabihf", "thumbv8m.main-unknown-none-eabihf"
    m7 = replace(a7, name="cortex-m7", triple=seventh, cpu="cortex-m7", features="", has_rounding=True)
    m4 = replace(m7, name="cortex-m4", cpu="cortex-m4", has_rounding=False, soft=("f64",))
    m33 = replace(m7, name="cortex-m33", triple=eighth, cpu="cortex-m33", soft=("f64",))
    return [a7, *(replace(each, l1=_SMALL_CACHES[0], l2=_SMALL_CACHES[1]) for each in (m4, m7, m33))]


def _wasm() -> Target:
    """WebAssembly with vectors: it has no fused multiply-add, and as many registers as the processor below."""
    own = "wasm32-unknown-unknown", "generic", "+simd128,+bulk-memory,+sign-ext,+nontrapping-fptoint", 128, 16
    return Target("wasm32", *own, False, False, False, pointer_bits=32)


_NAMED = _table()
ALIASES: Mapping[str, str] = {
    "x86-64-v2": "sse4", "x86-64-v3": "avx2", "x86-64-v4": "avx512", "aarch64": "neon", "wasm": "wasm32",
}  # fmt: skip
"""Names that compilers have for targets of ours."""
