"""From LLVM text to callable machine code: one path for running, caching and object files.

Text is parsed, verified and turned into an object by the code generator alone (level 1): the text is in final shape, an
optimisation pipeline behind it gains nothing. The object is what a cache keeps, what a linker links and what ORC loads.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import re
from collections.abc import Callable, Mapping, Sequence

import llvmlite
import llvmlite.binding as llvm

from glowtrain.backends.target import Target
from glowtrain.errors import CodegenError

OPTIMIZATION = 1
"""Level of LLVM's code generator; 2 and 3 give no faster code for text in final shape, 0 spills everything."""

_LIBRARY_MATH = frozenset(
    {
        *("exp", "exp2", "exp10", "log", "log2", "log10", "pow", "powi", "sin", "cos", "sincos", "tan", "asin", "acos"),
        *("atan", "atan2", "sinh", "cosh", "tanh", "ldexp", "frexp", "modf"),
    }
)
_ROUNDING = frozenset({"floor", "ceil", "trunc", "round", "roundeven", "rint", "nearbyint"})
_TARGET_FAMILIES: Mapping[str, frozenset[str]] = {
    "x86.avx512.vpdpbusd": frozenset({"avx512vnni", "avxvnni"}),
    "x86.avx512.vpdpwssd": frozenset({"avx512vnni", "avxvnni"}),
    "x86.avx512bf16.": frozenset({"avx512bf16"}),
    "x86.avx512.": frozenset({"avx512f"}),
    "x86.avx2.": frozenset({"avx2"}),
    "x86.avx.": frozenset({"avx2"}),
    "x86.tdpb": frozenset({"amx-int8"}),
    "x86.tile": frozenset({"amx-int8"}),
    "x86.ldtilecfg": frozenset({"amx-int8"}),
    "x86.sse2.": frozenset({"sse2", "avx2", "avx512f"}),
    "x86.sse": frozenset({"avx2", "avx512f"}),
    "aarch64.neon.sdot": frozenset({"dotprod"}),
    "aarch64.neon.udot": frozenset({"dotprod"}),
    "aarch64.neon.usdot": frozenset({"i8mm"}),
    "aarch64.neon.bf": frozenset({"bf16"}),
}
_EVERYWHERE = frozenset(
    {
        *("x86.sse2.pause", "x86.sse.stmxcsr", "x86.sse.ldmxcsr"),
        *("aarch64.hint", "aarch64.get.fpcr", "aarch64.set.fpcr"),
    }
)
"""What every 64-bit processor of an architecture has."""
_TARGET_PREFIXES = ("x86.", "aarch64.", "arm.", "riscv.", "wasm.", "nvvm.", "amdgcn.", "ppc.")


class Library:
    """Loaded machine code. It stays in memory while this object lives; addresses must not be used after."""

    def __init__(self, tracker: llvm.ResourceTracker, names: Sequence[str]) -> None:
        self._tracker = tracker
        self._addresses = {name: tracker[name] for name in names}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._addresses)

    def address(self, name: str) -> int:
        """The address of an exported symbol. Raises :class:`CodegenError` where it was not exported."""
        if name not in self._addresses:
            raise CodegenError(
                f"function {name!r} is not exported by this library; it has {', '.join(self._addresses)}"
            )
        return self._addresses[name]

    def function(self, name: str, n_pointer_args: int) -> Callable[..., None]:
        """A callable that takes ``n_pointer_args`` addresses (int) and returns nothing.

        The GIL is released while it runs.
        """
        prototype = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * n_pointer_args)
        call: Callable[..., None] = prototype(self.address(name))
        call.__dict__["library"] = self
        return call


def version() -> str:
    """The versions of what makes machine code."""
    return f"llvmlite {llvmlite.__version__} LLVM {'.'.join(map(str, llvm.llvm_version_info))}"


def pointer_table(addresses: Sequence[int | None]) -> ctypes.Array[ctypes.c_void_p]:
    """A C array of pointers, made once: a slot may be set between calls. Its address is ``ctypes.addressof(table)``."""
    return (ctypes.c_void_p * len(addresses))(*addresses)


def compile_text(text: str, target: Target) -> bytes:
    """The object of the functions in ``text`` (definitions and globals; header and attributes are added).

    Raises :class:`CodegenError` that names the function for text that LLVM rejects and for intrinsics that the target
    lacks.
    """
    return _machine(target).emit_object(parsed(text, target))


def assembly(text: str, target: Target) -> str:
    """The assembler text of the functions in ``text``. Raises :class:`CodegenError` like :func:`compile_text`."""
    return _machine(target).emit_assembly(parsed(text, target))


def load(objects: Sequence[bytes], exports: Sequence[str]) -> Library:
    """Link objects into this process.

    Raises :class:`CodegenError` where a symbol is missing (LLVM prints its name on the error stream).
    """
    builder = llvm.JITLibraryBuilder().add_current_process()
    for each in objects:
        builder.add_object_img(each)
    for name in exports:
        builder.export_symbol(name)
    try:
        return Library(builder.link(_jit(), f"glowtrain{next(_library_numbers)}"), tuple(exports))
    except RuntimeError as error:
        raise CodegenError(f"native code with {', '.join(exports)} cannot be linked: {error}") from error


def build(text: str, target: Target, exports: Sequence[str]) -> Library:
    """Compile and load."""
    return load([compile_text(text, target)], exports)


def module_text(text: str, target: Target) -> str:
    """``text`` with the target's data layout, triple and, unless it has them, function attributes."""
    header = f'target datalayout = "{_machine(target).target_data}"\ntarget triple = "{target.triple}"\n'
    attributes = "" if "attributes #0" in text else f"\n{_attributes(target)}\n"
    return f"{header}{text}{attributes}"


def _attributes(target: Target) -> str:
    """The text of the attributes that the functions of a module refer to: ``#0``, and ``#1`` of those that do little
    but call others (:data:`~glowtrain.backends.llvm.text.CALLER`).

    ``min-legal-vector-width`` keeps 512-bit values in one register; ``no-builtins`` keeps LLVM from turning loops into
    calls of memset and memcpy.
    """
    width = f' "min-legal-vector-width"="{target.vector_bits}"' if target.vector_bits else ""
    common = f'nounwind "no-builtins"{width}'
    own, calls = ("minsize optsize", "minsize optsize") if target.compact else ("", "noinline optnone")
    return f"attributes #0 = {{ {own} {common} }}\nattributes #1 = {{ {calls} {common} }}"


_library_numbers = itertools.count()


@functools.cache
def _initialize() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


@functools.cache
def _keep_masks() -> None:
    """Keep loads out of the instructions that use them, once and for all of the process.

    LLVM 22.1 folds a masked load into an instruction with the same mask, even into one that moves lanes, and may unfold
    it without the mask: lanes are read, and used, that the mask leaves out (docs/adr/0011-masked-loads.md).
    """
    llvm.set_option("glowtrain", "-disable-spill-fusing")


@functools.lru_cache(maxsize=32)
def _machine(target: Target) -> llvm.TargetMachine:
    return machine(target)


def machine(target: Target) -> llvm.TargetMachine:
    """The code generator of a target. The small code model and position-independent code suit ORC and linkers alike."""
    _initialize()
    if target.architecture in ("x86", "i686"):  # LLVM without x86 does not know the option
        _keep_masks()
    model = "medium" if target.architecture == "riscv" else "default"
    reloc = "pic" if target.hosted else "static"
    made = _described(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=OPTIMIZATION, reloc=reloc, codemodel=model, abiname=target.abi
    )
    made.set_asm_verbosity(False)
    return made


def _described(triple: str) -> llvm.Target:
    """LLVM's target for a triple. Raises :class:`CodegenError` where LLVM was built without it."""
    try:
        return llvm.Target.from_triple(triple)
    except RuntimeError as error:
        raise CodegenError(
            f"{version()} makes no code for {triple}: install a newer llvmlite, or compute without compiling, by "
            "backend='interpreter'"
        ) from error


@functools.cache
def _jit() -> llvm.LLJIT:
    host = Target.host()
    return llvm.create_lljit_compiler(_machine(host), use_jit_link=host.system != "windows")


def parsed(text: str, target: Target) -> llvm.ModuleRef:
    """The module of the functions in ``text``, in a context of its own. Raises as :func:`compile_text` does."""
    _check_intrinsics(text, target)
    whole = module_text(text, target)
    try:
        module = llvm.parse_assembly(whole, llvm.create_context())
    except RuntimeError as error:
        raise CodegenError(f"{_where(whole, str(error))}: {error}") from error
    try:
        module.verify()
    except RuntimeError as error:
        raise CodegenError(f"invalid code in one of the functions {', '.join(_functions(whole))}: {error}") from error
    return module


def _functions(text: str) -> list[str]:
    return re.findall(r"^define [^@]*@([\w.$\-]+)", text, re.MULTILINE)


def _where(text: str, message: str) -> str:
    """The function around the line that a parser's message names."""
    line = re.search(r"<string>:(\d+):", message)
    above = "\n".join(text.splitlines()[: int(line[1])]) if line else text
    names = _functions(above)
    return f"function {names[-1]}" if names else "module"


def _check_intrinsics(text: str, target: Target) -> None:
    """Refuse what would end the process in the code generator, or call a maths library."""
    for name in set(re.findall(r"@llvm\.([\w.]+)", text)):
        reason = _refusal(name, target)
        if reason:
            user = _where(text[: text.index(f"@llvm.{name}")], "")
            raise CodegenError(f"{user}: intrinsic llvm.{name} {reason} (target {target.name})")


def _refusal(name: str, target: Target) -> str:
    stem, dtype = name.split(".")[0], "f64" if name.endswith("f64") else "f32"
    if stem in _LIBRARY_MATH or (stem == "sqrt" and dtype in target.soft):
        return "is a call of a maths library; use vector_math"
    if stem in ("fma", "fmuladd") and not target.fuses(dtype):
        return "is a call of a maths library on a target without fused multiply-add"
    if stem in _ROUNDING and not target.rounds(dtype):
        return "is a call of a maths library on a target that does not round to integers"
    if not name.startswith(_TARGET_PREFIXES) or name in _EVERYWHERE:
        return ""
    families = next((needed for prefix, needed in _TARGET_FAMILIES.items() if name.startswith(prefix)), frozenset())
    return "" if families & target.families else "is not available here"
