"""``glowtrain gradients``: what it says of a file, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner, Result

import glowtrain as gt
from glowtrain import models
from glowtrain.cli import app
from glowtrain.graph import Graph, Input, Node, Value, Variable
from glowtrain.ops.elementwise.arithmetic import Round
from glowtrain.ops.elementwise.logic import Cast
from glowtrain.ops.indexing.arg_extrema import ArgMax
from glowtrain.ops.indexing.gather import Gather

X = Input(gt.f32[2, 4], "x")


def told(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["gradients", *map(str, arguments)])


def refused(*arguments: object) -> str:
    result = told(*arguments)
    assert result.exit_code == 1, result.output
    assert "Traceback" not in result.output
    return " ".join(result.stderr.split())


def weight(name: str, *shape: int) -> Variable:
    return Variable(name, np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape))


def written(folder: Path, **outputs: Value) -> Path:
    gt.save(Graph((X,), outputs, name="net"), folder / "net.onnx")
    return folder / "net.onnx"


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A file whose parameters all get a gradient."""
    return written(tmp_path, y=gt.nn.relu(X @ weight("head.weight", 4, 3)))


@pytest.fixture
def cut(tmp_path: Path) -> Path:
    """A file with a layer that is rounded, a gate that is chosen, and what another output alone reads."""
    hidden = gt.nn.relu(X @ weight("fc1.weight", 4, 5) + weight("fc1.bias", 5))
    rounded = Node(Round(), [hidden], "/fc1/round").output @ weight("fc2.weight", 5, 3)
    best = Node(ArgMax(axis=1, keepdims=True), [X @ weight("gate.weight", 4, 3)], "/gate/best").output
    return written(tmp_path, y=rounded * Cast(to=gt.f32)(best), aux=X * weight("other.weight", 4))


def test_what_is_printed(cut: Path, golden: Callable[[str, str], None]) -> None:
    result = told(cut, "--of", "y")
    assert result.exit_code == 1
    lines = (line.rstrip() for line in result.stdout.splitlines())
    golden("gradients.txt", "\n".join(lines) + "\n")


def test_the_exit_status_says_whether_all_parameters_get_one(whole: Path, tmp_path: Path) -> None:
    done = told(whole)
    assert done.exit_code == 0, done.output
    assert "gradients reach 1 of 1 parameters, 1 of 1 inputs" in done.output
    lost = told(written(tmp_path, y=Round()(X * weight("w", 4))))
    assert lost.exit_code == 1
    assert "no gradient reaches 1 parameter: 1 parameter w: cut by Round" in " ".join(lost.stderr.split())


def test_models_that_come_along_and_losses() -> None:
    done = told("mlp", "--loss", "softmax_cross_entropy")
    assert done.exit_code == 0, done.output
    assert "mlp: ways of the gradient of the loss" in done.output
    assert "SoftmaxCrossEntropyLoss" in done.output
    assert "not bound" not in done.output, "extents do not matter here"


def test_parameters_are_chosen(cut: Path) -> None:
    assert told(cut, "--by", "other.weight").exit_code == 0
    assert "fc1.weight, fc1.bias" in refused(cut, "--by", "fc*")


def test_json(cut: Path, tmp_path: Path) -> None:
    result = told(cut, "--json", tmp_path / "found.json")
    assert result.exit_code == 1
    assert f"wrote {tmp_path / 'found.json'}" in result.output
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert found["passed"] is False
    assert [leaf["name"] for leaf in found["leaves"] if leaf["standing"] == "cut"] == [
        "fc1.weight",
        "fc1.bias",
        "gate.weight",
    ]
    assert {entry["operator"] for entry in found["cuts"]} == {"Round", "ArgMax"}


def test_names_with_brackets_are_printed_as_they_are(tmp_path: Path) -> None:
    assert "[bold]w[/bold]" in refused(written(tmp_path, y=Round()(X * weight("[bold]w[/bold]", 4))))


def test_bad_input(cut: Path, tmp_path: Path) -> None:
    assert "no output 'z'; it has 'y', 'aux'" in refused(cut, "--of", "z")
    assert "(the nearest is 'other.weight')" in refused(cut, "--by", "ohter.weight")
    assert "give a loss or outputs, not both" in refused(cut, "--loss", "mse", "--of", "y")
    assert "there is no loss 'mze' (the nearest is 'mse')" in refused(cut, "--loss", "mze")
    assert "--output is what a --loss compares" in refused(cut, "--output", "y")
    assert "no such file" in refused(tmp_path / "nowhere.onnx")
    assert "does not exist; create it first" in refused(cut, "--json", tmp_path / "no" / "such" / "folder.json")
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    assert "broken.onnx" in refused(tmp_path / "broken.onnx")


def exported(model: object, *arguments: object, folder: Path) -> tuple[str, gt.Graph | gt.Template]:
    """What is said of a gradient that is written, and the gradient."""
    path = folder / "gradient.onnx"
    result = told(model, *arguments, "--out", path)
    assert result.exit_code == 0, result.output
    assert f"wrote {path}: " in result.output
    return result.output, gt.load(path)


def test_a_gradient_is_written(tmp_path: Path) -> None:
    said, model = exported("mlp", "--of", "scores", "--by", "x", folder=tmp_path)
    assert said.rstrip().endswith(
        "gradient.onnx: x f32[batch,1,28,28], scores.cotangent f32[batch,10] -> "
        "scores f32[batch,10], x.gradient f32[batch,1,28,28]"
    )
    x = np.random.default_rng(2).normal(size=(3, 1, 28, 28)).astype(np.float32)
    feeds = {"x": x, "scores.cotangent": np.eye(10, dtype=np.float32)[:3]}
    expected = gt.compile(gt.gradient_model(models.build("mlp"), "scores", "x"), "interpreter")(feeds)
    for name, array in gt.compile(model, "interpreter")(feeds).items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-4, atol=1e-6)


def test_there_are_standard_operators_only(tmp_path: Path) -> None:
    exported("transformer", folder=tmp_path)
    proto = onnx.load(tmp_path / "gradient.onnx")
    assert not proto.functions
    assert {node.domain for node in proto.graph.node} == {""}


def test_of_a_loss_by_parameters(whole: Path, tmp_path: Path) -> None:
    said, model = exported(whole, "--loss", "mse", "--by", "head.*", folder=tmp_path)
    assert "x f32[2,4], target f32[2,3] -> loss f32[], head.weight.gradient f32[4,3]" in said
    x, target = np.ones((2, 4), np.float32), np.zeros((2, 3), np.float32)
    trainer = gt.Trainer(gt.load(whole), gt.losses.mse(), gt.optim.SGD(lr=0.1), backend="interpreter")
    expected = trainer.gradients({"x": x, "target": target})["head.weight"]
    found = gt.compile(model, "interpreter")({"x": x, "target": target})["head.weight.gradient"]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    said, _ = exported("mlp", "--loss", "mse", "--by", "scores.bias", folder=tmp_path)
    assert "target f32[batch,10] -> loss f32[], scores.bias.gradient f32[10]" in said, "a mean over any number"


def test_the_inference_form_is_differentiated(tmp_path: Path) -> None:
    """A file in training form: with the batch's statistics the gradient of the sum would be zero."""
    numbers = dict.fromkeys(("scale", "bias", "mean", "variance"), np.full(4, 0.25, np.float32))
    parts = [Variable(name, array, name in ("scale", "bias")) for name, array in numbers.items()]
    normal = gt.ops.BatchNormalization(epsilon=0.0, training_mode=True)(X, *parts)
    _, model = exported(written(tmp_path, y=normal[0]), "--total", folder=tmp_path)
    found = gt.compile(model, "interpreter")({"x": np.ones((2, 4), np.float32)})["x.gradient"]
    np.testing.assert_allclose(found, np.full((2, 4), 0.5), rtol=1e-5)


def test_dimensions_that_cannot_stay_open_are_told(tmp_path: Path) -> None:
    @gt.model(x=gt.f32["n", 3])
    def odd(x: Value) -> Value:
        return gt.nn.relu(x) * float(np.sqrt(x.shape[0]))

    gt.save(odd.bind({"n": 4}), tmp_path / "fixed.onnx")
    said, model = exported(tmp_path / "fixed.onnx", folder=tmp_path)
    assert "only" not in said, "that file is fixed already"
    images = written(tmp_path, y=X)
    gt.save(_images(), images)
    said, model = exported(images, "--of", "y", "--by", "conv.*", folder=tmp_path)
    assert "the gradient is for h=2 only, as it depends on more of that than shapes; --dims h=N for another" in said
    assert [spec.shape for spec in model.inputs.values()] == [("n", 2, 2, 4)]  # type: ignore[union-attr]
    said, model = exported(images, "--of", "y", "--by", "conv.*", "--dims", "h=5", folder=tmp_path)
    assert "only" not in said
    assert [spec.shape for spec in model.inputs.values()] == [("n", 2, 5, 4)]  # type: ignore[union-attr]


def _images() -> gt.Template:
    @gt.model(x=gt.f32["n", 2, "h", 4])
    def images(x: Value) -> dict[str, Value]:
        return {"y": gt.nn.total(gt.nn.conv(x, 3, 2, name="conv"))}

    return images


@pytest.mark.exhaustive
def test_what_cannot_be_written_leaves_nothing(cut: Path, tmp_path: Path) -> None:
    path, before = tmp_path / "gradient.onnx", cut.read_bytes()
    arguments: list[tuple[tuple[object, ...], str]] = [
        (("--of", "y", "--by", "gate.weight"), "'gate.weight' differentiably: cut by ArgMax{axis=1}(f32[2,3]) of node"),
        (("--of", "y", "--by", "other.weight"), "output 'y' does not depend on variable 'other.weight'"),
        (("--of", "z"), "has no output 'z'; it has 'y', 'aux'"),
        (("--of", "aux", "--by", "xx"), "no input or variable 'xx' (the nearest is 'x')"),
        ((), "net has 2 outputs of floats; name one: y, aux"),
        (("--of", "y", "--of", "aux"), "--out takes one --of, or a --loss"),
        (("--of", "y", "--loss", "mse"), "--out takes one --of, or a --loss"),
        (("--of", "aux", "--json", tmp_path / "found.json"), "--json is what is found without --out"),
        (("--of", "aux", "--opset", 3), "cannot save at opset 3"),
    ]
    for given, message in arguments:
        assert message in refused(cut, *given, "--out", path), given
    assert "net.onnx is the model itself" in refused(cut, "--of", "aux", "--out", cut)
    assert "net.onnx is the model itself" in refused(cut, "--json", cut)
    (tmp_path / "link.onnx").symlink_to(cut)
    assert "is the model itself" in refused(cut, "--of", "aux", "--out", tmp_path / "link.onnx")
    assert "does not exist; create it first" in refused(cut, "--of", "aux", "--out", tmp_path / "no" / "gradient.onnx")
    assert "--total and --opset are for --out" in refused(cut, "--total")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["link.onnx", "net.onnx"]
    assert cut.read_bytes() == before


def test_weights_beside_the_model_are_not_overwritten(whole: Path, tmp_path: Path) -> None:
    onnx.save(
        onnx.load(whole), tmp_path / "big.onnx", save_as_external_data=True, location="big.data", size_threshold=0
    )
    before = (tmp_path / "big.data").read_bytes()
    assert "big.data is the model itself" in refused(tmp_path / "big.onnx", "--out", tmp_path / "big.data")
    assert (tmp_path / "big.data").read_bytes() == before
    exported(tmp_path / "big.onnx", folder=tmp_path)


def test_integers_have_no_gradient(tmp_path: Path) -> None:
    ids = Input(gt.i64[2], "ids")
    table = weight("table", 5, 3)
    gt.save(Graph((ids,), {"y": Gather(axis=0)(table, ids)}, name="tokens"), tmp_path / "tokens.onnx")
    said = refused(tmp_path / "tokens.onnx", "--by", "ids", "--out", tmp_path / "gradient.onnx")
    assert "tokens: ids (i64[2]): not of a float type, so there is no gradient by it" in said
    assert "on no input of floats" in refused(tmp_path / "tokens.onnx", "--out", tmp_path / "gradient.onnx")
    assert exported(tmp_path / "tokens.onnx", "--by", "table", folder=tmp_path)
