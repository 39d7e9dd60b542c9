from __future__ import annotations

import json
import time
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.backends.interpreter import Interpreter
from glowtrain.cli.commands.train import train
from glowtrain.data import Dataset
from glowtrain.errors import DifferentiationError, InputError, NonFiniteError
from glowtrain.trainer import graphs
from glowtrain.trainer.fitting.moments import Moment
from tests.training.trainers import Points, images, trainer_of

# --- one step --------------------------------------------------------------------------------------------------------


def test_steps_do_what_numpy_does(mlp: gt.Template, points: Points, backend: str) -> None:
    trainer = trainer_of(mlp, backend, optimizer=gt.optim.SGD(lr=0.5))
    p = {name: array.astype(np.float64) for name, array in trainer.parameters().items()}
    x, labels = points[0][:8].astype(np.float64), points[1][:8]
    for _ in range(3):
        h = np.tanh(x @ p["first.weight"] + p["first.bias"])
        scores = h @ p["second.weight"] + p["second.bias"]
        prob = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        loss = -np.log(prob[np.arange(8), labels]).mean()
        ds = (prob - np.eye(3)[labels]) / 8
        dh = (ds @ p["second.weight"].T) * (1 - h * h)
        gradients = {
            "second.weight": h.T @ ds,
            "second.bias": ds.sum(axis=0),
            "first.weight": x.T @ dh,
            "first.bias": dh.sum(axis=0),
        }
        batch = {"x": points[0][:8], "labels": labels}
        found = trainer.gradients(batch)
        assert trainer.step(batch) == pytest.approx(loss, rel=1e-5)
        assert found.keys() == gradients.keys()
        for name, gradient in gradients.items():
            np.testing.assert_allclose(found[name], gradient, rtol=1e-4, atol=1e-6)
            p[name] -= 0.5 * gradient
            np.testing.assert_allclose(trainer.parameters()[name], p[name], rtol=1e-4, atol=1e-6)


def test_gradients_change_nothing(cnn: gt.Template, points: Points) -> None:
    trainer = trainer_of(cnn)
    x, y = images(points)
    batch = {"x": x[:6], "labels": y[:6]}
    trainer.step(batch)
    before = trainer.variables()
    trainer.gradients(batch)
    trainer.evaluate((x, y))
    trainer.predict(x)
    for name, array in trainer.variables().items():
        np.testing.assert_array_equal(array, before[name])


def test_hyperparameters_change_without_compiling_again(mlp: gt.Template, points: Points) -> None:
    trainer = trainer_of(mlp)
    batch = {"x": points[0][:8], "labels": points[1][:8]}
    trainer.step(batch)
    before = trainer.parameters()
    trainer.hyper["lr"] = 0.0
    trainer.step(batch)
    np.testing.assert_array_equal(trainer.parameters()["first.weight"], before["first.weight"])
    assert trainer.hyper["lr"] == 0
    with pytest.raises(InputError, match="adam has no hyperparameter 'momentum' in this step; it has: lr,"):
        trainer.hyper["momentum"] = 0.9
    with pytest.raises(InputError, match="lr must be"):
        trainer.hyper["lr"] = float("nan")
    with pytest.raises(InputError, match=r"not inf: lr is f32 in this step, which does not hold 1e\+39"):
        trainer.hyper["lr"] = 1e39
    with pytest.raises(InputError, match=r"beta2 must be below 1, not 1.0: beta2 is f32 .* does not hold 0.99999999"):
        trainer.hyper["beta2"] = 0.99999999
    assert trainer.hyper["lr"] == trainer.hyper.inputs["hyper.lr"] == 0
    with pytest.raises(InputError, match="cannot be removed"):
        del trainer.hyper["lr"]


def test_only_what_is_trainable_changes(mlp: gt.Template, points: Points) -> None:
    for trainable in (["second.*"], "second.*", lambda name: name.startswith("second")):
        trainer = trainer_of(mlp, trainable=trainable)
        before = trainer.parameters()
        batch = {"x": points[0], "labels": points[1]}
        trainer.step(batch)
        changed = {name for name, array in trainer.parameters().items() if (array != before[name]).any()}
        assert changed == {"second.weight", "second.bias"} == set(trainer.gradients(batch))
        assert not any(name.startswith("first") for name in trainer.variables() if "adam" in name)
    with pytest.raises(InputError, match=r"nothing matches 'third\.\*'; the parameters are: first\.weight"):
        trainer_of(mlp, trainable=["second.*", "third.*"])
    with pytest.raises(DifferentiationError, match="no trainable parameter"):
        trainer_of(mlp, trainable=lambda name: False)


def test_many_parameters_are_shown_as_patterns() -> None:
    @gt.model(x=gt.f32["batch", 4])
    def deep(x: gt.Value) -> gt.Value:
        for stage in range(12):
            with gt.nn.scope(f"stage{stage}"):
                x = gt.nn.linear(gt.nn.linear(x, 4), 4)
        return x * gt.nn.parameter("scale", (), gt.nn.ones)

    with pytest.raises(InputError, match=r"are: stage0\.\* \(4\), stage1\.\* \(4\), .*stage7\.\* \(4\) and 5 more$"):
        trainer_of(deep, trainable=["head.*"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": np.array([0, 3])}, r"'labels' must hold classes from 0 to 2 .* label 3 is at \[1\]"),
        ({"labels": np.array([0, 1, 2])}, r"'labels' must be i64\[2\]"),
        ({"x": np.zeros((2, 6), complex)}, r"'x' must be f32\[2,6\], not complex128"),
        ({"x": np.zeros((2, 5), np.float32)}, "x has shape .2, 5. but"),
        ({"z": np.zeros(2)}, "'z' is not an input: the inputs are 'x', 'labels'"),
    ],
)
def test_wrong_inputs_are_refused(mlp: gt.Template, change: dict[str, np.ndarray], message: str) -> None:
    trainer = trainer_of(mlp)
    good = {"x": np.zeros((2, 6), np.float32), "labels": np.array([0, 1])}
    with pytest.raises(gt.GlowtrainError, match=message):
        trainer.step({**good, **change})
    with pytest.raises(InputError, match="'labels' is missing"):
        trainer.step({"x": good["x"]})
    assert trainer.variables()["optimizer.step"] == 0


# --- whole data sets -------------------------------------------------------------------------------------------------


def test_fit_learns_and_tells(mlp: gt.Template, points: Points, backend: str, tmp_path: Path) -> None:
    trainer = trainer_of(mlp, backend)
    moments: list[Moment] = []
    history = trainer.fit(
        points, epochs=30, batch_size=8, validation=points, log=tmp_path / "log.jsonl", callbacks=[moments.append]
    )
    assert history.loss[0] > 0.8
    assert history.loss[-1] < 0.3
    assert history["val_accuracy"][-1] > 0.9
    assert [record["epoch"] for record in history] == list(range(1, 31))
    assert [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()] == history.records
    assert [moment.batch for moment in moments[:4]] == [1, 2, 3, 3]  # 22 examples: 8, 8, 6, and the end of the epoch
    assert moments[3].record == history.records[0]
    accuracy = (trainer.predict(points[0])["output"].argmax(axis=1) == points[1]).mean()
    assert trainer.evaluate(points, batch_size=5)["accuracy"] == pytest.approx(accuracy)
    assert trainer.evaluate(points, batch_size=5)["loss"] == pytest.approx(trainer.evaluate(points)["loss"], rel=1e-5)


def test_the_mean_loss_weighs_examples_alike(mlp: gt.Template, points: Points) -> None:
    trainer = trainer_of(mlp, optimizer=gt.optim.SGD(lr=0.0))
    history = trainer.fit(points, batch_size=8, validation=points)
    assert history.loss[0] == pytest.approx(history["val_loss"][0], rel=1e-6)


def test_data_by_name_by_place_and_as_a_data_set(mlp: gt.Template, points: Points) -> None:
    x, y = points
    forms: list[Any] = [
        (x, y),
        {"labels": y, "x": x},
        {"y": y, "x": x},
        Dataset("d", {"x": x, "y": y}),
        Dataset("d", {"labels": y, "x": x}),
    ]
    losses = [trainer_of(mlp).fit(form, batch_size=8).loss for form in forms]
    assert losses == losses[:1] * 5
    with_validation = trainer_of(mlp).fit(Dataset("d", {"x": x, "y": y}, {"x": x[:5], "y": y[:5]}))
    assert "val_loss" in with_validation.last
    for wrong, message in (
        ((x,), "data has 1 arrays, but the model and its loss take 'x', 'labels': pass a tuple in this order"),
        ({"x": x, "y": y, "z": y}, "data has 'x', 'y', 'z', but"),
        (x, "data is a ndarray"),
        ((x, y[:-1]), "different numbers of examples"),
        ((x, y + 1), "'labels' must hold classes from 0 to 2"),
    ):
        with pytest.raises(gt.GlowtrainError, match=message):
            trainer_of(mlp).fit(wrong)


def test_shuffling_is_a_function_of_the_seed(mlp: gt.Template, points: Points) -> None:
    def run(seed: int, **settings: bool) -> np.ndarray:
        trainer = trainer_of(mlp, seed=seed)
        trainer.fit(points, epochs=2, batch_size=8, **settings)
        return trainer.parameters()["first.weight"]

    np.testing.assert_array_equal(run(1), run(1))
    assert (run(1) != run(2)).any()
    np.testing.assert_array_equal(run(1, shuffle=False), run(2, shuffle=False))


def test_early_stopping_goes_back_to_the_best(mlp: gt.Template, points: Points, tmp_path: Path) -> None:
    x, y = points
    trainer = trainer_of(mlp, optimizer=gt.optim.Adam(lr=0.3))
    seen: list[dict[str, np.ndarray]] = []

    def keep(moment: Moment) -> None:
        if moment.record is not None:
            seen.append(trainer.parameters())

    history = trainer.fit(
        (x[:16], y[:16]), 200, 16, (x[16:], (y[16:] + 1) % 3), patience=3, restore_best=True, callbacks=[keep]
    )
    losses = history["val_loss"]
    best = int(np.argmin(losses))
    assert len(losses) == best + 4 < 200
    assert history.stopped == f"no progress in 3 epochs, back to the parameters of epoch {best + 1}"
    np.testing.assert_array_equal(trainer.parameters()["first.weight"], seen[best]["first.weight"])


def test_a_model_with_a_fixed_batch(mlp: gt.Template, points: Points) -> None:
    fixed = mlp.bind({"batch": 8}).with_(template=None)
    trainer = trainer_of(fixed)
    with pytest.raises(InputError, match=r"fixed at 8 and cannot take a last batch of 6: leave it out.*open_batch"):
        trainer.fit(points)
    with pytest.raises(InputError, match="cannot take batch_size=4"):
        trainer.fit(points, batch_size=4)
    examples: list[int] = []
    x, y = points
    history = trainer.fit(
        points, 1, validation=points, drop_last=True, callbacks=[lambda moment: examples.append(moment.batch)]
    )
    assert examples == [1, 2, 2]
    assert history.last["val_loss"] == trainer.evaluate((x[:16], y[:16]))["loss"]
    with pytest.raises(InputError, match="5 examples do not fill one batch of 8"):
        trainer.evaluate((x[:5], y[:5]), drop_last=True)


def test_defaults_are_those_of_the_command_line(mlp: gt.Template, points: Points) -> None:
    x, y = (np.concatenate([array] * 4) for array in points)
    seen: list[tuple[int, int]] = []
    trainer_of(mlp).fit((x, y), callbacks=[lambda moment: seen.append((moment.epoch, moment.batches))])
    assert set(seen) == {(1, 2), (2, 2), (3, 2)}
    assert {signature(train).parameters[name].default for name in ("epochs", "batch_size")} == {3, None}


def test_a_bound_graph_takes_other_batches_through_its_template(mlp: gt.Template, points: Points) -> None:
    bound, free = trainer_of(mlp.bind({"batch": 8})), trainer_of(mlp)
    assert bound.fit(points, 2).loss == free.fit(points, 2, 8).loss
    assert bound.graph.inputs[0].shape == (8, 6)


@pytest.mark.parametrize(
    "bad", [{"epochs": -1}, {"batch_size": 0}, {"patience": 0}, {"restore_best": True}, {"resume": True}]
)
def test_impossible_options_are_refused(mlp: gt.Template, points: Points, bad: dict[str, Any]) -> None:
    with pytest.raises(gt.GlowtrainError, match=r"fit: |batch size"):
        trainer_of(mlp).fit(points, **bad)


# --- models and graphs -----------------------------------------------------------------------------------------------


def test_the_model_comes_out_in_inference_form(cnn: gt.Template, points: Points) -> None:
    trainer = trainer_of(cnn)
    x, y = images(points)
    trainer.fit((x, y), 2, 8)
    model = trainer.model()
    gt.verify(model)
    assert not model.updates
    assert {variable.name for variable in model.variables} == {v.name for v in cnn.bind({"batch": 2}).variables}
    np.testing.assert_array_equal(model.variable("batch_norm.mean").initial, trainer.variables()["batch_norm.mean"])
    again = gt.compile(model.template, "interpreter")({"x": x})["output"]
    np.testing.assert_array_equal(again, trainer.predict(x)["output"])
    further = trainer_of(model)
    np.testing.assert_array_equal(further.predict(x)["output"], again)


def test_the_step_graph_is_the_step(cnn: gt.Template, points: Points) -> None:
    trainer = trainer_of(cnn)
    x, y = images(points)
    batch = {"x": x[:8], "labels": y[:8]}
    trainer.step(batch)
    graph = trainer.graph
    gt.verify(graph)
    step = gt.compile(graph, "interpreter")
    found = step({**batch, **trainer.hyper.inputs})["loss"]
    assert float(found) == trainer.step(batch)
    for name, array in trainer.variables().items():
        np.testing.assert_array_equal(step.state.read(name), array)


def test_the_step_runs_in_onnx_runtime(mlp: gt.Template, points: Points, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    trainer = trainer_of(mlp, optimizer=gt.optim.Adam(lr=0.02, clip_norm=1.0, schedule=gt.optim.Warmup(5)))
    batch = {"x": points[0][:8], "labels": points[1][:8]}
    trainer.step(batch)
    gt.save(trainer.graph, tmp_path / "step.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "step.onnx")
    names = [output.name for output in session.get_outputs()]
    found = dict(zip(names, session.run(None, {**batch, **trainer.hyper.inputs}), strict=True))
    assert float(found["loss"]) == pytest.approx(trainer.step(batch), rel=1e-5)
    for name, array in trainer.parameters().items():
        np.testing.assert_allclose(found[f"{name}.next"], array, rtol=1e-4, atol=1e-6)


# --- losses that are not finite --------------------------------------------------------------------------------------


def test_the_value_that_went_bad_is_named(points: Points, backend: str, tmp_path: Path) -> None:
    @gt.model(x=gt.f32["batch", 6])
    def model(x: gt.Value) -> gt.Value:
        return gt.nn.exp(gt.nn.linear(x, 3, name="layer") * 100.0)

    x, y = points
    path = tmp_path / "run.safetensors"
    trainer = trainer_of(model, backend, loss=gt.losses.softmax_cross_entropy(), optimizer=gt.optim.SGD(lr=1e-9))
    calm = x * np.float32(1e-3)
    trainer.fit((calm, y), 1, 8, checkpoint=path)
    saved, before = path.read_bytes(), trainer.variables()
    with pytest.raises(
        NonFiniteError, match=r"first bad value is the result f32\[8,3\] of Exp\(f32\[8,3\]\): inf at"
    ) as caught:
        trainer.fit((x * 100, y), 1, 8, checkpoint=path)
    assert "(epoch 2, batch 1)" in str(caught.value)
    assert "holds the last good checkpoint" in str(caught.value)
    assert path.read_bytes() == saved
    for name, array in trainer.variables().items():
        np.testing.assert_array_equal(array, before[name])


def test_bad_data_are_named(mlp: gt.Template, points: Points) -> None:
    x = points[0].copy()
    x[3, 2] = np.nan
    with pytest.raises(
        NonFiniteError, match=r"the first bad value is input 'x' \(f32\[22,6\]\): nan at \[3, 2\], 1 of 132"
    ):
        trainer_of(mlp).step({"x": x, "labels": points[1]})


def test_a_causal_mask_is_not_what_went_bad() -> None:
    @gt.model(x=gt.f32["batch", 4, 6])
    def model(x: gt.Value) -> gt.Value:
        scores = gt.nn.where(gt.constant(np.tri(4, 6, dtype=bool)), gt.nn.linear(x, 6), -np.inf)
        return gt.nn.mean(gt.nn.log(gt.nn.total(gt.nn.softmax(scores), -1) - 2.0))

    trainer = trainer_of(model, loss="output")
    with pytest.raises(NonFiniteError, match=r"the result f32\[2,4\] of Log"):
        trainer.step({"x": np.zeros((2, 4, 6), np.float32)})


# --- other losses ----------------------------------------------------------------------------------------------------


def test_a_loss_inside_the_model_and_a_function(points: Points) -> None:
    @gt.model(x=gt.f32["batch", 6], t=gt.f32["batch"])
    def model(x: gt.Value, t: gt.Value) -> dict[str, gt.Value]:
        y = gt.nn.reshape(gt.nn.linear(x, 1), t.shape)
        return {"y": y, "error": gt.nn.mean((y - t) * (y - t))}

    x, t = points[0], points[0][:, 0]
    inside = trainer_of(model, loss="error")
    outside = trainer_of(model, loss=lambda outputs, inputs: gt.nn.mean((outputs["y"] - inputs["t"]) ** 2.0))
    assert inside.fit((x, t), 3, 8).loss == pytest.approx(outside.fit((x, t), 3, 8).loss, rel=1e-6)
    assert inside.history.loss[-1] < inside.history.loss[0]


def test_sequences_of_symbolic_length() -> None:
    @gt.model(tokens=gt.i64["batch", "time"])
    def model(tokens: gt.Value) -> gt.Value:
        x = gt.nn.embedding(tokens, 5, 8)
        return gt.nn.linear(x + gt.nn.attention(gt.nn.layer_norm(x), 2, causal=True), 5)

    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 5, (10, 6))
    trainer = trainer_of(model)
    history = trainer.fit((tokens[:, :-1], (tokens[:, :-1] + 1) % 5), 20, 4)
    assert history.loss[-1] < 0.5 * history.loss[0]
    assert trainer.predict(tokens[:1, :3])["output"].shape == (1, 3, 5)


def test_compiling_does_not_count_in_an_epochs_seconds(
    mlp: gt.Template, points: Points, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step is compiled for whole batches, and for the short one at an epoch's end."""
    real, slept = Interpreter.compile, []

    def slow(self: Interpreter, graph: gt.Graph, plan: Any) -> Any:
        if graph.name.endswith(".step"):
            time.sleep(0.5)
            slept.append(graph.inputs[0].shape)
        return real(self, graph, plan)

    monkeypatch.setattr(Interpreter, "compile", slow)
    x, labels = points
    history = trainer_of(mlp).fit(points, 2, 16, progress=False)
    assert [shape[0] for shape in slept] == [16, len(x) % 16]
    assert max(history["seconds"]) < 0.4
    assert history["examples_per_second"][0] == pytest.approx(len(labels) / history["seconds"][0])


# --- other float types -----------------------------------------------------------------------------------------------


@pytest.mark.spread(1)
@pytest.mark.parametrize("dtype", [gt.f16, gt.bf16, gt.f64], ids=str)
def test_models_in_other_float_types_learn_as_in_f32(dtype: gt.types.DType, backend: str, tmp_path: Path) -> None:
    digits = gt.data.load("digits")
    x, labels = digits.x[:800].reshape(-1, 64), digits.y[:800]

    def trained(dtype: gt.types.DType) -> gt.Trainer:
        @gt.model(x=dtype["batch", 64])
        def mlp(x: gt.Value) -> gt.Value:
            return gt.nn.linear(gt.nn.relu(gt.nn.linear(x, 32)), 10)

        trainer = trainer_of(mlp, backend)
        trainer.fit((x.astype(dtype.numpy), labels), 3, 40, progress=False)
        return trainer

    trainer, plain = trained(dtype), trained(gt.f32)
    assert plain.history.loss[-1] < 0.4
    np.testing.assert_allclose(trainer.history.loss, plain.history.loss, rtol=0.05 if dtype == gt.bf16 else 0.01)
    state = gt.f64 if dtype == gt.f64 else gt.f32
    slot = "linear.weight.adam.v"
    assert trainer.variables()[slot].dtype == state.numpy
    assert trainer.parameters()["linear.weight"].dtype == dtype.numpy
    assert trainer.graph.outputs["loss"].dtype == state
    trainer.save(tmp_path / "run.safetensors")
    other = trainer_of(trainer.graphs.model, backend)
    other.restore(tmp_path / "run.safetensors")
    batch = x[:4].astype(dtype.numpy)
    np.testing.assert_array_equal(other.predict(batch)["output"], trainer.predict(batch)["output"])
    assert trainer.gradients({"x": batch, "labels": labels[:4]})["linear.weight"].dtype == dtype.numpy


@pytest.mark.parametrize("dtype", [gt.f16, gt.bf16], ids=str)
def test_losses_of_16_bit_outputs_are_sums_in_f32(dtype: gt.types.DType, backend: str) -> None:
    """70,000 = 100 · 700 is more than f16 holds, and 700² more than it squares."""

    @gt.model(x=dtype["batch", 1])
    def scaled(x: gt.Value) -> gt.Value:
        return x * gt.nn.parameter("w", (1,), gt.nn.ones, dtype=dtype)

    loss = gt.losses.mse(reduction="sum")
    trainer = trainer_of(scaled, backend, loss=loss, optimizer=gt.optim.SGD(lr=1e-9))
    batch = {"x": np.full((100, 1), 700, dtype.numpy), "target": np.zeros((100, 1), np.float32)}
    exact = float(batch["x"].astype(np.float64).__pow__(2).sum())
    assert trainer.step(batch) == pytest.approx(exact, rel=1e-6)


def test_running_statistics_of_bf16_images_are_f32(points: Points) -> None:
    @gt.model(x=gt.bf16["batch", 1, 4, 4])
    def normal(x: gt.Value) -> gt.Value:
        return gt.nn.linear(gt.nn.flatten(gt.nn.batch_norm(x)), 3)

    trainer, (x, labels) = trainer_of(normal), images(points)
    for _ in range(60):
        trainer.step({"x": x[:32].astype(gt.bf16.numpy), "labels": labels[:32]})
    mean = trainer.variables()["batch_norm.mean"]
    assert mean.dtype == np.float32
    np.testing.assert_allclose(mean, x[:32].mean(), rtol=0.01)


@pytest.mark.parametrize("bound", [True, False])
def test_a_step_is_built_once_for_a_binding(mlp: gt.Template, monkeypatch: pytest.MonkeyPatch, *, bound: bool) -> None:
    """What a trainer learns about the step from is the step that it runs, where the batch is that of a bound model."""
    built: list[str] = []

    def training_graph(model: gt.Graph, *rest: Any) -> gt.Graph:
        built.append(str(model.dims))
        return make(model, *rest)

    make = graphs.training_graph
    monkeypatch.setattr(graphs, "training_graph", training_graph)
    trainer = trainer_of(mlp.bind({"batch": 4}) if bound else mlp)
    for size in (4, 4, 3):
        trainer.step({"x": np.ones((size, 6), np.float32), "labels": np.zeros(size, np.int64)})
    assert built == ["{'batch': 4}", "{'batch': 3}"] if bound else ["{'batch': 2}", "{'batch': 4}", "{'batch': 3}"]
