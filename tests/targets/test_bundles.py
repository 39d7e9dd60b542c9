"""Bundles compute the same bits on every processor as Python does here: make test-targets runs this."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.bundles.codes import ErrorCode
from glowtrain.bundles.verify.example_runner import parsed
from glowtrain.bundles.verify.record import difference
from glowtrain.graph import Graph, Input, Variable
from tests.compiler.networks import mlp
from tests.targets.bundles import EVERY, MODELS, executed, here, linked, module_for, there, told, written
from tests.targets.emulated import HERE, PACKAGES, ZIG

HOST = "avx2"
"""What memcheck and the sanitizers know."""
STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only")


def machine_of(name: str) -> str:
    """The name of a machine whose tools are there."""
    missing = EVERY[name].missing
    assert not missing, f"install {', '.join(missing)}: Debian has {PACKAGES}"
    return name


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("machine", EVERY)
def test_steps_and_predictions(machine: str, model: str, tmp_path: Path) -> None:
    found = EVERY[machine_of(machine)]
    assert difference(here(found, model), there(found, model, tmp_path)) == ""


def test_make_check_emulates_another_processor(tmp_path: Path) -> None:
    gt.bundle(mlp, tmp_path, target=machine_of("riscv64"), dims={"batch": 4})
    zig = shlex.join([*ZIG, "-target", "riscv64-linux-musl"])
    command = ["make", "-C", str(tmp_path), "check", f"CC={zig}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "qemu-riscv64 ./example" in done.stdout
    assert "the same bits" in done.stdout


CODES: Sequence[tuple[str, ErrorCode, str]] = [
    ("step before init", ErrorCode.NOT_INITIALISED, "same"),
    ("init of null", ErrorCode.NULL_POINTER, "same"),
    ("init of another version", ErrorCode.OTHER_VERSION, "same"),
    ("init beside", ErrorCode.MISALIGNED, "same"),
    ("init of less", ErrorCode.TOO_SMALL, "same"),
    ("init of one for both", ErrorCode.OVERLAP, "same"),
    ("init", ErrorCode.OK, "changed"),
    ("step", ErrorCode.OK, "changed"),
    ("step of NaN", ErrorCode.NOT_FINITE, "same"),
    ("predict to null", ErrorCode.NULL_POINTER, "same"),
    ("predict", ErrorCode.OK, "same"),
    ("get", ErrorCode.OK, "same"),
    ("get of no variable", ErrorCode.NO_SUCH_VARIABLE, "same"),
    ("set of another size", ErrorCode.WRONG_SIZE, "same"),
    ("save that ends", ErrorCode.WRITE_FAILED, "same"),
    ("save", ErrorCode.OK, "same"),
    ("step", ErrorCode.OK, "changed"),
    ("load of a short file", ErrorCode.READ_FAILED, "same"),
    ("load of another file", ErrorCode.OTHER_WEIGHTS, "same"),
    ("load", ErrorCode.OK, "changed"),
]
"""What errors.c prints, but for a name that is looked up."""


def test_every_error_code_is_provoked() -> None:
    """But for that of a bundle without weights: these have some."""
    assert {code for _, code, _ in CODES} == set(ErrorCode) - {ErrorCode.NO_WEIGHTS}


@pytest.mark.parametrize("machine", EVERY)
def test_error_codes(machine: str, tmp_path: Path) -> None:
    found = EVERY[machine_of(machine)]
    module = module_for(found.target, "mlp")
    _, code = written(module, tmp_path)
    lines = executed(found, linked(found, module, tmp_path, [str(HERE / "errors.c"), code])).splitlines()
    lines.remove("find: none")
    assert lines == [f"{name}: {code.text}, {after}" for name, code, after in CODES]


@pytest.mark.parametrize("machine", EVERY)
def test_two_bundles_in_one_program(machine: str, tmp_path: Path) -> None:
    """Two examples, one after the other."""
    found, parts = EVERY[machine_of(machine)], {"lstm": "first", "gpt": "second"}
    modules = {model: module_for(found.target, model) for model in parts}
    sources = [str(tmp_path / "both.c")]
    calls = " ".join(f"int {part}(void);" for part in parts.values())
    Path(sources[0]).write_text(f"#include <stdio.h>\n{calls}\nint main(void) {{ return first() + second(); }}\n")
    for model, part in parts.items():
        main, code = written(modules[model], tmp_path)
        (tmp_path / f"{part}.c").write_text(f'#define PART {part}\n#include "{main}"\n')
        sources += [str(tmp_path / f"{part}.c"), code]
    printed = executed(found, linked(found, modules["lstm"], tmp_path, sources))
    end = printed.index("\n", printed.index("predict")) + 1
    for model, told_ in zip(parts, (printed[:end], printed[end:]), strict=True):
        assert difference(here(found, model), parsed(told_, modules[model])) == ""


# ---- this processor, with a C library


def program_of(model: str, folder: Path, *compiler: str) -> list[str]:
    """The example of a model, built here by a compiler, and what it should print."""
    assert shutil.which(compiler[0]), f"install {compiler[0]}"
    sources = written(module_for(HOST, model), folder)
    told([*compiler, "-g", "-std=c11", *sources, "-o", str(folder / "program")])
    return [str(folder / "program")]


def check_here(model: str, command: Sequence[str]) -> None:
    trace = parsed(told(command), module_for(HOST, model))
    assert difference(here(EVERY["x86-64-v3, gcc"], model), trace) == ""


@pytest.mark.parametrize("model", ["cnn", "gpt", "int8"])
def test_memcheck_finds_nothing(model: str, tmp_path: Path) -> None:
    assert shutil.which("valgrind"), "install valgrind"
    program = program_of(model, tmp_path, "gcc", "-O1")
    check_here(model, ["valgrind", "--quiet", "--error-exitcode=9", "--track-origins=yes", *program])


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("model", ["mlp", "lstm"])
def test_sanitizers_find_nothing(model: str, compiler: str, tmp_path: Path) -> None:
    flags = "-fsanitize=address,undefined", "-fno-sanitize-recover=all"
    check_here(model, program_of(model, tmp_path, compiler, *flags))


LIBRARY = "errno fcntl math pthread semaphore signal stdio stdlib string time unistd"
"""Headers that a program may include before a bundle's, whose folder -I adds to theirs."""


LIBRARY_NAMES = "exit malloc errno NULL log y1 sem F time tm linux features endian libintl"


@pytest.mark.parametrize("name", LIBRARY_NAMES.split())
def test_names_of_the_library_may_be_a_model_s(name: str, tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    x = Input(gt.f32[2, 3], "errno")
    weight = Variable("weight", random.normal(size=(3, 3)).astype(np.float32))
    own = gt.bundle(Graph((x,), {"EOF": x @ weight}, {}, name=name), tmp_path, target=HOST).module.name
    used = f"int used({own}_handle *handle) {{ return {own.upper()}_OK + !handle; }}\n"
    library = "".join(f"#include <{each}.h>\n" for each in LIBRARY.split())
    for compiler, header in (("gcc", "h"), ("clang", "h"), ("g++", "hpp"), ("clang++", "hpp")):
        source = tmp_path / ("user.c" if header == "h" else "user.cpp")
        source.write_text(f'{library}#include "{own}.{header}"\n{used}')
        standard = "-std=gnu11" if header == "h" else "-std=gnu++17"
        told([compiler, standard, f"-I{tmp_path}", "-Wall", "-Werror", "-fsyntax-only", str(source)])


@gt.model(x=gt.f32["batch", 8])
def small(x: gt.Value) -> gt.Value:
    return gt.nn.linear(x, 3)


def test_the_documented_interface_compiles(tmp_path: Path) -> None:
    """As C11, and as C++ with the change that the page names."""
    page = (HERE.parents[1] / "docs" / "bundles.md").read_text()
    (block,) = re.findall(r"```c\n(.*?)```", page, re.DOTALL)
    declared, calls = block.split("small_handle handle;")
    arrays = "float x[4 * 8] = {0}, output[4 * 3], loss;\nint64_t labels[4] = {0};\nsmall_handle handle;"
    text = f"{declared}int main(void) {{\n{arrays}{calls}return (int)code;\n}}\n"
    gt.bundle(
        small, tmp_path, loss="softmax_cross_entropy", dims={"batch": 4}, optimizer=gt.optim.SGD(0.1), target=HOST
    )
    (tmp_path / "page.c").write_text(text)
    (tmp_path / "page.cpp").write_text(
        text.replace("static _Alignas(SMALL_ALIGNMENT)", "alignas(SMALL_ALIGNMENT) static")
    )
    for compiler, source in (("gcc -std=c11", "page.c"), ("clang -std=c11", "page.c"), ("g++ -std=c++17", "page.cpp")):
        given, code, made = (str(tmp_path / name) for name in (source, "small.o", "page"))
        told([*compiler.split(), *STRICT[:-1], given, code, "-o", made])
        told([made])


@pytest.mark.parametrize("model", MODELS)
def test_headers_are_strict_c_and_cpp(model: str, tmp_path: Path) -> None:
    module = module_for(HOST, model)
    written(module, tmp_path)
    text = tmp_path / "user.c"
    text.write_text(f'#include "{module.name}.h"\nextern int nothing;\n')
    for compiler in ("gcc", "clang"):
        told([compiler, "-std=c99", *STRICT, str(text)])
        told([compiler, "-x", "c++", "-std=c++11", *STRICT, str(text)])
