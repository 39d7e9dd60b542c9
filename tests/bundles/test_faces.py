"""The texts of other languages: names, types and numbers; tests/targets compiles and runs them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import glowtrain as gt
from glowtrain.bundles.codes import ErrorCode
from glowtrain.bundles.faces.c.cpp import KEYWORDS as OF_CPP
from glowtrain.bundles.faces.fortran.names import wrapped
from glowtrain.bundles.faces.identifiers import named
from glowtrain.bundles.faces.rust.crate import KEYWORDS as OF_RUST
from glowtrain.cli import app
from glowtrain.errors import BundleError
from glowtrain.graph import Graph, Input
from tests.bundles.small_bundles import BATCH, halves, odd_names, written
from tests.compiler.networks import mlp

RUNNER = CliRunner()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("mlp"), faces=["rust", "fortran", "rust"])


def text(folder: Path, name: str) -> str:
    return (folder / name).read_text()


def test_files_of_faces(folder: Path) -> None:
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.parent != folder and path.is_file()}
    assert found == {
        *("rust/Cargo.toml", "rust/build.rs", "rust/libmlp.a", "rust/src/lib.rs", "rust/examples/train.rs"),
        *("fortran/mlp.f90", "fortran/main.f90", "fortran/Makefile"),
    }


def test_sizes_are_those_of_the_header(folder: Path) -> None:
    header = text(folder, "mlp.h")
    sizes = {name: re.search(rf"MLP_{name} (\d+)", header) for name in ("ALIGNMENT", "VARIABLES_BYTES", "ARENA_BYTES")}
    version = re.search(r"MLP_VERSION (\d+)u", header)
    assert version is not None
    assert f"const VERSION: u32 = {version[1]};" in text(folder, "rust/src/lib.rs")
    for name, found in sizes.items():
        assert found is not None
        assert f"pub const {name}: usize = {found[1]};" in text(folder, "rust/src/lib.rs")
        assert f":: mlp_{name} = {found[1]}_c_size_t" in text(folder, "fortran/mlp.f90")


def test_error_codes_are_in_all_languages(folder: Path) -> None:
    for code in ErrorCode:
        assert f"pub const {code.name}: u32 = {code.value};" in text(folder, "rust/src/lib.rs")

        parameter = f"integer(c_int32_t), parameter, public :: mlp_{code.name} = {code.value}"
        assert f"  ! {code.text}\n  {parameter}\n" in text(folder, "fortran/mlp.f90")


def test_signatures(folder: Path) -> None:
    parameters = "View<const float> x, View<const int64_t> labels, float &loss"
    assert f"Result step({parameters}, const mlp_hyper &hyper = mlp_defaults)" in text(folder, "mlp.hpp")
    assert "if (x.size() != 256) return failed(MLP_WRONG_SIZE);" in text(folder, "mlp.hpp")
    assert "pub fn step(&mut self, x: &[f32], labels: &[i64], hyper: &Hyper) -> Result<f32, Error>" in text(
        folder, "rust/src/lib.rs"
    )
    assert "real(c_float), intent(in) :: x(8, 8, 1, 4)" in text(folder, "fortran/mlp.f90")


def test_versions_are_signed_numbers_in_fortran(folder: Path) -> None:
    version = int(re.findall(r"MLP_VERSION (\d+)u", text(folder, "mlp.h"))[0])
    found = re.findall(r":: version = (-?\d+)_c_int32_t", text(folder, "fortran/mlp.f90"))
    assert [int(number) & 0xFFFFFFFF for number in found] == [version]


def test_names_that_mean_something_else(tmp_path: Path) -> None:
    written(tmp_path, odd_names(), faces=("rust", "fortran"))
    assert "match_: &[f32], last_: &[u8]" in text(tmp_path, "rust/src/lib.rs")
    assert "handle, first_input, first_input_, match, last, " in text(tmp_path, "fortran/odd_names.f90")
    assert 'predict: the \\"state\\" {:08x}' in text(tmp_path, "rust/examples/train.rs")
    assert 'predict: the ""state"" ' in text(tmp_path, "fortran/main.f90")
    assert named("match", OF_RUST | {"match_"}) == "match__"
    assert named("class", OF_CPP) == "class_"
    assert named("x", OF_CPP | OF_RUST) == "x"


def test_names_that_mean_something_in_templates(tmp_path: Path) -> None:
    x = Input(gt.f32[2, 2], "network")
    graph = Graph((x,), {"{{version}}": x * x, "// {{#variables}}": x + x}, {}, name="model")
    written(tmp_path, graph, faces=("rust", "fortran"))
    assert "uint32_t model_predict(model_handle *handle, const float *network, float *m___version__, " in text(
        tmp_path, "model.h"
    )
    assert " *   m___version__: f32[2,2] ({{version}})" in text(tmp_path, "model.h")
    assert 'sized("network", network.len(), 4)?;' in text(tmp_path, "rust/src/lib.rs")
    for file in ("model.h", "model.hpp", "main.c", "rust/src/lib.rs", "fortran/model.f90", "fortran/main.f90"):
        assert not re.search(r"\bnetwork_[a-z]|NETWORK", text(tmp_path, file)), file


def test_half_precision_is_passed_as_bits(tmp_path: Path) -> None:
    written(tmp_path, halves, dims={"batch": 2}, faces=("rust", "fortran"))
    assert "View<const uint16_t> x" in text(tmp_path, "halves.hpp")
    assert "x: &[u16]" in text(tmp_path, "rust/src/lib.rs")
    assert "integer(c_int16_t), intent(in) :: x(5, 2)" in text(tmp_path, "fortran/halves.f90")


def test_lines_of_fortran_are_short_enough(tmp_path: Path) -> None:
    written(tmp_path, odd_names(), name="a_network_with_a_rather_long_name", faces=("fortran",))
    texts = [path.read_text() for path in (tmp_path / "fortran").glob("*.f90")]
    assert [line for text in texts for line in text.splitlines() if len(line) > 132 and not line.startswith("!")] == []
    wide = ", ".join(["x" * 30] * 3)
    assert wrapped(f"call f({wide}, {wide})") == [f"call f({wide}, &", f"        {wide})"]
    assert wrapped(f"print '(a, a)', \"{wide}\", yyyyyy, z") == [f"print '(a, a)', \"{wide}\", &", "        yyyyyy, z"]
    assert wrapped(f"! {wide}, {wide}") == [f"! {wide}, {wide}"]


def test_without_weights_there_is_no_example(tmp_path: Path) -> None:
    written(tmp_path, weights="none", faces=("rust", "fortran"))
    assert not (tmp_path / "rust" / "examples").exists()
    assert "[[example]]" not in text(tmp_path, "rust/Cargo.toml")
    assert [path.name for path in (tmp_path / "fortran").iterdir()] == ["mlp.f90"]


def test_a_bundle_that_only_predicts_has_no_variables(tmp_path: Path) -> None:
    written(tmp_path, mlp, dims={"batch": 2}, faces=("rust", "fortran"))
    for name in ("mlp.hpp", "rust/src/lib.rs", "fortran/mlp.f90"):
        assert "mlp_save" not in text(tmp_path, name)
        assert "mlp_hyper" not in text(tmp_path, name)


def test_faces_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="a bundle has no face for 'cobol': choose fortran or rust"):
        written(tmp_path / "b", faces=["cobol"])
    with pytest.raises(BundleError, match="is too long a name for Fortran: choose one of 40 letters"):
        written(tmp_path / "b", name="n" * 41, faces=["fortran"])
    assert not (tmp_path / "b").exists()


def called(*arguments: object) -> tuple[int, str]:
    result = RUNNER.invoke(app, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join(result.output.split())


def test_on_the_command_line(tmp_path: Path) -> None:
    given = "bundle", "mlp", "--batch", BATCH, "--out", tmp_path
    assert called(*given, "--archive", "--face", "rust", "--face", "fortran")[0] == 0
    assert {"libmlp.a", "rust", "fortran"} <= {path.name for path in tmp_path.iterdir()}
    status, said = called(*given, "--face", "cobol")
    assert status != 0
    assert "a bundle has no face for 'cobol': choose fortran or rust" in said
    status, said = called(*given, "--cc", "cc")
    assert status != 0
    assert "ask for that, too (--shared)" in said
