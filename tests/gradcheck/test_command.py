"""``glowtrain gradcheck MODEL``: a person's file, their data, and what they are told when something does not fit."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner, Result

import glowtrain as gt
from glowtrain.cli import app
from glowtrain.errors import VerificationError
from glowtrain.gradcheck import Check, GradcheckReport, RegistryReport, check_registry
from glowtrain.gradcheck.operators.coverage import Covered, summary
from glowtrain.gradcheck.report.junit import junit_xml
from glowtrain.graph import OPERATORS, Graph, Input, Variable
from glowtrain.onnx_io import save
from glowtrain.ops.elementwise.arithmetic import Floor
from glowtrain.ops.elementwise.logic import Cast
from glowtrain.types import f32, i64

X = Input(f32[4], "x")
W = Variable("w", np.linspace(0.5, 2, 4).astype(np.float32))


def told(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["gradcheck", *map(str, arguments)], env={"COLUMNS": "200"})


def written(folder: Path, graph: Graph) -> Path:
    save(graph, folder / "model.onnx")
    return folder / "model.onnx"


def arrays(folder: Path, **named: Any) -> Path:
    np.savez(folder / "data.npz", **named)
    return folder / "data.npz"


def relu(folder: Path) -> Path:
    return written(folder, Graph((X,), {"y": gt.nn.relu(X * W)}))


def test_a_model_on_drawn_data(tmp_path: Path) -> None:
    done = told(relu(tmp_path))
    assert done.exit_code == 0, done.output
    assert "2 checked by 2 oracles, 12 comparisons" in done.output
    assert "all passed" in done.output


def symbolic(folder: Path) -> Path:
    """y = x * w for any number of examples."""
    node = helper.make_node("Mul", ["x", "w"], ["y"])
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in "xy")
    graph = helper.make_graph([node], "model", [x], [y], [numpy_helper.from_array(W.initial, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), folder / "model.onnx")
    return folder / "model.onnx"


@pytest.mark.parametrize(("count", "advised"), [(64, False), (65, True)])
def test_many_examples_are_told_to_be_more_than_needed(count: int, advised: bool, tmp_path: Path) -> None:
    done = told(symbolic(tmp_path), "--input", arrays(tmp_path, x=np.random.default_rng(0).normal(size=(count, 4))))
    assert done.exit_code == 0, done.output
    assert (f"{count} examples: the time grows with their number, and 16 of them" in done.output) == advised


@pytest.mark.parametrize(
    ("options", "processes"),
    [
        (["--op", "Relu"], 1),
        (["--op", "LSTM", "--examples", "200"], 4),
        (["--op", "LSTM", "--profile", "deep"], 4),
        (["--op", "LSTM", "--examples", "200", "--jobs", "2"], 2),
        ([], 4),
    ],
)
def test_many_examples_are_shared_by_all_cores(
    options: list[str], processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def recorded(*arguments: Any, jobs: int, **settings: Any) -> RegistryReport:
        asked.append(jobs)
        return RegistryReport(())

    monkeypatch.setattr(import_module("glowtrain.cli.commands.gradcheck"), "check_registry", recorded)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    assert told(*options).exit_code == 0
    assert asked == [processes]


def test_a_model_on_given_data_tells_of_kinks(tmp_path: Path) -> None:
    done = told(relu(tmp_path), "--input", arrays(tmp_path, x=np.zeros(4)))
    assert done.exit_code == 0, done.output
    assert "1 at a kink, all passed" in done.output
    assert "x: input f64[4]: a kink at this point: slopes" in done.output


def test_a_loss_takes_its_targets_from_the_data(tmp_path: Path) -> None:
    data = arrays(tmp_path, x=np.linspace(-1, 1, 4), target=np.ones(4))
    done = told(relu(tmp_path), "--input", data, "--loss", "mse", "--output", "y")
    assert done.exit_code == 0, done.output
    assert "3 checked" in done.output


def test_a_template_takes_its_extents_from_the_data(tmp_path: Path) -> None:
    done = told("mlp", "--input", arrays(tmp_path, x=np.ones((2, 1, 28, 28))), "--loss", "softmax_cross_entropy")
    assert done.exit_code == 0, done.output
    assert "not bound" not in done.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--loss", "y"), "output 'y' must be a scalar to be a loss, its type is f32[4]; take its mean"),
        (("--loss", "nope"), "has no output 'nope'; it has 'y'"),
        (("--output", "nope"), "has no output 'nope'; it has 'y'"),
        (("--op", "Add"), "give a MODEL or --op, not both"),
    ],
)
def test_options_that_do_not_fit_a_model(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    refused = told(relu(tmp_path), *options)
    assert refused.exit_code == 1
    assert message in refused.output


@pytest.mark.parametrize(
    ("named", "message"),
    [({"z": np.zeros(4)}, "has no input 'z'"), ({"x": np.zeros(5)}, "'x' must be f32[4], not float32[5]")],
)
def test_data_that_does_not_fit_a_model(tmp_path: Path, named: dict[str, Any], message: str) -> None:
    refused = told(relu(tmp_path), "--input", arrays(tmp_path, **named))
    assert refused.exit_code == 1
    assert message in refused.output


def test_an_unknown_array_is_told_the_names_of_inputs_and_targets(tmp_path: Path) -> None:
    refused = told(relu(tmp_path), "--input", arrays(tmp_path, x=np.zeros(4), z=np.ones(4)), "--loss", "mse")
    assert refused.exit_code == 1
    assert "with its loss has no input 'z'; it has x, target" in refused.output


@pytest.mark.parametrize("names", [("features", "target"), ("features", "y"), ("x", "y")])
def test_arrays_may_have_the_names_that_train_takes(tmp_path: Path, names: tuple[str, str]) -> None:
    features = Input(f32[4], "features")
    model = written(tmp_path, Graph((features,), {"out": gt.nn.relu(features * W)}))
    given = dict(zip(names, (np.zeros(4), np.ones(4)), strict=True))
    done = told(model, "--input", arrays(tmp_path, **given), "--loss", "mse")
    assert done.exit_code == 0, done.output
    assert "features: input f64[4]: a kink" in done.output  # which drawn numbers would not have
    refused = told(model, "--input", arrays(tmp_path, **{names[1]: np.ones(5)}), "--loss", "mse")
    assert "'target' must be f32[4], not float32[5]" in refused.output


def test_y_is_the_input_of_that_name_where_there_is_one(tmp_path: Path) -> None:
    y = Input(f32[4], "y")
    model = written(tmp_path, Graph((y,), {"out": gt.nn.relu(y * W)}))
    done = told(model, "--input", arrays(tmp_path, y=np.zeros(4)), "--loss", "mse")
    assert "y: input f64[4]: a kink" in done.output


def test_written_files_are_named(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("report.json", "report.xml", "report.html")]
    options = [word for pair in zip(("--json", "--junit", "--html"), files, strict=True) for word in pair]
    done = told(relu(tmp_path), *options)
    assert [f"wrote {path}" for path in files] == done.output.splitlines()[-3:]


def test_help_of_the_seed_and_of_arrays() -> None:
    said = " ".join(told("--help").output.replace("│", " ").split())
    assert "Fixes what is drawn: examples, random programs" in said
    assert "or y as for train); on drawn ones otherwise" in said
    assert " else)" not in said


@pytest.mark.exhaustive
def test_one_is_singular() -> None:
    said = told("--op", "Shape", "--examples", "1").output
    assert "1 operator, 0 of them" in said
    assert "1 combination of attributes, 1 example (" in summary([Covered("Shape", 1, frozenset(["Shape"]))])
    report = check_registry(["Tanh"], 1, oracles=["types"])
    assert report.summary().startswith("1 checked by 1 oracle, 1 comparison, all passed")
    failed = GradcheckReport((Check("w", "gradient", "failed", 1, 1.0, 9.0, "wrong"),))
    with pytest.raises(VerificationError, match="^1 gradient check failed:"):
        failed.raise_if_failed()
    passed = GradcheckReport((Check("w", "gradient", "passed", 1, 0.0, 0.0),))
    assert "1 comparison, worst" in junit_xml(passed)
    assert "1 random program, from" in check_registry([], programs=1).summary()


def test_data_needs_a_model(tmp_path: Path) -> None:
    refused = told("--input", arrays(tmp_path, x=np.zeros(4)))
    assert refused.exit_code == 1
    assert "give one" in refused.output


def test_the_operator_that_cuts_a_path_is_named(tmp_path: Path) -> None:
    found = told(written(tmp_path, Graph((X,), {"y": Floor()(X * W) + X})))
    assert found.exit_code == 1
    assert "w, gradient: parameter f64[4]: no gradient reaches it; it is cut by Floor(f64[4])" in found.output


def test_integer_parameters_are_refused(tmp_path: Path) -> None:
    k = Variable("k", np.arange(4))
    refused = told(written(tmp_path, Graph((X,), {"y": X * Cast(to=f32)(k)})))
    assert refused.exit_code == 1
    assert "k (i64[4]): trainable, but not of a float type" in refused.output


def test_a_model_with_nothing_to_check_is_refused(tmp_path: Path) -> None:
    k = Input(i64[3], "k")
    refused = told(written(tmp_path, Graph((k,), {"y": Cast(to=f32)(k)})))
    assert refused.exit_code == 1
    assert "no trainable parameter and no float input: there is nothing to check" in refused.output


def test_an_operator_without_a_rule_is_named(tmp_path: Path) -> None:
    known = set(OPERATORS)

    @gt.operator
    @dataclass(frozen=True)
    class Opaque(gt.Operator):
        domain = "test.command"
        onnx = "Opaque"

        def infer(self, *inputs: Any) -> Any:
            return inputs[0]

        def reference(self, *inputs: Any) -> Any:
            return inputs[0]

    try:
        refused = told(written(tmp_path, Graph((X,), {"y": Opaque()(X)})))
    finally:
        for key in set(OPERATORS) - known:
            del OPERATORS[key]
    assert refused.exit_code == 1
    assert "Opaque(f64[4]) has no gradient rule" in refused.output
    assert "class Opaque a vjp" in refused.output


def test_a_table_says_that_its_numbers_are_errors(tmp_path: Path) -> None:
    (heads,) = [line for line in told(relu(tmp_path)).output.splitlines() if line.startswith("checked")]
    assert heads.split("  ")[-2:] == ["gradient error", "compiled error"]
