"""What a person can do wrong, or drive to an extreme: a clear error and nothing lost, or the right result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import glowtrain as gt
from glowtrain.compiler import Specialisation
from glowtrain.errors import BindingError, GraphError, InputError, ModelError, NonFiniteError, ShapeError
from glowtrain.graph import Graph, Input
from glowtrain.ops.attention.rotary import RotaryEmbedding
from glowtrain.ops.elementwise.logic import Cast
from glowtrain.ops.indexing.gather import GatherElements, GatherND
from glowtrain.ops.indexing.scatter import ScatterElements
from glowtrain.ops.objective.loss import SoftmaxCrossEntropyLoss
from glowtrain.presentation import messages
from glowtrain.quantization import Quantized
from glowtrain.types import type_of

Array = np.ndarray
FLOAT = onnx.TensorProto.FLOAT


def onnx_model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, Any],
    outputs: dict[str, Any],
    arrays: dict[str, Array] | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in (arrays or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def linear(weight: str = "w", more: dict[str, Array] | None = None) -> gt.Graph | gt.Template:
    """x @ weight, plus every array in ``more``."""
    more = more or {}
    arrays = {weight: np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3), **more}
    nodes, last = [helper.make_node("MatMul", ["x", weight], ["y0"])], "y0"
    for place, name in enumerate(more, 1):
        nodes.append(helper.make_node("Add", [last, name], [f"y{place}"]))
        last = f"y{place}"
    return gt.load(onnx_model(nodes, {"x": ["n", 4]}, {last: ["n", 3]}, arrays))


def examples(count: int = 8) -> tuple[Array, Array]:
    random = np.random.default_rng(0)
    return random.normal(size=(count, 4)).astype(np.float32), random.integers(0, 3, count)


def trainer(model: Any = None, backend: str = "interpreter", **settings: Any) -> gt.Trainer:
    settings = {"loss": gt.losses.softmax_cross_entropy(), "optimizer": gt.optim.SGD(lr=0.1), **settings}
    return gt.Trainer(linear() if model is None else model, backend=backend, **settings)


# --- state is never lost or mixed up ----------------------------------------------------------------------------------


def test_an_update_that_overflows_does_not_replace_a_good_checkpoint(tmp_path: Path) -> None:
    x, labels = examples()
    path = tmp_path / "run.safetensors"
    run = trainer(optimizer=gt.optim.SGD(lr=3e38))
    run.save(path)
    before = path.read_bytes()
    with pytest.raises(NonFiniteError, match="update made parameter 'w' NaN or infinite.*last good checkpoint"):
        run.fit((x * 100, labels), batch_size=8, epochs=3, checkpoint=path, progress=False)
    assert path.read_bytes() == before


def test_a_parameter_called_like_a_slot_is_refused() -> None:
    model = linear(more={"w.adam.m": np.ones(3, np.float32)})
    with pytest.raises(GraphError, match=r"same name.*\n.*w\.adam\.m"):
        trainer(model, optimizer=gt.optim.Adam(lr=0.1))


@pytest.mark.parametrize("name", ["best:w", "variable:w", "__metadata__", "a/b c\n'\"", "日本"])
def test_checkpoints_hold_any_name(name: str, tmp_path: Path) -> None:
    x, labels = examples()
    first, second = trainer(linear(name)), trainer(linear(name))
    first.step({"x": x, "labels": labels})
    first.save(tmp_path / "run.safetensors")
    second.restore(tmp_path / "run.safetensors")
    np.testing.assert_array_equal(second.parameters()[name], first.parameters()[name])


# --- values of a wrong kind -------------------------------------------------------------------------------------------

WRONG: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "dimension is text": (lambda: gt.load(onnx_relu(), dims={"n": "3"}), BindingError, "n='3'"),  # type: ignore[dict-item]
    "dimension is no integer": (lambda: gt.load(onnx_relu(), dims={"n": 2.5}), BindingError, "n=2.5"),  # type: ignore[dict-item]
    "compile a path": (lambda: gt.compile("model.onnx"), InputError, "not 'model.onnx' .str."),  # type: ignore[arg-type]
    "compile what holds a model": (lambda: gt.compile(quantized()), InputError, "not Quantized; give its .model$"),  # type: ignore[arg-type]
    "save what holds a template": (
        lambda: gt.save(quantized()),
        ModelError,
        "a template, not Quantized; give its .model$",
    ),  # type: ignore[arg-type]
    "save what holds a graph": (
        lambda: gt.save(quantized(2)),
        ModelError,
        "a template, not Quantized; give its .model$",
    ),  # type: ignore[arg-type]
    "train what holds a model": (lambda: trainer(quantized()), InputError, "not Quantized; give its .model$"),
    "check what has a model": (
        lambda: gt.gradcheck.check(quantized()),
        InputError,
        "not Quantized; give its .model$",
    ),  # type: ignore[arg-type]
    "save a trainer": (lambda: gt.save(trainer()), ModelError, "not Trainer; give its .model..$"),  # type: ignore[arg-type]
    "variables in a dict": (lambda: gt.compile(linear(), state={"w": np.ones(3)}), InputError, "State, not dict"),  # type: ignore[arg-type]
    "train a path": (lambda: trainer("model.onnx"), InputError, "not 'model.onnx' .str."),
    "optimizer of no name": (lambda: trainer(optimizer="adamm"), InputError, "adamm"),
    "optimizer not made": (lambda: trainer(optimizer=gt.optim.Adam), InputError, "gt.optim"),
    "rate is text": (lambda: gt.optim.Adam(lr="0.1"), InputError, "lr must be a number"),  # type: ignore[arg-type]
    "trainable is a bool": (lambda: trainer(trainable=False), InputError, "trainable must be"),
    "a batch in a tuple": (lambda: trainer().step(examples()), InputError, "must be a dict"),  # type: ignore[arg-type]
    "labels are text": (lambda: trainer().step(with_labels(np.full(8, "a"))), InputError, "must be integers"),
    "labels are NaN": (lambda: trainer().step(with_labels(np.full(8, np.nan))), InputError, "must be integers"),
    "half a batch": (lambda: trainer().fit(examples(), batch_size=2.5), InputError, "whole number"),  # type: ignore[arg-type]
    "half an epoch": (lambda: trainer().fit(examples(), epochs=1.5), InputError, "whole number"),  # type: ignore[arg-type]
    "output without a name": (lambda: gt.load(onnx_relu(output="")), ModelError, "without a name.* has 0 outputs"),
    "an array for inputs": (lambda: gt.compile(linear().bind({"n": 2}))(np.ones(3)), InputError, "must be a dict"),  # type: ignore[union-attr, arg-type]
    "a ragged list": (lambda: gt.compile(linear())({"x": [[1, 2], [3]]}), InputError, "different lengths"),
}


def onnx_relu(output: str = "y") -> onnx.ModelProto:
    return onnx_model([helper.make_node("Relu", ["x"], [output])], {"x": ["n", 4]}, {output: ["n", 4]})


def quantized(n: int | None = None) -> Quantized:
    """A small model, for any number of rows or for so many."""
    model = linear()
    return gt.quantize(model if n is None else model.bind({"n": n}), {"x": np.ones((n or 2, 4), np.float32)})


def with_labels(labels: Array) -> dict[str, Array]:
    return {"x": examples()[0], "labels": labels}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_kind_of_value_is_named(case: str) -> None:
    call, error, message = WRONG[case]
    with pytest.raises(error, match=message):
        call()


def test_lists_go_into_functions_of_any_shape() -> None:
    rows = [[1, 2, 3, 4], [5, 6, 7, 8]]
    expected = gt.compile(linear(), backend="interpreter")({"x": np.array(rows, np.float32)})["y0"]
    np.testing.assert_array_equal(gt.compile(linear(), backend="interpreter")({"x": rows})["y0"], expected)


# --- extremes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["Sum", "Max", "Mean"])
def test_hundreds_of_operands(kind: str) -> None:
    names = [f"x{place}" for place in range(500)]
    model = gt.load(onnx_model([helper.make_node(kind, names, ["y"])], {name: [2] for name in names}, {"y": [2]}))
    x = {name: np.array([1, place], np.float32) for place, name in enumerate(names)}
    expected = gt.compile(model, backend="interpreter")(x)["y"]
    np.testing.assert_allclose(gt.compile(model)(x)["y"], expected, rtol=1e-6)


def test_a_chain_of_a_thousand_operators() -> None:
    nodes = [helper.make_node("Neg" if k % 2 else "Relu", [f"v{k}"], [f"v{k + 1}"]) for k in range(1000)]
    model = gt.load(onnx_model(nodes, {"v0": [3]}, {"v1000": [3]}))
    x = {"v0": np.array([-1, 0, 2], np.float32)}
    expected = gt.compile(model, backend="interpreter")(x)["v1000"]
    np.testing.assert_array_equal(gt.compile(model)(x)["v1000"], expected)


@pytest.mark.parametrize("backend", ["interpreter", "cpu"])
def test_no_examples_at_all(backend: str) -> None:
    weight = {"w": np.ones((2, 1, 3, 3), np.float32)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("MaxPool", ["c"], ["y"], kernel_shape=[2, 2]),
    ]
    model = gt.load(onnx_model(nodes, {"x": [0, 1, 5, 5]}, {"y": [0, 2, 2, 2]}, weight))
    assert gt.compile(model, backend=backend)({"x": np.zeros((0, 1, 5, 5), np.float32)})["y"].shape == (0, 2, 2, 2)


def test_a_slope_for_each_channel_at_opset_6() -> None:
    slope = np.array([0.5, 2.0, -1.0], np.float32)
    nodes = [helper.make_node("PRelu", ["x", "slope"], ["y"])]
    model = gt.load(onnx_model(nodes, {"x": [2, 3, 4, 5]}, {"y": [2, 3, 4, 5]}, {"slope": slope}, opset=6))
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 5)).astype(np.float32)
    expected = np.where(x > 0, x, x * slope[:, None, None])
    np.testing.assert_array_equal(gt.compile(model, backend="interpreter")({"x": x})["y"], expected)


# --- indices ----------------------------------------------------------------------------------------------------------


@gt.model(ids=gt.i32["batch", 6])
def tokens(ids: gt.Value) -> gt.Value:
    """The input becomes an index through a reshape and a cast."""
    wide = Cast(to=gt.i64)(gt.nn.reshape(ids, (-1, 2, 3)))
    return gt.nn.linear(gt.nn.mean(gt.nn.embedding(wide, 10, 4), (1, 2)), 3)


def token_data(wrong: int | None = None) -> dict[str, Array]:
    ids = np.arange(24, dtype=np.int32).reshape(4, 6) % 10
    ids[2, 1] = 0 if wrong is None else wrong
    return {"ids": ids, "labels": np.array([0, 1, 2, 0])}


TOKEN_CALLS: dict[str, Callable[[gt.Trainer, dict[str, Array]], Any]] = {
    "step": lambda run, batch: run.step(batch),
    "gradients": lambda run, batch: run.gradients(batch),
    "predict": lambda run, batch: run.predict(batch["ids"]),
    "evaluate": lambda run, batch: run.evaluate(batch),
    "fit": lambda run, batch: run.fit(batch, shuffle=False, progress=False),
    "compile": lambda run, batch: gt.compile(tokens, backend=run.backend)({"ids": batch["ids"]}),
}


@pytest.mark.parametrize("wrong", [10, -11])
@pytest.mark.parametrize("backend", ["interpreter", "cpu"])
@pytest.mark.parametrize("call", TOKEN_CALLS)
def test_an_index_out_of_range_is_named_before_anything_runs(call: str, backend: str, wrong: int) -> None:
    run = trainer(tokens, backend)
    before = run.variables()
    with pytest.raises(InputError, match=rf"'ids' must hold numbers from -10 to 9 .*has {wrong} at \[2, 1\]"):
        TOKEN_CALLS[call](run, token_data(wrong))
    for name, array in run.variables().items():
        np.testing.assert_array_equal(array, before[name])
    assert run.whole
    TOKEN_CALLS[call](run, token_data(-10))


@pytest.mark.parametrize("backend", ["interpreter", "cpu"])
def test_an_index_that_an_operator_passes_on_is_checked_too(backend: str) -> None:
    """RotaryEmbedding reads its tables by a Gather; the same holds for com.microsoft.EmbedLayerNormalization."""
    types = {"x": gt.f32[1, 2, 2, 4], "cos": gt.f32[3, 2], "sin": gt.f32[3, 2], "places": gt.i64[1, 2]}
    inputs = {name: gt.Input(type_, name) for name, type_ in types.items()}
    rotated = RotaryEmbedding()(*inputs.values())
    run = gt.compile(gt.Graph(tuple(inputs.values()), {"y": rotated}), backend=backend)
    data = {name: np.zeros(value.shape, value.dtype.numpy) for name, value in inputs.items()}
    with pytest.raises(InputError, match=r"'places' must hold numbers from -3 to 2 for Gather.*has 3 at \[0, 1\]"):
        run({**data, "places": np.array([[0, 3]])})


def test_the_whole_data_set_is_looked_through_for_indices_first() -> None:
    @gt.model(ids=gt.i64["batch", 6])
    def direct(ids: gt.Value) -> gt.Value:
        return gt.nn.linear(gt.nn.mean(gt.nn.embedding(ids, 10, 4), 1), 3)

    run, data = trainer(direct), {"ids": np.zeros((64, 6), np.int64), "labels": np.zeros(64, np.int64)}
    data["ids"][63, 5] = 10
    with pytest.raises(InputError, match=r"has 10 at \[63, 5\]"):
        run.fit(data, batch_size=4, shuffle=False, progress=False)
    assert run.variables()["optimizer.step"] == 0


INDEXED: dict[str, tuple[Callable[[gt.Value, gt.Value], gt.Value], Array, Array, str]] = {
    "tuples": (GatherND(), np.array([[2, 3]]), np.array([[2, 4]]), r"\[-3, -4\] to \[2, 3\]"),
    "elements": (GatherElements(axis=1), np.array([[3]]), np.array([[-5]]), "-4 to 3"),
    "written": (lambda x, i: ScatterElements()(x, i, x * 0.5), np.full((3, 4), -3), np.full((3, 4), 3), "-3 to 2"),
    "labels": (
        lambda x, i: SoftmaxCrossEntropyLoss(ignore_index=-1)(x, i)[0],
        np.array([0, 3, -1]),
        np.array([0, 3, -2]),
        "0 to 3, or -1",
    ),
}


@pytest.mark.parametrize("case", INDEXED)
def test_every_operator_says_which_indices_it_takes(case: str) -> None:
    build, right, wrong, message = INDEXED[case]
    x, indices = Input(gt.f32[3, 4], "x"), Input(type_of(right), "i")
    run = gt.compile(Graph((x, indices), {"y": build(x, indices)}))
    numbers = np.ones((3, 4), np.float32)
    assert np.isfinite(run({"x": numbers, "i": right})["y"]).all()
    with pytest.raises(InputError, match=message):
        run({"x": numbers, "i": wrong})


# --- layers -----------------------------------------------------------------------------------------------------------

IMAGE, ROWS, SEQUENCE = gt.f32[1, 3, 4, 4], gt.f32[3, 4], gt.f32[2, 3, 4]
LAYERS: dict[str, tuple[Callable[[gt.Value], Any], gt.types.TensorType, str]] = {
    "lstm of rows": (lambda x: gt.nn.lstm(x, 4), ROWS, r"lstm: takes x\[batch, time, features\], but x is f32\[3,4\]"),
    "lstm without units": (lambda x: gt.nn.lstm(x, 0), SEQUENCE, "lstm: hidden must be whole numbers of at least 1"),
    "linear of a scalar": (lambda x: gt.nn.linear(x, 3), gt.f32[()], r"linear: takes x\[..., n\], but x is f32\[\]"),
    "negative features": (lambda x: gt.nn.linear(x, -1), ROWS, "linear: features must be .* at least 1, not -1"),
    "half a feature": (lambda x: gt.nn.linear(x, 1.5), ROWS, "linear: features must be whole numbers"),  # type: ignore[arg-type]
    "linear of integers": (lambda x: gt.nn.linear(x, 3), gt.i64[3, 4], "linear: takes floats, but x is i64"),
    "dropout of more than all": (lambda x: gt.nn.dropout(x, 2), ROWS, "dropout: rate must be at least 0 and below 1"),
    "dropout of NaN": (lambda x: gt.nn.dropout(x, float("nan")), ROWS, "dropout: rate must be"),
    "conv of rows": (lambda x: gt.nn.conv(x, 3), ROWS, r"conv: takes x\[n, channels, spatial...\]"),
    "conv in no groups": (lambda x: gt.nn.conv(x, 3, groups=0), IMAGE, "conv: groups must be whole numbers"),
    "conv in wrong groups": (lambda x: gt.nn.conv(x, 4, groups=2), IMAGE, "do not divide into 2 groups"),
    "unknown padding": (lambda x: gt.nn.conv(x, 4, padding="valid"), IMAGE, 'padding must be "same" or numbers'),
    "attention without heads": (lambda x: gt.nn.attention(x, 0), SEQUENCE, "attention: heads must be"),
    "attention of rows": (lambda x: gt.nn.attention(x, 2), ROWS, "attention: takes"),
    "batch_norm of a vector": (gt.nn.batch_norm, gt.f32[3], "batch_norm: takes"),
    "momentum above 1": (lambda x: gt.nn.batch_norm(x, momentum=3), ROWS, "batch_norm: momentum must be from 0 to 1"),
    "layer_norm of a scalar": (gt.nn.layer_norm, gt.f32[()], "layer_norm: takes"),
    "embedding of less than nothing": (lambda x: gt.nn.embedding(x, -3, 4), gt.i64[3], "embedding: count must be"),
    "reshape to nothing": (lambda x: gt.nn.reshape(x, (0, 12)), ROWS, r"12 elements do not fit \(0, 12\)"),
    "reshape to halves": (lambda x: gt.nn.reshape(x, (2.0, 6)), ROWS, "reshape: shape must be whole numbers"),  # type: ignore[arg-type]
    "a parameter for a planet": (
        lambda x: gt.nn.linear(x, 10**12),
        ROWS,
        "'linear.weight': .* 16,000,000,000,000 bytes",
    ),
}


@pytest.mark.parametrize("case", LAYERS)
def test_layers_name_what_they_cannot_take(case: str) -> None:
    layer, type_, message = LAYERS[case]
    model = gt.model(x=type_)(layer)
    with pytest.raises(ShapeError, match=message):
        model.bind({})


def test_an_extent_of_zero_is_zero() -> None:
    model = gt.model(x=gt.f32[0, 3, 4])(lambda x: gt.nn.reshape(x, (3, 0)))
    for backend in ("interpreter", "cpu"):
        empty = np.zeros((0, 3, 4), np.float32)
        assert gt.compile(model, backend)({"x": empty})["output"].shape == (3, 0)


def test_a_function_must_take_the_declared_inputs() -> None:
    with pytest.raises(InputError, match=r"other\(y\) does not fit the inputs .* declares \(x\)"):

        @gt.model(x=ROWS)
        def other(y: gt.Value) -> gt.Value:
            return y

    with pytest.raises(InputError, match="x=3.*declared by their types"):
        gt.model(x=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", ["interpreter", "cpu"])
def test_more_than_memory_holds_is_an_error_with_a_size(backend: str) -> None:
    model = gt.model(x=gt.f32["n", 4])(lambda x: gt.nn.softmax(gt.nn.linear(x, 3)))
    few = np.lib.stride_tricks.as_strided(np.zeros(4, np.float32), (10**13, 4), (0, 4))
    with pytest.raises(InputError, match=r"not enough memory: its largest tensor is f32\[10000000000000,4\], 160,000,"):
        gt.compile(model, backend)({"x": few})


def test_no_memory_for_a_small_model_is_not_blamed_on_its_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    model = gt.model(x=gt.f32["n", 4])(lambda x: gt.nn.linear(x, 3))
    function = gt.compile(model)
    function({"x": np.zeros((4, 4), np.float32)})

    def exhausted(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Specialisation, "_taking", exhausted)
    monkeypatch.setattr(Specialisation, "_beside_others", exhausted)
    with pytest.raises(
        InputError, match=r"f32\[4,4\], 64 bytes; all its tensors are 172: what else this process holds"
    ):
        function({"x": np.zeros((4, 4), np.float32)})


@pytest.mark.parametrize("what", ["input", "output", "initializer"])
def test_equal_names_in_a_file_are_refused(what: str) -> None:
    proto = onnx_model(
        [helper.make_node("Add", ["x", "w"], ["y"])], {"x": [4]}, {"y": [4]}, {"w": np.ones(4, np.float32)}
    )
    entries = getattr(proto.graph, what)
    entries.append(entries[0])
    with pytest.raises(ModelError, match=rf"2 {what}s are called '[xyw]'"):
        gt.load(proto)


@pytest.mark.parametrize("backend", ["interpreter", "cpu"])
def test_nothing_to_pool_or_normalize(backend: str) -> None:
    """Neither an empty batch nor an empty axis is a fault; ONNX Runtime gives the same where it gives anything."""
    largest = gt.load(onnx_model([helper.make_node("GlobalMaxPool", ["x"], ["y"])], {"x": [2, 3, 0]}, {"y": [2, 3, 1]}))
    found = gt.compile(largest, backend)({"x": np.zeros((2, 3, 0), np.float32)})["y"]
    np.testing.assert_array_equal(found, np.full((2, 3, 1), -np.inf, np.float32))
    node = helper.make_node("InstanceNormalization", ["x", "s", "b"], ["y"])
    arrays = {name: np.ones(3, np.float32) for name in "sb"}
    for shape in ([0, 3, 4], [2, 3, 0]):
        model = gt.load(onnx_model([node], {"x": shape}, {"y": shape}, arrays))
        assert list(gt.compile(model, backend)({"x": np.zeros(shape, np.float32)})["y"].shape) == shape


# --- Scan of operator set 8 -------------------------------------------------------------------------------------------


def scan8(lengths: str = "", **attributes: Any) -> onnx.ModelProto:
    """Running sums of each sequence of a batch."""
    step = [helper.make_node("Add", ["s", "x"], ["t"]), helper.make_node("Identity", ["t"], ["o"])]
    body = onnx_model(step, {"s": [2], "x": [2]}, {"t": [2], "o": [2]}).graph
    node = helper.make_node("Scan", [lengths, "s0", "xs"], ["last", "all"], body=body, num_scan_inputs=1, **attributes)
    types = {"s0": [3, 2], "xs": [3, 4, 2]}
    return onnx_model([node], types, {"last": [3, 2], "all": [3, 4, 2]}, opset=8)


@pytest.mark.parametrize("backward", [False, True])
def test_scan_of_opset_8_goes_over_a_batch(backward: bool) -> None:
    random = np.random.default_rng(0)
    feeds = {
        "s0": random.normal(size=(3, 2)).astype(np.float32),
        "xs": random.normal(size=(3, 4, 2)).astype(np.float32),
    }
    model = gt.load(scan8(directions=[int(backward)]))
    rows = feeds["xs"][:, ::-1] if backward else feeds["xs"]
    expected = feeds["s0"][:, None] + np.cumsum(rows, axis=1)
    for backend in ("interpreter", "cpu"):
        found = gt.compile(model, backend)(feeds)
        np.testing.assert_allclose(found["all"], expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found["last"], expected[:, -1], rtol=1e-5, atol=1e-6)


def test_sequence_lengths_of_opset_8_are_refused() -> None:
    proto = scan8("lengths")
    proto.graph.input.append(helper.make_tensor_value_info("lengths", onnx.TensorProto.INT64, [3]))
    with pytest.raises(ModelError, match="sequence_lens, which only operator set 8 has, is not supported"):
        gt.load(proto)


def test_messages_say_where_documentation_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Path(messages.page("exporting.md")).is_file()
    monkeypatch.setattr(messages, "__file__", str(tmp_path / "site-packages" / "glowtrain" / "words.py"))
    assert messages.page("exporting.md") == "docs/exporting.md in Glowtrain's source repository"
