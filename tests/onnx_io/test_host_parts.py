"""Models of strings and encoded images: what runs on the host, before and after what is compiled."""

from __future__ import annotations

import importlib.util
import io
import locale
import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator
from typer.testing import CliRunner

import glowtrain as gt
from glowtrain.cli import app
from glowtrain.errors import GlowtrainError, InputError, MissingExtraError, ModelError, UnsupportedOperatorError
from glowtrain.graph import HostedModel
from glowtrain.onnx_io.checks.conformance import ConformanceCase, run
from glowtrain.onnx_io.checks.node_tests import node_tests
from glowtrain.onnx_io.read.cut import is_strings

ML = "ai.onnx.ml"
F, S, INT, U = TensorProto.FLOAT, TensorProto.STRING, TensorProto.INT64, TensorProto.UINT8
WORDS = np.array(["Spam", "ham", "eggs", "none of these"], object)


def proto(
    nodes: Sequence[NodeProto], inputs: dict[str, Any], outputs: dict[str, Any], opset: int = 20, **arrays: Any
) -> ModelProto:
    def infos(types: dict[str, Any]) -> list[Any]:
        return [helper.make_tensor_value_info(name, *type_) for name, type_ in types.items()]

    initializers = [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "words", infos(inputs), infos(outputs), initializers)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(ML, 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def classifier() -> ModelProto:
    """Words, in lower case, as numbers; their embeddings; scores of classes; the best class's name beside the word."""
    random = np.random.default_rng(0)
    nodes = [
        helper.make_node("StringNormalizer", ["word"], ["low"], case_change_action="LOWER", locale="tr_TR"),
        helper.make_node("LabelEncoder", ["low"], ["id"], domain=ML, keys_strings=["spam", "ham", "eggs"],
                         values_int64s=[0, 1, 2], default_int64=3),
        helper.make_node("Gather", ["table", "id"], ["embedded"]),
        helper.make_node("MatMul", ["embedded", "w"], ["scores"]),
        helper.make_node("ArgMax", ["scores"], ["best"], axis=1, keepdims=0),
        helper.make_node("LabelEncoder", ["best"], ["label"], domain=ML, keys_int64s=[0, 1],
                         values_strings=["no", "yes"]),
        helper.make_node("StringConcat", ["low", "label"], ["both"]),
    ]  # fmt: skip
    table, w = random.normal(size=(4, 3)).astype(np.float32), random.normal(size=(3, 2)).astype(np.float32)
    return proto(nodes, {"word": (S, ["n"])}, {"scores": (F, ["n", 2]), "both": (S, ["n"])}, table=table, w=w)


def needs_host(model: ModelProto) -> bool:
    values = (*model.graph.input, *model.graph.output)
    return any(is_strings(value.type) for value in values) or model.graph.node[0].op_type == "ImageDecoder"


def loaded(model: ModelProto) -> HostedModel:
    hosted = gt.load(model)
    assert isinstance(hosted, HostedModel)
    return hosted


def agree(model: ModelProto, hosted: HostedModel, inputs: dict[str, Any]) -> None:
    """The compiled model gives what ONNX's reference does for all of the file."""
    expected = ReferenceEvaluator(model).run(list(hosted.outputs), inputs)
    results = gt.compile(hosted, backend="interpreter")(inputs)
    assert list(results) == list(hosted.outputs)
    for array, wanted in zip(results.values(), expected, strict=True):
        if array.dtype == object:
            assert array.tolist() == np.asarray(wanted).tolist()
        else:
            np.testing.assert_allclose(array, wanted, rtol=1e-6)


@pytest.mark.filterwarnings("ignore:Unknown local setting")
class TestClassifierOfWords:
    def test_it_is_cut_in_three(self) -> None:
        hosted = loaded(classifier())
        assert hosted.before.operators == ("StringNormalizer", "LabelEncoder")
        assert hosted.after.operators == ("LabelEncoder", "StringConcat")
        assert isinstance(hosted.model, gt.Template)
        assert repr(hosted).startswith("<HostedModel host(StringNormalizer, LabelEncoder); <Template words(id i64[")
        agree(classifier(), hosted, {"word": WORDS})

    def test_strings_of_any_kind_of_array(self) -> None:
        function = gt.compile(loaded(classifier()))
        first = function({"word": WORDS})
        for words in (WORDS.astype(str), WORDS.tolist(), np.array(WORDS.tolist(), np.dtypes.StringDType())):
            again = function({"word": words})
            assert again["both"].dtype == object
            assert again["both"].tolist() == first["both"].tolist()
        copy = pickle.loads(pickle.dumps(function))
        assert copy({"word": WORDS})["both"].tolist() == first["both"].tolist()

    def test_training_and_saving_the_whole(self, tmp_path: Path) -> None:
        hosted = loaded(classifier())
        trainer = gt.Trainer(hosted.model, gt.losses.softmax_cross_entropy(output="scores"), gt.optim.Adam(lr=0.1))
        data = hosted.preprocess({"word": WORDS, "labels": np.array([1, 0, 1, 0])})
        assert data["id"].tolist() == [0, 1, 2, 3]
        trainer.fit(data, epochs=60, batch_size=4)
        path = tmp_path / "trained.onnx"
        saved = gt.save(hosted, path, state=trainer.variables())
        onnx.checker.check_model(saved, full_check=True)
        expected = ["spamyes", "hamno", "eggsyes", "none of theseno"]
        assert gt.compile(replace(hosted, model=trainer.model()))({"word": WORDS})["both"].tolist() == expected
        again = gt.load(path)
        assert isinstance(again, HostedModel)
        agree(saved, again, {"word": WORDS})
        assert gt.compile(again, backend="interpreter")({"word": WORDS})["both"].tolist() == expected

    def test_the_locale_of_the_process_stays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        set_to: list[str | None] = []
        monkeypatch.setattr(locale, "setlocale", lambda category, name=None: set_to.append(name))
        loaded(classifier()).preprocess({"word": WORDS})
        assert set(set_to) <= {None}

    def test_run(self, tmp_path: Path) -> None:
        model, data, out = (tmp_path / name for name in ("words.onnx", "in.npz", "out.npz"))
        onnx.save(classifier(), model)
        np.savez(data, word=WORDS.astype(str))
        result = CliRunner().invoke(app, ["run", str(model), "--input", str(data), "--output", str(out)])
        assert result.exit_code == 0, result.output
        assert "both string[4]" in result.output
        both = gt.compile(loaded(classifier()))({"word": WORDS})["both"]
        assert np.load(out)["both"].tolist() == both.tolist()

    @pytest.mark.parametrize(
        ("inputs", "message"),
        [
            ({}, "'word' is missing"),
            ({"word": WORDS, "x": 1}, "no input 'x'"),
            ({"word": [1, 2]}, "must be strings, and has 1"),
            ({"word": [["a", "b"]]}, "must have 1 axes, not the shape"),
            ({"word": ["a", None]}, "must be strings, and has None"),
            ("word", "must be a dict"),
        ],
    )
    def test_inputs_that_do_not_fit(self, inputs: Any, message: str) -> None:
        with pytest.raises(InputError, match=message):
            gt.compile(loaded(classifier()), backend="interpreter")(inputs)

    def test_strings_for_the_compiled_part(self) -> None:
        with pytest.raises(InputError, match="must be i64"):
            gt.compile(loaded(classifier()).model, backend="interpreter")({"id": WORDS})

    def test_other_doors_say_what_to_do(self, tmp_path: Path) -> None:
        hosted = loaded(classifier())
        with pytest.raises(InputError, match="not HostedModel; give its .model"):
            gt.Trainer(hosted, "mse", "sgd")
        with pytest.raises(GlowtrainError, match="not HostedModel; give its .model"):
            gt.bundle(hosted, tmp_path / "bundle")

    @pytest.mark.parametrize(
        ("command", "message"),
        [
            *((command, "gt.load(FILE).model") for command in (
                "inspect MODEL", "verify MODEL", "size MODEL", "profile MODEL", "gradients MODEL", "gradcheck MODEL",
                "train MODEL --data digits --out OUT", "evaluate MODEL --data digits", "bundle MODEL --out OUT",
                "quantize MODEL --calibrate digits --out OUT",
            )),
            ("run MODEL --input words.csv --output OUT", "taken from .npz files"),
            ("run MODEL --input words.npz --drop low --output OUT", "--drop leaves columns of a table out"),
        ],
    )  # fmt: skip
    def test_commands_say_what_to_do(self, tmp_path: Path, command: str, message: str) -> None:
        onnx.save(classifier(), tmp_path / "words.onnx")
        paths = {"MODEL": str(tmp_path / "words.onnx"), "OUT": str(tmp_path / "out.npz")}
        result = CliRunner().invoke(app, [paths.get(word, word) for word in command.split()])
        assert result.exit_code != 0
        assert message in " ".join(result.output.split())


@pytest.mark.spread(1)
def test_tests_of_onnx_pass_and_are_saved_whole() -> None:
    hosted = [test for test in node_tests() if needs_host(test.proto)]
    assert len(hosted) > 30
    for test in hosted:
        model = loaded(test.proto)
        outcome = run(ConformanceCase("node", test.name), "interpreter")
        assert outcome.passed, outcome
        before, again = (gt.compile(each, backend="interpreter") for each in (model, gt.load(gt.save(model))))
        for inputs in test.calls:
            results, expected = again(inputs), before(inputs)
            assert [array.tolist() for array in results.values()] == [array.tolist() for array in expected.values()]


class TestWhereNodesRun:
    def test_all_on_the_host(self) -> None:
        nodes = [helper.make_node("Equal", ["x", "y"], ["same"]), helper.make_node("Identity", ["x"], ["copy"])]
        model = proto(nodes, {"x": (S, [2]), "y": (S, [2])}, {"same": (TensorProto.BOOL, [2]), "copy": (S, [2])})
        agree(model, loaded(model), {"x": np.array(["a", "b"], object), "y": np.array(["a", "c"], object)})

    def test_numbers_before_strings_without_parameters_run_before(self) -> None:
        """A decoder between a slice of bytes and a network."""
        nodes = [
            helper.make_node("Add", ["code", "one"], ["next"]),
            helper.make_node("Cast", ["next"], ["text"], to=S),
            helper.make_node("LabelEncoder", ["text"], ["x"], domain=ML, keys_strings=["2", "3"],
                             values_floats=[2.0, 3.0]),
            helper.make_node("Mul", ["x", "w"], ["y"]),
        ]  # fmt: skip
        model = proto(nodes, {"code": (INT, ["n"])}, {"y": (F, ["n"])}, one=np.int64(1), w=np.ones(1, np.float32))
        hosted = loaded(model)
        assert hosted.before.operators == ("Add", "Cast", "LabelEncoder")
        function = gt.compile(hosted, backend="interpreter")
        for codes in (np.array([2, 1]), [2, 1]):
            assert function({"code": codes})["y"].tolist() == [3, 2]
        for codes, message in (([2.5, 1], "not all numbers of i64"), ([1 << 63, 1], "i64"), ([[1], 1], "no tensor")):
            with pytest.raises(InputError, match=message):
                function({"code": codes})

    def test_numbers_behind_strings_without_parameters_run_after(self) -> None:
        nodes = [
            helper.make_node("MatMul", ["x", "w"], ["scores"]),
            helper.make_node("ArgMax", ["scores"], ["best"], axis=1, keepdims=0),
            helper.make_node("LabelEncoder", ["best"], ["label"], domain=ML, keys_int64s=[0, 1],
                             values_strings=["no", "yes"]),
            helper.make_node("RegexFullMatch", ["label"], ["yes"], pattern="y.*"),
            helper.make_node("Not", ["yes"], ["no"]),
        ]  # fmt: skip
        model = proto(nodes, {"x": (F, ["n", 2])}, {"no": (TensorProto.BOOL, ["n"])}, w=np.eye(2, dtype=np.float32))
        hosted = loaded(model)
        assert hosted.after.operators == ("LabelEncoder", "RegexFullMatch", "Not")
        agree(model, hosted, {"x": np.array([[1, 0], [0, 1]], np.float32)})

    def test_what_passes_by_and_what_nothing_reads(self) -> None:
        nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Cast", ["x"], ["unread"], to=S)]
        model = proto(nodes, {"x": (F, ["n"]), "s": (S, ["n"])}, {"y": (F, ["n"]), "s": (S, ["n"])})
        hosted = loaded(model)
        assert not hosted.operators
        agree(model, hosted, {"x": np.array([-1, 1], np.float32), "s": np.array(["a", "b"], object)})
        del model.graph.output[1]
        with pytest.raises(InputError, match="'s' is missing"):
            gt.compile(loaded(model), backend="interpreter")({"x": np.zeros(1, np.float32)})
        del model.graph.input[1]
        assert isinstance(gt.load(model), gt.Template)

    def test_a_constant_of_text(self) -> None:
        node = helper.make_node("Constant", [], ["y"], value_string="text")
        hosted = loaded(proto([node], {"x": (F, [2])}, {"y": (S, [])}))
        assert gt.compile(hosted, backend="interpreter")({"x": np.zeros(2, np.float32)})["y"].item() == "text"

    def test_labels_are_compared_with_strings_of_the_caller(self) -> None:
        """The reference's Equal refuses texts of two widths."""
        nodes = [
            helper.make_node("LabelEncoder", ["best"], ["label"], domain=ML, keys_int64s=[0, 1],
                             values_strings=["no", "yes"]),
            helper.make_node("Equal", ["label", "truth"], ["right"]),
        ]  # fmt: skip
        model = proto(nodes, {"best": (INT, ["n"]), "truth": (S, ["n"])}, {"right": (TensorProto.BOOL, ["n"])})
        inputs = {"best": np.array([1, 1, 0]), "truth": ["yes", "no", "no"]}
        assert gt.compile(loaded(model), backend="interpreter")(inputs)["right"].tolist() == [True, False, True]

    def test_strings_between_parameters_are_refused(self) -> None:
        nodes = [
            helper.make_node("MatMul", ["x", "first"], ["hidden"]),
            helper.make_node("Cast", ["hidden"], ["text"], to=S, name="print"),
            helper.make_node("Cast", ["text"], ["read"], to=F),
            helper.make_node("MatMul", ["read", "second"], ["y"]),
        ]
        weights = np.eye(2, dtype=np.float32)
        model = proto(nodes, {"x": (F, ["n", 2])}, {"y": (F, ["n", 2])}, first=weights, second=weights)
        with pytest.raises(ModelError, match=r"'(print|giving read)'.*\(first\).*\(second\).*extract_model"):
            gt.load(model)

    def test_parameters_that_the_host_reads_too_are_refused(self) -> None:
        """Else training would leave the host with the file's values."""
        nodes = [
            helper.make_node("MatMul", ["x", "w"], ["y"]),
            helper.make_node("Cast", ["v"], ["text"], to=S, name="print"),
        ]
        weights = np.eye(2, dtype=np.float32)
        model = proto(nodes, {"x": (F, ["n", 2])}, {"y": (F, ["n", 2]), "text": (S, [2, 2])}, w=weights, v=weights)
        agree(model, loaded(model), {"x": np.ones((1, 2), np.float32)})
        nodes[1].input[0] = "w"
        model = proto(nodes, {"x": (F, ["n", 2])}, {"y": (F, ["n", 2]), "text": (S, [2, 2])}, w=weights)
        with pytest.raises(ModelError, match="'print'.* runs on the host and reads 'w'.*an initializer of its own"):
            gt.load(model)

    def test_a_map_of_what_has_no_type(self) -> None:
        """The onnx package's shape inference ends the process where it is shown one."""
        nodes = [
            helper.make_node("Score", ["x"], ["best"], domain="elsewhere"),
            helper.make_node("LabelEncoder", ["best"], ["label"], domain=ML, keys_int64s=[0], values_strings=["no"]),
        ]
        model = proto(nodes, {"x": (F, ["n"])}, {"label": (S, ["n"])})
        model.opset_import.append(helper.make_opsetid("elsewhere", 1))
        with pytest.raises(UnsupportedOperatorError, match="Score"):
            gt.load(model)

    def test_patterns_that_are_none(self) -> None:
        node = helper.make_node("RegexFullMatch", ["x"], ["y"], pattern="(")
        hosted = loaded(proto([node], {"x": (S, ["n"])}, {"y": (TensorProto.BOOL, ["n"])}))
        with pytest.raises(InputError, match=r"on the host \(RegexFullMatch\): Invalid regex"):
            hosted.preprocess({"x": ["a"]})

    def test_operators_that_the_reference_does_not_run(self) -> None:
        node = helper.make_node("Tokenizer", ["x"], ["y"], domain="com.microsoft")
        model = proto([node], {"x": (S, ["n"])}, {"y": (S, None)})
        model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
        with pytest.raises(UnsupportedOperatorError, match="Tokenizer"):
            gt.load(model)

    def test_saving_keeps_to_operator_sets_in_which_the_host_has_its_operators(self) -> None:
        hosted = loaded(classifier())
        assert next(entry.version for entry in gt.save(hosted).opset_import if not entry.domain) >= 20
        with pytest.raises(ModelError, match="opset 20; give opset=20"):
            gt.save(hosted, opset=17)


class TestImages:
    def photos(self) -> tuple[ModelProto, dict[str, Any], np.ndarray]:
        image = pytest.importorskip("PIL.Image")
        pixels = np.random.default_rng(0).integers(0, 256, (4, 5, 3), np.uint8)
        file = io.BytesIO()
        image.fromarray(pixels).save(file, "png")
        nodes = [
            helper.make_node("ImageDecoder", ["bytes"], ["pixels"], pixel_format="RGB"),
            helper.make_node("Cast", ["pixels"], ["x"], to=F),
            helper.make_node("Mul", ["x", "scale"], ["y"]),
        ]
        model = proto(nodes, {"bytes": (U, ["n"])}, {"y": (F, ["h", "w", 3])}, scale=np.full(3, 2, np.float32))
        return model, {"bytes": np.frombuffer(file.getvalue(), np.uint8)}, pixels

    def test_they_are_decoded_on_the_host(self) -> None:
        model, inputs, pixels = self.photos()
        hosted = loaded(model)
        assert hosted.model.inputs == {"pixels": gt.u8["pixels_0", "pixels_1", "pixels_2"]}
        result = gt.compile(hosted, backend="interpreter")(inputs)["y"]
        np.testing.assert_array_equal(result, pixels.astype(np.float32) * 2)

    def test_what_is_no_image(self) -> None:
        hosted = loaded(self.photos()[0])
        with pytest.raises(InputError, match=r"on the host \(ImageDecoder\)"):
            hosted.preprocess({"bytes": np.zeros(9, np.uint8)})
        with pytest.raises(InputError, match="must be uint8, not float32"):
            hosted.preprocess({"bytes": np.zeros(9, np.float32)})

    def test_images_that_are_too_large_for_pillow(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its error for these is no kind of another."""
        model, inputs, _ = self.photos()
        monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 1)
        with pytest.raises(InputError, match="decompression bomb"):
            loaded(model).preprocess(inputs)

    def test_without_pillow(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model, inputs, _ = self.photos()
        hosted = loaded(model)
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(MissingExtraError, match=r"decoding images needs Pillow: pip install -e '\.\[images\]'"):
            hosted.preprocess(inputs)
