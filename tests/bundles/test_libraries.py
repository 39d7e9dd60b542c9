"""Archives and shared libraries of bundles: what they hold, which linker makes them, and what is refused."""

from __future__ import annotations

import hashlib
import json
import shlex
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import glowtrain as gt
from glowtrain.backends.llvm import toolchain
from glowtrain.backends.target import Target, target_names
from glowtrain.bundles.libraries import linking
from glowtrain.bundles.libraries.archive import archive, exported
from glowtrain.bundles.libraries.linking import library_name, linker_for, zig_target
from glowtrain.errors import BundleError
from tests.bundles.small_bundles import BATCH, trainer, written
from tests.compiler.networks import mlp

TEXT = """@net_sizes = constant { i32 } { i32 1 }
@constant.0 = private unnamed_addr constant [1 x i8] c"\\00", align 1
define internal void @helper(ptr %at) #0 {
  ret void
}
define i32 @net_init(ptr %handle) #0 {
  ret i32 0
}
"""


@dataclass(frozen=True)
class Member:
    at: int
    name: bytes
    begin: int
    content: bytes


def members(data: bytes) -> list[Member]:
    """The members of an archive, with BSD's long names taken off their contents."""
    assert data.startswith(b"!<arch>\n")
    found, at = [], 8
    while at < len(data):
        header = data[at : at + 60]
        assert header.endswith(b"`\n")
        name, size, begin = header[:16].rstrip(), int(header[48:58]), at + 60
        if name.startswith(b"#1/"):
            length = int(name[3:])
            name = data[begin : begin + length].rstrip(b"\0")
            begin, size = begin + length, size - length
        found.append(Member(at, name, begin, data[begin : begin + size]))
        at = begin + size
        at += at % 2
    return found


def test_exported_names_are_those_that_others_see() -> None:
    assert exported(TEXT) == ["net_sizes", "net_init"]


@pytest.mark.parametrize("name", ["net.o", "a_name_of_more_than_fifteen_bytes.o"])
def test_archives_of_gnu(name: str) -> None:
    code = toolchain.compile_text(TEXT, Target.named("avx2"))
    symbols = exported(TEXT)
    index, *names, member = members(archive(code, name, symbols, Target.named("avx2")))
    count, *places = struct.unpack(">3I", index.content[:12])
    assert index.name == b"/"
    assert (count, places) == (2, [member.at] * 2)
    assert index.content[12:] == b"net_sizes\0net_init\0"
    assert member.content == code
    if names:
        assert (names[0].name, names[0].content, member.name) == (b"//", f"{name}/\n".encode(), b"/0")
    else:
        assert member.name == f"{name}/".encode()


def test_archives_of_bsd() -> None:
    macos = Target(**{**vars(Target.named("neon")), "name": "macos", "triple": "arm64-apple-macosx11.0.0"})
    code = toolchain.compile_text(TEXT, macos)
    index, member = members(archive(code, "net.o", exported(TEXT), macos))
    assert (index.name, member.name) == (b"__.SYMDEF", b"net.o")
    assert [each.begin % 8 for each in (index, member)] == [0, 0]
    assert member.content.rstrip(b"\n") == code.rstrip(b"\n")
    entries, *pairs, strings = struct.unpack("<6I", index.content[:24])
    texts = index.content[24 : 24 + strings]
    assert entries == 16
    assert pairs[1::2] == [member.at] * 2
    assert [texts[at:].partition(b"\0")[0] for at in pairs[::2]] == [b"_net_sizes", b"_net_init"]


def test_a_bundle_s_archive_names_its_functions(tmp_path: Path) -> None:
    written(tmp_path, archive=True)
    index, member = members((tmp_path / "libmlp.a").read_bytes())
    names = index.content[4 + 4 * struct.unpack(">I", index.content[:4])[0] :].split(b"\0")[:-1]
    functions = "init reset get set find save load error step predict".split()  # noqa: SIM905
    assert set(names) == {f"mlp_{name}".encode() for name in (*functions, "sizes", "variables", "defaults")}
    assert member.content == (tmp_path / "mlp.o").read_bytes()


@pytest.mark.parametrize(
    ("triple", "name", "zig"),
    [
        ("x86_64-unknown-linux-gnu", "libnet.so", "x86_64-linux-gnu"),
        ("aarch64-unknown-linux-gnu", "libnet.so", "aarch64-linux-gnu"),
        ("riscv64-unknown-linux-gnu", "libnet.so", "riscv64-linux-gnu"),
        ("armv7-unknown-linux-gnueabihf", "libnet.so", "arm-linux-gnueabihf"),
        ("x86_64-pc-windows-gnu", "net.dll", "x86_64-windows-gnu"),
        ("x86_64-apple-macosx11.0.0", "libnet.dylib", "x86_64-macos"),
        ("arm64-apple-macosx11.0.0", "libnet.dylib", "aarch64-macos"),
    ],
)
def test_names_of_libraries_and_targets(triple: str, name: str, zig: str) -> None:
    target = Target(**{**vars(Target.named("generic")), "triple": triple})
    assert library_name("net", target) == name
    assert zig_target(target) == zig


def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linking.shutil, "which", lambda _: None)
    monkeypatch.setattr(linking, "find_spec", lambda _: None)


def test_the_linker_is_the_system_s_own_or_zig(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linking.shutil, "which", lambda command: "/bin/clang" if command == "clang" else None)
    monkeypatch.setattr(linking, "find_spec", lambda _: object())
    other = next(each for each in ("neon", "avx2") if zig_target(Target.named(each)) != zig_target(Target.host()))
    assert linker_for(Target.host()) == ["/bin/clang"]
    zig = [sys.executable, "-m", "ziglang", "cc", "-target"]
    assert linker_for(Target.named(other)) == [*zig, zig_target(Target.named(other))]
    monkeypatch.setattr(linking.shutil, "which", lambda _: None)
    assert linker_for(Target.host()) == [*zig, zig_target(Target.host())]


def test_without_a_linker_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nothing_installed(monkeypatch)
    with pytest.raises(BundleError, match=r"host needs a linker: install a C compiler, Zig \(pip inst"):
        written(tmp_path / "b", shared=True)
    assert not (tmp_path / "b").exists()
    triple = Target.named("riscv64").triple
    with pytest.raises(BundleError, match=rf"install Zig \(pip.*\), or name a compiler for {triple} with --cc COMMAND"):
        linker_for(Target.named("riscv64"))


def test_targets_without_shared_libraries(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="cortex-m7 has no shared libraries; an archive"):
        written(tmp_path, shared=True, target="cortex-m7", linker="cc")


def test_a_linker_without_a_shared_library(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"a linker makes the shared library: ask for that, too \(--shared\)"):
        written(tmp_path, linker="cc")


def linker_that(folder: Path, does: str) -> str:
    """A command that stands for a linker and runs some Python."""
    (folder / "linker.py").write_text(f"import sys\nfrom pathlib import Path\narguments = sys.argv[1:]\n{does}\n")
    return shlex.join([sys.executable, str(folder / "linker.py"), "--sysroot=some where"])


def test_what_a_linker_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The linker need not be one that is looked for."""
    nothing_installed(monkeypatch)
    out = "Path(arguments[arguments.index('-o') + 1])"
    command = linker_that(
        tmp_path, f"{out}.write_text(' '.join(arguments) + str(len(Path(arguments[-1]).read_bytes())))"
    )
    made = gt.bundle(trainer(), tmp_path / "b", dims={"batch": BATCH}, target="riscv64", shared=True, linker=command)
    options = "--sysroot=some where -shared -nostdlib -Wl,-z,defs -Wl,-soname,libmlp.so -o libmlp.so mlp.o"
    library = (tmp_path / "b" / "libmlp.so").read_bytes()
    assert library.decode() == f"{options}{made.files['mlp.o']}"
    said = json.loads((tmp_path / "b" / "mlp.json").read_text())
    assert said["files"]["libmlp.so"]["sha256"] == hashlib.sha256(library).hexdigest()
    assert "def load(" in (tmp_path / "b" / "mlp.py").read_text()


@pytest.mark.exhaustive
def test_linkers_that_fail_or_are_not_there(tmp_path: Path) -> None:
    command = linker_that(tmp_path, "sys.exit('undefined symbol: expf')")
    with pytest.raises(BundleError, match=r"linker.py .* failed:\nundefined symbol: expf"):
        written(tmp_path / "b", shared=True, linker=command)
    with pytest.raises(BundleError, match="no-such-cc: cannot be run: No such file"):
        written(tmp_path / "b", shared=True, linker="no-such-cc -x")
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("target", target_names())
def test_archives_for_every_target(target: str, tmp_path: Path) -> None:
    code = toolchain.compile_text(TEXT, Target.named(target))
    assert members(archive(code, "net.o", exported(TEXT), Target.named(target)))[-1].content.rstrip(b"\n") == (
        code.rstrip(b"\n")
    )


def test_nothing_more_is_written_unless_asked_for(tmp_path: Path) -> None:
    written(tmp_path, mlp, dims={"batch": 1})
    assert {path.name for path in tmp_path.iterdir()} == {
        *("mlp.o", "mlp.h", "mlp.hpp", "mlp.json", "main.c", "Makefile", "expected.txt")
    }
