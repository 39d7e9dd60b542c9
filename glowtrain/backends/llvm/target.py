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

import llvmlite.binding as llvm

from glowtrain.backends.llvm.values import LlvmType, vector
from glowtrain.errors import CodegenError

COMPUTE_BITS: Mapping[str, int] = {
    "f64": 64, "f32": 32, "f16": 32, "bf16": 32, "i64": 64, "i32": 32, "i16": 16, "i8": 8,
    "u64": 64, "u32": 32, "u16": 16, "u8": 8, "bool": 8,
    "f8e4m3fn": 8, "f8e4m3fnuz": 8, "f8e5m2": 8, "f8e5m2fnuz": 8, "f8e8m0": 8, "f6e2m3": 8, "f6e3m2": 8, "f4e2m1": 8,
    "i4": 8, "u4": 8, "i2": 8, "u2": 8,
}  # fmt: skip
"""Bits of a lane while it is computed with: half precision is computed in f32, smaller types are only moved."""

_FAMILIES: Mapping[str, str] = {
    "avx512vnni": "avx512vnni", "avxvnni": "avxvnni", "avx512bf16": "avx512bf16", "avx2": "avx2", "avx512f": "avx512f",
    "sse2": "sse2", "dotprod": "dotprod", "i8mm": "i8mm", "bf16": "bf16",
}  # fmt: skip

_CACHES = 32 << 10, 512 << 10
"""Bytes of L1d and L2: those of Zen 2 and 3, and no more than most present cores have."""
_SERVER_CACHES = 48 << 10, 1 << 20
"""Of processors with AVX-512: 48 KiB from Ice Lake on, and 1 MiB or more on servers."""


@dataclass(frozen=True)
class Target:
    """One processor, or one way to use it.

    ``features`` is LLVM's comma-separated list (``+fma,-avx512f``); ``vector_bits`` is 0 where only scalar code is
    wanted; ``masked`` says whether masked loads and stores are cheap (elsewhere a scalar tail loop is better);
    ``has_half`` whether conversions between f16 and f32 are instructions; ``has_rounding`` whether rounding to
    integers (floor, ceil) is; ``families`` names the groups of target intrinsics that may be used; ``abi`` is LLVM's
    ABI name where the triple does not imply it; ``pointer_bits`` the width of addresses.

    ``l1`` and ``l2`` are the bytes of the first-level data cache and of the second-level cache that a core can count
    on: what is typical of its class, for the host as well. They decide how loops are blocked, and with it the code and
    the bits of sums that are taken in parts, which must not differ between two machines with the same instructions.
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
    l1: int = _CACHES[0]
    l2: int = _CACHES[1]

    @staticmethod
    def host() -> Target:
        """The processor this process runs on."""
        return _host()

    @staticmethod
    def named(name: str) -> Target:
        """A target by name: ``host``, one of :func:`target_names`. Raises :class:`CodegenError` for an unknown name."""
        if name == "host":
            return _host()
        if name not in _NAMED:
            raise CodegenError(f"target {name!r} is unknown; use host or one of {', '.join(_NAMED)}")
        return _NAMED[name]

    @property
    def runs_here(self) -> bool:
        """Whether the processor this process runs on can execute this target's code."""
        return self.triple.split("-")[0] == _host().triple.split("-")[0] and _enabled(self) <= _enabled(_host())

    @property
    def index_type(self) -> LlvmType:
        """The integer with which code counts and reaches into memory: it has the width of a pointer."""
        return vector(f"i{self.pointer_bits}")

    @property
    def hosted(self) -> bool:
        """Whether an operating system runs below, which has threads."""
        return "-none-" not in self.triple

    @property
    def needs(self) -> str:
        """What a program must be linked with, in words; nothing for code that calls nothing."""
        return ""

    @property
    def fingerprint(self) -> str:
        """A short hash of everything that changes the code; part of cache keys."""
        families = ",".join(sorted(self.families))
        return hashlib.sha256(repr((astuple(replace(self, families=frozenset())), families)).encode()).hexdigest()[:16]

    def width(self, dtype: str) -> int:
        """Lanes of one vector register when computing in ``dtype`` (1 where only scalar code is wanted)."""
        return max(1, self.vector_bits // COMPUTE_BITS[dtype])

    def attributes(self) -> str:
        """The text of the attributes that the functions of a module refer to: ``#0``, and ``#1`` of those that do
        little but call others (:data:`~glowtrain.backends.llvm.text.CALLER`).

        ``min-legal-vector-width`` keeps 512-bit values in one register; ``no-builtins`` keeps LLVM from turning loops
        into calls of memset and memcpy.
        """
        width = f' "min-legal-vector-width"="{self.vector_bits}"' if self.vector_bits else ""
        common = f'nounwind "no-builtins"{width}'
        return f"attributes #0 = {{ {common} }}\nattributes #1 = {{ noinline optnone {common} }}"


def target_names() -> tuple[str, ...]:
    """The names that :meth:`Target.named` knows, without ``host``."""
    return tuple(_NAMED)


def _enabled(target: Target) -> frozenset[str]:
    return frozenset(re.findall(r"\+([\w.\-]+)", target.features))


@functools.cache
def _host() -> Target:
    triple, cpu = llvm.get_process_triple(), llvm.get_host_cpu_name()
    present = {name for name, there in llvm.get_host_cpu_features().items() if there}
    features = ",".join(
        f"{'+' if there else '-'}{name}" for name, there in sorted(llvm.get_host_cpu_features().items())
    )
    families = frozenset(family for feature, family in _FAMILIES.items() if feature in present)
    if triple.startswith(("x86_64", "amd64", "i686")):
        return _host_x86(triple, cpu, features, families, present)
    if triple.startswith(("aarch64", "arm64")):
        return replace(_NAMED["neon"], name="host", triple=triple, cpu=cpu, features=features, families=families)
    return replace(_NAMED["generic"], name="host", triple=triple, cpu=cpu, features=features)


def _host_x86(triple: str, cpu: str, features: str, families: frozenset[str], present: set[str]) -> Target:
    wide = {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= present
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
    triple = llvm.get_process_triple()
    triple = triple if triple.startswith("x86_64") else "x86_64-unknown-linux-gnu"
    given = name, triple, cpu, features, bits, registers, masked, modern, modern
    return Target(*given, families=frozenset(families.split()), l1=caches[0], l2=caches[1])


_V2 = "+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+cx16,+sahf"
_V3 = f"{_V2},+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt,+movbe"
_V4 = f"{_V3},+avx512f,+avx512bw,+avx512cd,+avx512dq,+avx512vl"


def _table() -> dict[str, Target]:
    a64 = Target("neon", "aarch64-unknown-linux-gnu", "generic", "+neon,+fp-armv8", 128, 32, False, True, True)
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
        _x86("avx2", "x86-64-v3", _V3, 256, 16, "avx2"),
        _x86("avxvnni", "x86-64-v3", f"{_V3},+avxvnni", 256, 16, "avx2 avxvnni"),
        _x86("sse4", "x86-64-v2", _V2, 128, 16, "sse2", masked=False, modern=False),
        _x86("scalar", "x86-64-v3", _V3, 0, 16, masked=False),
        a64,
        replace(
            a64, name="neon-dot", features="+neon,+fp-armv8,+dotprod,+i8mm", families=frozenset({"dotprod", "i8mm"})
        ),
        Target(
            "riscv64",
            "riscv64-unknown-linux-gnu",
            "generic-rv64",
            "+m,+a,+f,+d,+c",
            0,
            32,
            False,
            True,
            False,
            abi="lp64d",
        ),
        Target("cortex-m7", "thumbv7em-none-eabihf", "cortex-m7", "", 0, 16, False, True, True, pointer_bits=32),
        Target("generic", "x86_64-unknown-linux-gnu", "", "", 0, 16, False, False, False, False),
    ]
    return {target.name: target for target in all_of}


_NAMED = _table()
