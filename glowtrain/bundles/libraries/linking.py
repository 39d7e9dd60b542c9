"""Link shared libraries of a bundle with the installed linker."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from glowtrain.backends.target import Target
from glowtrain.bundles.arguments import split_command
from glowtrain.errors import BundleError

COMPILERS = ("cc", "clang", "gcc")
"""Commands that link for the system that they run on."""
_ZIG_ARCHITECTURES = {"armv7": "arm", "arm64": "aarch64"}


def library_name(name: str, target: Target) -> str:
    """The file name of a shared library: one that Python does not take for a module of its own.

    Raises :class:`BundleError` for targets that have none.
    """
    if not target.hosted:
        raise BundleError(f"{target.name} has no shared libraries; an archive (--archive) can be linked into programs")
    if target.system == "windows":
        return f"{name}.dll"
    return f"lib{name}.dylib" if target.system == "macos" else f"lib{name}.so"


def shared_library(code: bytes, name: str, target: Target, command: str | None = None) -> bytes:
    """A shared library of one object. ``command`` links; by default what is installed and links for ``target``.

    Raises :class:`BundleError` where there is no linker, and for what it says.
    """
    library = library_name(name, target)
    linker = linker_for(target) if command is None else split_command(command, "linker (--cc)")
    with tempfile.TemporaryDirectory(prefix="glowtrain-") as folder:
        (Path(folder) / f"{name}.o").write_bytes(code)
        _run([*linker, "-shared", *_options(library, target), "-o", library, f"{name}.o"], folder)
        made = Path(folder) / library
        if not made.is_file() or not made.stat().st_size:
            raise BundleError(f"{shlex.join(linker)} ended well and wrote no {library}: it is no linker")
        return made.read_bytes()


def linker_for(target: Target) -> list[str]:
    """The command that links for a target. Raises :class:`BundleError` that says what to install."""
    own = next(filter(None, map(shutil.which, COMPILERS)), None)
    if own and _same_system(target):
        return [own]
    if find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc", "-target", zig_target(target)]
    own = "a C compiler, " if _same_system(target) else ""
    raise BundleError(
        f"a shared library for {target.name} needs a linker: install {own}Zig (pip install ziglang), "
        f"or name a compiler for {target.triple} with --cc COMMAND"
    )


def program_compiler(target: Target) -> list[str]:
    """The command that makes programs for a target, static ones for another system. Raises :class:`BundleError` that
    says what to install."""
    if _same_system(target):
        return ["cc"]
    zig = zig_target(target)
    if own := shutil.which(f"{zig}-gcc"):
        return [own, "-static"]
    if find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc", "-target", zig.replace("linux-gnu", "linux-musl")]
    raise BundleError(
        f"programs for {target.name} need a C compiler: install {zig}-gcc (Debian: gcc-{zig}) or Zig "
        "(pip install ziglang), or name one with --cc COMMAND"
    )


def example_commands(target: Target) -> tuple[str, str]:
    """What a bundle's Makefile compiles its example with and runs it by, where nobody names others: names of
    Debian's cross compilers and of QEMU's emulators, for another system of Linux's kind. Both are empty for this one;
    elsewhere the compiler is an error of Make."""
    if _same_system(target):
        return "", ""
    zig = zig_target(target)
    if target.system == "linux":
        return f"{zig}-gcc -static", f"qemu-{zig.partition('-')[0]}"
    ways = "name what compiles and runs programs for it, make check CC=... RUN=..."
    board = "; or bundle with --board, and make -f board.mk check" if target.architecture == "arm" else ""
    return f"$(error this bundle is for {target.name}: {ways}{board})", ""


def zig_target(target: Target) -> str:
    """What Zig calls a target's processor and system."""
    architecture, _, rest = target.triple.partition("-")
    architecture = _ZIG_ARCHITECTURES.get(architecture, architecture)
    if target.system == "macos":
        return f"{architecture}-macos"
    if target.system == "windows":
        return f"{architecture}-windows-gnu"
    return f"{architecture}-{rest.partition('-')[2]}"


def _same_system(target: Target) -> bool:
    """Whether programs for a target are made by compilers of this system."""
    return zig_target(target) == zig_target(Target.host())


def _options(library: str, target: Target) -> list[str]:
    """Windows has an entry point in every library, and a routine for large stack frames, from the compiler's own."""
    if target.system == "macos":
        return ["-nostdlib", f"-Wl,-install_name,@rpath/{library}"]
    return [] if target.system == "windows" else ["-nostdlib", "-Wl,-z,defs", f"-Wl,-soname,{library}"]


def _run(command: Sequence[str], folder: str) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BundleError(f"{command[0]}: cannot be run: {error.strerror or error}") from error
    if done.returncode:
        said = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:]) or "it printed nothing"
        raise BundleError(f"{shlex.join(command)} failed:\n{said}")
