"""A bundle's files for browsers and Node, as texts; tests/targets runs them."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from typer.testing import CliRunner

import glowtrain as gt
from glowtrain.bundles.codes import ErrorCode
from glowtrain.bundles.faces import web
from glowtrain.bundles.signature import ELEMENTS
from glowtrain.bundles.weights import header_of
from glowtrain.cli import app
from glowtrain.errors import BundleError
from glowtrain.graph import Value
from glowtrain.onnx_io.write.offsets import initializer_offsets
from glowtrain.types import TensorType

WEB = Path(web.__file__).parent


@gt.model(x=gt.f32["batch", 1, 8, 8])
def digits(x: Value) -> Value:
    return gt.nn.linear(
        gt.nn.batch_norm(gt.nn.relu(gt.nn.linear(gt.nn.flatten(x), 5, name="hidden"))), 10, name="scores"
    )


@gt.model(x=gt.f32["batch", 3])
def three(x: Value) -> Value:
    return gt.nn.linear(x, 2, name="layer")


def _files(path: Path, model: Any = three, **settings: Any) -> dict[str, str]:
    """The files of a bundle that trains, by name; those that are no text without what they hold."""
    given = {"loss": "mse", "optimizer": gt.optim.SGD(0.5, momentum=0.9), "dims": {"batch": 4}, **settings}
    gt.bundle(model, path, target="wasm32", **given)
    binary = (".o", ".wasm", ".safetensors")
    return {file.name: "" if file.suffix in binary else file.read_text(encoding="utf-8") for file in path.iterdir()}


def _description(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.JSONDecoder().raw_decode(text[text.index("{") :])[0]
    return found


def test_files_of_a_bundle_for_webassembly(tmp_path: Path) -> None:
    files = _files(tmp_path)
    assert {"three.wasm", "three.mjs", "three.d.mts", "worker.mjs", "example.mjs"} <= files.keys()
    assert "index.html" not in files
    assert not any("{{" in files[name] for name in ("three.mjs", "three.d.mts", "worker.mjs", "example.mjs"))


def test_other_targets_have_no_javascript(tmp_path: Path) -> None:
    gt.bundle(three, tmp_path, dims={"batch": 1}, target="scalar")
    assert not [*tmp_path.glob("*.mjs"), *tmp_path.glob("*.wasm")]


def test_weights_beside_the_module_leave_the_example_out(tmp_path: Path) -> None:
    files = _files(tmp_path, weights="file")
    assert "three.safetensors" in files
    assert "example.mjs" not in files
    assert 'weights = new URL("three.safetensors", import.meta.url)) =>' in files["three.mjs"]
    assert "safetensors" not in _files(tmp_path / "none", weights="none")["three.mjs"].rpartition("*/")[2]


def test_what_the_example_prints_is_rounded_as_webassembly_rounds(tmp_path: Path) -> None:
    """Multiply-adds are rounded twice there, as on x86-64-v2."""
    printed = {}
    for target in ("wasm32", "sse4", "scalar"):
        gt.bundle(three, tmp_path / target, loss="mse", dims={"batch": 4}, target=target)
        printed[target] = (tmp_path / target / "expected.txt").read_text(encoding="utf-8")
    assert printed["wasm32"] == printed["sse4"] != printed["scalar"]


def test_what_javascript_knows_of_the_module(tmp_path: Path) -> None:
    files = _files(tmp_path)
    found, manifest = _description(files["three.mjs"]), json.loads(files["three.json"])
    assert (found["name"], found["version"]) == ("three", manifest["version"])
    assert found["variablesBytes"] == manifest["variables_bytes"]
    assert found["arenaBytes"] == manifest["arena_bytes"]
    assert [each["name"] for each in found["variables"]] == [each["name"] for each in manifest["variables"]]
    step, predict = found["functions"]["step"], found["functions"]["predict"]
    assert [(e["name"], e["type"], e["bytes"]) for e in step["inputs"]] == [
        ("x", "f32[4,3]", 48),
        ("target", "f32[4,2]", 32),
    ]
    assert {each["name"]: each["default"] for each in step["hyper"]}["lr"] == 0.5
    assert [(e["dtype"], e["shape"], e["size"]) for e in predict["outputs"]] == [("f32", [4, 2], 4)]


def test_names_cannot_end_the_scripts_they_stand_in(tmp_path: Path) -> None:
    @gt.model(x=gt.f32["batch", 1, 8, 8])
    def named(x: Value) -> Value:
        return gt.nn.linear(gt.nn.flatten(x), 10, name="</script><!--<script>")

    text = _files(tmp_path, named, loss="softmax_cross_entropy", page=True)["index.html"]
    assert "</script><!--" not in text
    assert text.count("<script") == text.count("</script>") == 3


def test_files_of_weights_have_the_header_of_the_c_interface(tmp_path: Path) -> None:
    found = _description(_files(tmp_path)["three.mjs"])
    types = {each["name"]: TensorType(getattr(gt, each["dtype"]), tuple(each["shape"])) for each in found["variables"]}
    assert found["header"].encode() == header_of(types)[8:]


def test_javascript_names_every_error(tmp_path: Path) -> None:
    files = _files(tmp_path)
    named = {int(number): name for number, (name, _) in _description(files["three.mjs"])["errors"].items()}
    assert named == {code.value: code.name for code in ErrorCode if code}
    assert all(f'"{name}"' in files["three.d.mts"] for name in named.values())


def test_types_for_typescript(tmp_path: Path) -> None:
    text = _files(tmp_path)["three.d.mts"]
    assert "export interface TrainInputs {\n  /** f32[4,3] */\n  x: Float32Array | ArrayLike<number>;\n" in text
    assert "  train(inputs: TrainInputs, hyper?: Hyperparameters): number;" in text
    assert "export interface PredictOutputs {\n  /** f32[4,2] */\n  output: Float32Array;\n}" in text
    assert '  /** f32[3,2] */\n  "layer.weight"?: Float32Array;\n' in text


def test_a_bundle_that_predicts_has_no_method_to_train(tmp_path: Path) -> None:
    files = _files(tmp_path, loss=None, optimizer=None)
    assert "train(" not in files["three.d.mts"]
    assert 'method: "predict", args: [{ x }]' in files["worker.mjs"]


def test_typescript_and_javascript_have_the_same_arrays() -> None:
    table = re.search(r"const ARRAYS = \{(.*?)\};", (WEB / "model.js").read_text(), re.DOTALL)
    assert table is not None
    assert dict(re.findall(r"(\w+): (\w+)", table[1])) == {
        name: element.javascript for name, element in ELEMENTS.items()
    }


# --- the page ---------------------------------------------------------------------------------------------------------


def _page(path: Path) -> tuple[str, dict[str, Any]]:
    """The page for digits, and the data in it."""
    text = _files(path, digits, loss="softmax_cross_entropy", page=True)["index.html"]
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert data is not None
    return text, json.loads(data[1])


def test_the_page_is_one_file_that_asks_for_no_other(tmp_path: Path) -> None:
    text, _ = _page(tmp_path)
    assert "default-src 'none'" in text
    assert not re.findall(r"""(?:src|href)\s*=\s*["'](?!data:)|@import|url\(|https?://""", text)
    assert "{{" not in text


def test_the_page_has_the_data_set_and_the_module(tmp_path: Path) -> None:
    _, found = _page(tmp_path)
    data = gt.data.digits()
    for part, expected in (("train", data.train), ("valid", data.valid)):
        images = np.frombuffer(base64.b64decode(found[part]["images"]), np.uint8)
        np.testing.assert_array_equal((images / np.float32(16)).reshape(expected["x"].shape), expected["x"])
        np.testing.assert_array_equal(list(base64.b64decode(found[part]["labels"])), expected["y"])
    assert base64.b64decode(found["wasm"]) == (tmp_path / "digits.wasm").read_bytes()
    assert found["names"] == {"batch": 4, "x": "x", "scores": "output", "labels": "labels", "rate": "lr"}
    assert found["rate"] == 0.5


def test_weights_can_be_put_into_the_model_of_the_page(tmp_path: Path) -> None:
    _, found = _page(tmp_path)
    model = bytearray(base64.b64decode(found["onnx"]))
    described = _description((tmp_path / "digits.mjs").read_text())
    names = {each["name"] for each in described["variables"] if each["role"] != "state"}
    assert found["offsets"].keys() == names
    random = np.random.default_rng(3)
    weights = {}
    for each in described["variables"]:
        if each["name"] in names:
            weights[each["name"]] = random.normal(size=each["shape"]).astype(np.float32)
            offset = found["offsets"][each["name"]]
            model[offset : offset + each["bytes"]] = weights[each["name"]].tobytes()
    read = {each.name: numpy_helper.to_array(each) for each in onnx.load_from_string(bytes(model)).graph.initializer}
    for name, values in weights.items():
        np.testing.assert_array_equal(read[name], values)


def test_offsets_of_initializers() -> None:
    first, second = np.arange(3, dtype=np.float32), np.float64(7)
    typed = onnx.helper.make_tensor("typed", onnx.TensorProto.FLOAT, [2], [1.0, 2.0])
    tensors = [numpy_helper.from_array(first, "first"), typed, numpy_helper.from_array(second, "second")]
    node = onnx.helper.make_node("Identity", ["first"], ["y"])
    output = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [3])
    data = onnx.helper.make_model(onnx.helper.make_graph([node], "g", [], [output], tensors)).SerializeToString()
    found = initializer_offsets(data)
    assert found.keys() == {"first", "second"}  # the other's elements are fields of their own
    assert [data[slice(*found[name])] for name in found] == [first.tobytes(), second.tobytes()]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {},
            r"a page trains on digits, .*; this model takes x f32\[4,3\], target f32\[4,2\] and gives output",
        ),
        ({"model": digits, "loss": None, "optimizer": None}, "a page trains its model: give a loss"),
        ({"model": digits, "loss": "softmax_cross_entropy", "weights": "none"}, "a page holds the model's weights"),
    ],
    ids=["shapes", "predicts", "weights"],
)
def test_models_that_have_no_page(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BundleError, match=message):
        _files(tmp_path / "out", **settings, page=True)
    assert not (tmp_path / "out").exists()


def test_a_page_is_for_webassembly(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="choose the target wasm32, not scalar"):
        gt.bundle(digits, tmp_path, loss="softmax_cross_entropy", target="scalar", page=True)


@pytest.mark.exhaustive
def test_the_command_writes_a_page_for_a_model_that_comes_along(tmp_path: Path) -> None:
    given = "--train", "--batch", "8", "--target", "wasm32", "--page"
    assert CliRunner().invoke(app, ["bundle", "mlp", "--out", str(tmp_path), *given]).exit_code == 0
    assert "mlp learns digits in this tab" in (tmp_path / "index.html").read_text(encoding="utf-8")
