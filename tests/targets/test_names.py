"""Any names of inputs, outputs and variables work in every language.

make test-targets runs this. It needs a C and a C++ compiler, gfortran, rustc and cargo, and Node.
"""

from __future__ import annotations

import keyword
import re
import subprocess
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.bundles.faces.rust.crate import KEYWORDS as OF_RUST
from glowtrain.bundles.signature import KEYWORDS as OF_C
from glowtrain.graph import Graph, Input, Variable
from tests.targets.test_faces import ran

MODEL = "net"
HEADER = "handle hyper hpp init OK ALIGNMENT sizes predict step save_file model defaults PARAMETER VARIABLES File_Bytes"
JAVASCRIPT = "arguments await class constructor delete export function hasOwnProperty let package this toString with"
FORTRAN = "allocate block c_float c_int32_t common contains dimension end implicit intent integer none parameter print"
RUST = "None Some Ok Err Self Box Vec Result Option String drop core std alloc raw codes done sized begin Model Owned"
CPP = "View Result Error Element Container Model done failed handle_ owned_ status_ release std size data move swap"
C = "NULL EOF I linux unix INT8_MAX SIZE_MAX UINT32_C SEEK_SET stdin errno assert uint8_t size_t float_t memory main"
OWN = (
    "self name other x model function value of index_type handle loss lr code v1 t1 good1 bad1 entry buffer0 last word"
)
COLLIDING = ["a b", "a-b", "a_b", "a_b_", "A_B", "a/b", "class", "class_", "class__", "match", "match_", "last_"]
STRANGE = [
    "",
    " ",
    "_",
    "__proto__",
    "1",
    "é",
    "日本",
    "\u202e",
    "x\n*/",
    "/*",
    '"',
    "\\",
    "%d",
    "{}",
    "??/",
    "</script>",
    "'",
    "network",
    "NETWORK",
    "{{version}}",
    "// {{#variables}}",
]
LONG = ["y" * 70, "y" * 69 + "z", "Y" * 70, "é" * 70, '"' * 130]
ALL = [
    *(f"{MODEL}{end}" for end in ("", *(f"_{word}" for word in HEADER.split()))),
    *(f"{MODEL}_{word}".upper() for word in HEADER.split()),
    *JAVASCRIPT.split(), *FORTRAN.split(), *RUST.split(), *CPP.split(), *C.split(), *OWN.split(),
    *COLLIDING, *STRANGE, *LONG, *keyword.kwlist, *sorted(OF_RUST), *sorted(OF_C),
]  # fmt: skip
NAMES = list(dict.fromkeys(ALL))
CHUNK = 60


def drawn() -> list[str]:
    """Names of letters, digits and signs that a seed draws."""
    random = np.random.default_rng(11)
    letters = list("abXY_09 .-/é\"'\\{}%:ß\u200b")
    return list(dict.fromkeys("".join(random.choice(letters, random.integers(1, 9))) for _ in range(CHUNK)))


def chunks(names: Sequence[str]) -> list[list[str]]:
    """Names that differ in few letters stay together, in the order in which they stand."""
    rest = iter(names)
    return list(iter(lambda: list(islice(rest, CHUNK)), []))


def network(names: Sequence[str], *, trains: bool) -> Graph | gt.Trainer:
    """Each output is called as an input; a step's inputs are so, and the variables."""
    random = np.random.default_rng(5)
    inputs = tuple(Input(gt.f32[2, 2], name) for name in names)
    outputs = {name: value * value for name, value in zip(reversed(names), inputs, strict=True)}
    if not trains:
        return Graph(inputs, outputs, {}, name=MODEL)
    weights = [Variable(f"{name}.weight", random.normal(size=(2, 2)).astype(np.float32)) for name in names]
    products = [value @ weight for value, weight in zip(inputs, weights, strict=True)]
    loss = gt.nn.mean(sum(products[1:], products[0]))
    return gt.Trainer(Graph(inputs, {"loss": loss}, {}, name=MODEL), "loss", gt.optim.SGD(0.1))


def in_c(folder: Path) -> str:
    ran(folder, "cc", "-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "main.c", "net.o", "-o", "example")
    return ran(folder, "example")


def in_cpp(folder: Path) -> str:
    (folder / "test.cpp").write_text('#include "net.hpp"\nint main() { return 0; }\n')
    ran(folder, "g++", "-std=c++17", "-Wall", "-Wextra", "-Wshadow", "-Werror", "-c", "test.cpp")
    return (folder / "expected.txt").read_text()


def in_fortran(folder: Path) -> str:
    sources = "fortran/net.f90", "fortran/main.f90", "net.o"
    ran(folder, "gfortran", "-Wall", "-std=f2018", *sources, "-o", "example")
    return ran(folder, "example")


def in_rust(folder: Path) -> str:
    return ran(folder / "rust", "cargo", "run", "--quiet", "--offline", "--example", "train")


def in_javascript(folder: Path) -> str:
    return ran(folder, "node", "example.mjs")


@pytest.mark.parametrize("trains", [False, True], ids=["predicts", "trains"])
@pytest.mark.parametrize("language", [in_c, in_cpp, in_fortran, in_rust, in_javascript])
def test_any_names_work(language: Callable[[Path], str], trains: bool, tmp_path: Path) -> None:
    for number, names in enumerate([*chunks(NAMES), drawn()]):
        if trains:
            names = [name for name in names if name != "loss"]
        folder, web = tmp_path / str(number), language is in_javascript
        faces = [face for face in ("fortran", "rust") if language.__name__ == f"in_{face}"]
        gt.bundle(network(names, trains=trains), folder, faces=faces, target="wasm32" if web else "host")
        assert language(folder) == (folder / "expected.txt").read_text(), names


@pytest.mark.parametrize("trains", [False, True], ids=["predicts", "trains"])
def test_any_names_work_in_python(trains: bool, tmp_path: Path) -> None:
    names = [name for name in NAMES if not (trains and name in ("loss", "lr"))]
    model = network(names, trains=trains)
    gt.bundle(model, tmp_path)
    random, loaded = np.random.default_rng(2), gt.load_bundle(tmp_path)
    given = {name: random.normal(size=(2, 2)).astype(np.float32) for name in names}
    if isinstance(model, gt.Trainer):
        assert loaded.step(**given) == model.step(given)
        return
    found = loaded.predict(**given)
    assert list(found) == names[::-1]
    for name, array in zip(reversed(names), given.values(), strict=True):
        np.testing.assert_array_equal(found[name], array * array)


MODELS = "c m gcc_s pthread Model Hyper Vec String Option Err size version VERSION transfer write_piece model code loss"


@pytest.mark.parametrize("name", MODELS.split())
@pytest.mark.parametrize("language", [in_fortran, in_rust])
def test_any_model_s_name_works(language: Callable[[Path], str], name: str, tmp_path: Path) -> None:
    x = Input(gt.f32[2, 2], "x")
    face = language.__name__.removeprefix("in_")
    made = gt.bundle(Graph((x,), {"y": x * x}, {}, name=name), tmp_path, faces=[face], archive=True).module.name
    if language is in_rust:
        assert in_rust(tmp_path) == (tmp_path / "expected.txt").read_text()
    else:
        ran(tmp_path, "make", "-C", "fortran", "check", "FFLAGS=-Wall -Werror -std=f2018")
    ran(tmp_path, "cc", "-L.", "main.c", f"{made}.o", "-lm", "-o", "example")


@pytest.mark.parametrize("ending", ["h", "hpp"])
def test_names_that_differ_in_case_alone_are_refused_in_one_program(ending: str, tmp_path: Path) -> None:
    """Their macros have the same names, and other values."""
    x = Input(gt.f32[2, 2], "x")
    for name in ("small", "Small"):
        gt.bundle(Graph((x,), {"y": x * x}, {}, name=name), tmp_path / name)
    for names, told in ((("small", "small"), ""), (("small", "Small"), "the letters of Small in another case")):
        source = "".join(f'#include "{name}/{name}.{ending}"\n' for name in names)
        (tmp_path / "both.cpp").write_text(source)
        command = ["g++", "-std=c++17", "-fsyntax-only", "both.cpp"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.returncode == 0, told in done.stderr) == (not told, True), done.stderr


@pytest.mark.parametrize("headers", ["stddef.h stdint.h", "stdio.h stdlib.h"])
def test_macros_of_headers_are_no_parameters(headers: str, tmp_path: Path) -> None:
    """What a compiler says that it replaces."""
    source = "".join(f"#include <{header}>\n" for header in headers.split())
    done = subprocess.run(["cc", "-dM", "-E", "-"], input=source, capture_output=True, text=True, check=True)
    found = [name for name in re.findall(r"#define (\w+) .", done.stdout) if not name.startswith("_")]
    assert "SIZE_MAX" in found or "EOF" in found
    gt.bundle(network(found, trains=False), tmp_path)
    header = (tmp_path / "net.h").read_text()
    assert not set(found) & set(re.findall(r"\*(\w+)[,)]", header))
