from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.backends.interpreter import evaluate
from glowtrain.errors import BindingError, DifferentiationError, InputError
from glowtrain.graph import Binding
from glowtrain.losses import Attached, Loss, as_loss

SCORES, TARGET = np.random.default_rng(3).standard_normal((2, 5, 4)) * [[[2.0]], [[1.0]]]
LABELS = np.array([0, 3, 1, 3, 2])


def model_of(*shape: int, dtype: gt.types.DType = gt.f64) -> gt.Graph:
    """Its output is its input."""
    y = gt.Input(gt.TensorType(dtype, shape), "y")
    return gt.Graph((y,), {"y": y}, name="model")


def attach(loss: Loss, *shape: int) -> tuple[gt.Graph, Attached]:
    model = model_of(*shape)
    return model, loss.attach(model)


def value_of(loss: Loss, y: np.ndarray, target: np.ndarray, metric: str = "") -> float:
    model, attached = attach(loss, *y.shape)
    value = attached.metrics[metric] if metric else attached.value
    graph = gt.Graph((*model.inputs, *attached.targets), {"loss": value})
    arrays = {"y": y, attached.targets[0].name: target}
    return float(evaluate(graph, arrays)[value])


def log_softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    shifted = x - x.max(axis=axis, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))


def huber(d: np.ndarray, delta: float) -> np.ndarray:
    return np.where(np.abs(d) <= delta, d * d / 2, delta * (np.abs(d) - delta / 2))


def bce(x: np.ndarray, z: np.ndarray) -> np.ndarray:
    p = 1 / (1 + np.exp(-x))
    return -(z * np.log(p) + (1 - z) * np.log(1 - p))


CASES: dict[str, tuple[Loss, np.ndarray, Callable[[np.ndarray], np.ndarray]]] = {
    "cross entropy": (gt.losses.softmax_cross_entropy(), LABELS, lambda y: -log_softmax(y)[np.arange(5), LABELS]),
    "nll": (gt.losses.nll(), LABELS, lambda y: -y[np.arange(5), LABELS]),
    "mse": (gt.losses.mse(), TARGET, lambda y: (y - TARGET) ** 2),
    "l1": (gt.losses.l1(), TARGET, lambda y: np.abs(y - TARGET)),
    "huber": (gt.losses.huber(delta=0.7), TARGET, lambda y: huber(y - TARGET, 0.7)),
    "bce": (gt.losses.bce_with_logits(), (TARGET > 0) * 0.9, lambda y: bce(y, (TARGET > 0) * 0.9)),
}


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient(name: str) -> None:
    loss, target, formula = CASES[name]
    assert value_of(loss, SCORES, target) == pytest.approx(formula(SCORES).mean(), rel=1e-12)
    model, attached = attach(loss, 5, 4)
    (gradient,) = gt.gradients(attached.value, model.inputs)
    graph = gt.Graph((*model.inputs, *attached.targets), {"g": gradient})
    found = evaluate(graph, {"y": SCORES, attached.targets[0].name: target})[gradient]
    for place in np.ndindex(SCORES.shape):
        step = np.zeros_like(SCORES)
        step[place] = 1e-6
        expected = (formula(SCORES + step).mean() - formula(SCORES - step).mean()) / 2e-6
        assert found[place] == pytest.approx(expected, rel=1e-5, abs=1e-8)


def test_the_sum_instead_of_the_mean() -> None:
    assert value_of(gt.losses.mse(reduction="sum"), SCORES, TARGET) == pytest.approx(((SCORES - TARGET) ** 2).sum())
    total = value_of(gt.losses.softmax_cross_entropy(reduction="sum"), SCORES, LABELS)
    assert total == pytest.approx(5 * value_of(gt.losses.softmax_cross_entropy(), SCORES, LABELS))
    with pytest.raises(InputError, match="reduction"):
        gt.losses.mse(reduction="median")


def test_large_logits_stay_finite() -> None:
    assert value_of(gt.losses.bce_with_logits(), np.array([1000.0, -1000.0]), np.array([1.0, 0.0])) == 0
    assert value_of(gt.losses.softmax_cross_entropy(), np.array([[1000.0, 0.0]]), np.array([1])) == pytest.approx(1000)


@pytest.mark.parametrize(("axis", "order"), [(-1, (0, 1, 2)), (1, (0, 2, 1)), (0, (2, 0, 1))])
def test_classes_may_be_on_any_axis(axis: int, order: tuple[int, ...], random: np.random.Generator) -> None:
    scores, labels = random.standard_normal((2, 3, 4)), random.integers(0, 4, (2, 3))
    expected = -np.take_along_axis(log_softmax(scores), labels[..., None], -1).mean()
    loss = gt.losses.softmax_cross_entropy(axis=axis)
    assert value_of(loss, scores.transpose(order), labels) == pytest.approx(expected)
    right = (scores.argmax(axis=-1) == labels).mean()
    assert value_of(loss, scores.transpose(order), labels, "accuracy") == pytest.approx(right)


def test_ignored_labels_count_for_nothing() -> None:
    labels = np.array([0, -100, 1, -100, 2])
    kept = labels != -100
    loss = gt.losses.softmax_cross_entropy(ignore_index=-100)
    expected = -log_softmax(SCORES)[kept, labels[kept]].mean()
    assert value_of(loss, SCORES, labels) == pytest.approx(expected)
    accuracy = (SCORES.argmax(axis=1) == labels)[kept].mean()
    assert value_of(loss, SCORES, labels, "accuracy") == pytest.approx(accuracy)
    loss.check(model_of(5, 4), {"labels": labels})


@pytest.mark.parametrize(
    ("labels", "found"), [([0, 1, 4], r"label 4 is at \[2\]"), ([0, -1, 1], r"label -1 is at \[1\]")]
)
@pytest.mark.parametrize("make", [gt.losses.softmax_cross_entropy, gt.losses.nll])
def test_labels_out_of_range_are_refused(make: Callable[[], Loss], labels: list[int], found: str) -> None:
    with pytest.raises(InputError, match=rf"'labels' must hold classes from 0 to 3 .*{found}"):
        make().check(model_of(3, 4), {"labels": np.array(labels)})


def test_probabilities_out_of_range_are_refused() -> None:
    with pytest.raises(InputError, match=r"must be in \[0, 1\].* is 1\.5 at \[1\]"):
        gt.losses.bce_with_logits().check(model_of(2), {"target": np.array([0.5, 1.5])})


def test_an_output_by_name() -> None:
    model = model_of(5, 4)
    two = model.with_(outputs={**model.outputs, "twice": model.outputs["y"] * 2.0})
    (first, second) = (gt.losses.mse(output=output).attach(two) for output in (None, "twice"))
    assert {value.name for value in gt.Graph((), {"a": first.value}).leaves if value.name} == {"y", "target"}
    arrays = {"y": SCORES, "target": TARGET}
    graph = gt.Graph((*model.inputs, *second.targets), {"loss": second.value})
    assert evaluate(graph, arrays)[second.value] == pytest.approx(((2 * SCORES - TARGET) ** 2).mean())
    with pytest.raises(InputError, match="no output 'z'; it has 'y', 'twice'"):
        gt.losses.mse(output="z").attach(two)


def test_a_target_may_not_hide_an_input() -> None:
    with pytest.raises(InputError, match="has an input 'y' already"):
        gt.losses.mse("y").attach(model_of(3))


def test_a_scalar_output_of_the_model_is_a_loss() -> None:
    model = model_of(5, 4)
    scalar = model.with_(outputs={"loss": gt.nn.mean(model.outputs["y"], keepdims=True), "y": model.outputs["y"]})
    assert as_loss("loss").attach(scalar).value.type == gt.f64[()]
    with pytest.raises(DifferentiationError, match=r"output 'y' must be a scalar to be a loss, its type is f64\[5,4\]"):
        as_loss("y").attach(scalar)


def test_any_function_is_a_loss(random: np.random.Generator) -> None:
    def weighted(outputs: dict[str, gt.Value], inputs: dict[str, gt.Value]) -> gt.Value:
        return gt.nn.mean(inputs["weight"] * outputs["y"] * inputs["y"])

    loss = gt.losses.custom(weighted, weight=gt.f64["batch", 1])
    model = model_of(5, 4).with_(binding=Binding({"batch": 5}))
    attached = loss.attach(model)
    assert [str(value.type) for value in attached.targets] == ["f64[5,1]"]
    weight = random.random((5, 1))
    graph = gt.Graph((*model.inputs, *attached.targets), {"loss": attached.value})
    found = evaluate(graph, {"y": SCORES, "weight": weight})[attached.value]
    assert found == pytest.approx((weight * SCORES**2).mean())
    with pytest.raises(BindingError, match="has no dimension 'batch'"):
        loss.attach(model_of(5, 4))
    with pytest.raises(DifferentiationError, match="must give a Value, not float"):
        as_loss(lambda outputs, inputs: 1.0).attach(model)
    with pytest.raises(DifferentiationError, match="must be a scalar"):
        as_loss(lambda outputs, inputs: outputs["y"]).attach(model)
    with pytest.raises(InputError, match="not 3"):
        as_loss(3)  # type: ignore[arg-type]


# --- what is given in place of a loss or a target ---------------------------------------------------------------------


@pytest.mark.parametrize("axis", [-1, 1])
def test_one_hot_labels_are_told_to_be_numbers(axis: int) -> None:
    shape = (5, 4) if axis == -1 else (5, 4, 3)
    loss = gt.losses.softmax_cross_entropy(axis=axis)
    one_hot = np.zeros(shape, np.float32)
    with pytest.raises(InputError, match=rf"looks one-hot, float32\[5, 4.*\]: use .argmax\({axis}\)"):
        loss.check(model_of(*shape, dtype=gt.f32), {"labels": one_hot})


def test_one_hot_labels_in_a_trainer() -> None:
    @gt.model(x=gt.f32["batch", 6])
    def line(x: gt.Value) -> gt.Value:
        return gt.nn.linear(x, 4)

    trainer = gt.Trainer(line, gt.losses.softmax_cross_entropy(), gt.optim.SGD(), backend="interpreter")
    for labels in (np.eye(4), np.eye(4, dtype=np.int64)):
        with pytest.raises(InputError, match=r"looks one-hot.*use .argmax\(-1\)"):
            trainer.fit((np.zeros((4, 6), np.float32), labels))


@pytest.mark.parametrize("name", gt.losses.NAMED)
def test_names_of_losses_are_losses(name: str) -> None:
    assert as_loss(name) == gt.losses.NAMED[name]() == gt.losses.by_name(name)


@pytest.mark.parametrize("made", [gt.losses.mse, gt.losses.MSE])
def test_what_makes_a_loss_is_none(made: Callable[..., Loss]) -> None:
    with pytest.raises(InputError, match=rf"{made.__name__} makes a loss .* call it, as in gt.losses.{made.__name__}"):
        as_loss(made)  # type: ignore[arg-type]


def test_an_unknown_loss_is_told_the_nearest() -> None:
    with pytest.raises(InputError, match=r"no loss 'mean_mse' \(there are: softmax_cross_entropy, .*has no output"):
        as_loss("mean_mse").attach(model_of(2))
    with pytest.raises(InputError, match=r"no loss 'hubber' \(the nearest is 'huber'\), and model has no output"):
        as_loss("hubber").attach(model_of(2))


# --- weights, and sums ------------------------------------------------------------------------------------------------


@gt.model(x=gt.f32["batch", 6])
def two_heads(x: gt.Value) -> dict[str, gt.Value]:
    x = gt.nn.tanh(gt.nn.linear(x, 8, name="trunk"))
    return {"digit": gt.nn.linear(x, 4, name="digit"), "size": gt.nn.linear(x, 1, name="size")}


def test_class_weights_are_as_many_as_classes() -> None:
    for loss in (gt.losses.softmax_cross_entropy(class_weight=[1, 2, 3]), gt.losses.focal(class_weight=(1, 2, 3))):
        with pytest.raises(InputError, match="class_weight has 3 numbers, but output 'y' of model has 4 classes"):
            loss.attach(model_of(5, 4))
    with pytest.raises(InputError, match="pos_weight has 3 numbers, but the last axis of output 'y' of model has 4"):
        gt.losses.bce_with_logits(pos_weight=[1, 2, 3]).attach(model_of(5, 4))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gt.losses.nll(class_weight=[1.0, -1.0]), "class_weight must be finite .* not -1.0"),
        (lambda: gt.losses.nll(class_weight=3), r"class_weight must be a sequence of numbers, not 3 \(int\)"),
        (lambda: gt.losses.bce_with_logits(pos_weight=float("nan")), "pos_weight must be finite .* not nan"),
        (lambda: gt.losses.softmax_cross_entropy(label_smoothing=1.5), "label_smoothing must be from 0 to 1, not 1.5"),
        (lambda: gt.losses.focal(gamma=-1.0), "gamma must be a number that is not negative"),
        (lambda: gt.losses.mse() * float("inf"), "finite number, not by inf"),
        (lambda: gt.losses.weighted("loss"), "cannot be weighted: nothing says what the losses of its examples are"),
        (lambda: gt.losses.by_name("triplet", "y"), "triplet compares several outputs"),
    ],
)
def test_impossible_losses_are_refused(make: Callable[[], Loss], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize(
    ("loss", "arrays", "message"),
    [
        (gt.losses.weighted("mse"), {"target": TARGET, "weight": np.array([1, -2.0])}, r"'weight' is -2.0 at \[1\]"),
        (gt.losses.weighted("mse"), {"target": TARGET, "weight": np.array([np.nan])}, r"'weight' is nan at \[0\]"),
        (gt.losses.cosine_embedding(), {"target": np.array([1, 0])}, r"must be 1 \(alike\) or -1 \(not\), but is 0"),
        (gt.losses.kl(), {"target": np.array([0.5, -0.1])}, r"must be probabilities for kl, but is -0.1 at \[1\]"),
        (0.5 * gt.losses.softmax_cross_entropy(), {"labels": np.array([4])}, "must hold classes from 0 to 3"),
    ],
)
def test_impossible_targets_are_refused(loss: Loss, arrays: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(InputError, match=message):
        loss.check(model_of(2, 4), arrays)


def test_losses_of_one_target_share_it() -> None:
    loss = gt.losses.softmax_cross_entropy() + 0.5 * gt.losses.focal()
    model, attached = attach(loss, 5, 4)
    assert [value.name for value in attached.targets] == list(loss.targets) == ["labels"]
    assert list(attached.metrics) == ["accuracy"]
    parts = [value_of(part, SCORES, LABELS) for part in (gt.losses.softmax_cross_entropy(), gt.losses.focal())]
    assert value_of(loss, SCORES, LABELS) == pytest.approx(parts[0] + 0.5 * parts[1])
    with pytest.raises(
        InputError, match=r"takes the target 't' as i64\[5\], another as f64\[5,4\]: give them different"
    ):
        (gt.losses.softmax_cross_entropy("t") + gt.losses.mse("t")).attach(model)


def test_metrics_of_several_targets_are_told_apart() -> None:
    loss = gt.losses.softmax_cross_entropy("a") + gt.losses.softmax_cross_entropy("b") + gt.losses.mse("c")
    assert list(attach(loss, 5, 4)[1].metrics) == ["a_accuracy", "b_accuracy"]


def test_sums_say_what_they_are() -> None:
    loss = 2 * (gt.losses.mse() + 0.25 * gt.losses.l1())
    assert loss.describe() == f"2.0 * {gt.losses.mse()} + 0.5 * {gt.losses.l1()}"
    assert sum([gt.losses.mse(), gt.losses.l1()]) == gt.losses.mse() + gt.losses.l1()
    assert [part.over_examples for part in (loss, loss + gt.losses.mse(reduction="sum"))] == ["mean", None]
    for strange in (lambda: loss + 1, lambda: loss * "2", lambda: loss * loss, lambda: 1 + loss):
        with pytest.raises(TypeError, match="unsupported operand|can't multiply"):
            strange()


def test_checkpoints_from_before_class_weights_stay_valid() -> None:
    before = "SoftmaxCrossEntropy(target='labels', output=None, reduction='mean', axis=-1, ignore_index=None)"
    assert gt.losses.softmax_cross_entropy().describe() == before
    weights = gt.losses.softmax_cross_entropy(class_weight=[1, 2], label_smoothing=0.1)
    assert weights.describe() == before + ", {'class_weight': (1.0, 2.0), 'label_smoothing': 0.1}"


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_focal_gradients_are_finite_where_labels_are_certain(gamma: float) -> None:
    scores, loss = np.array([[100.0, 0.0], [0.0, 100.0], [1.0, 1.0]]), gt.losses.focal(gamma=gamma, ignore_index=-1)
    model, attached = attach(loss, 3, 2)
    (gradient,) = gt.gradients(attached.value, model.inputs)
    graph = gt.Graph((*model.inputs, *attached.targets), {"g": gradient})
    assert np.isfinite(evaluate(graph, {"y": scores, "labels": np.array([0, 0, -1])})[gradient]).all()


def test_weights_of_examples_and_several_heads_in_a_trainer(random: np.random.Generator, backend: str) -> None:
    x = random.standard_normal((24, 6)).astype(np.float32)
    labels, size = random.integers(0, 4, 24), x[:, :1] * 2
    loss = gt.losses.weighted(
        gt.losses.softmax_cross_entropy(output="digit", class_weight=[1, 2, 1, 1], label_smoothing=0.1)
        + 0.5 * gt.losses.mse("size", "size")
    )
    assert loss.targets == ("labels", "weight", "size")
    trainer, other = (gt.Trainer(two_heads, loss, gt.optim.SGD(0.1), backend=backend) for _ in range(2))
    weight = (np.arange(24) < 16).astype(np.float32)
    trainer.step({"x": x, "labels": labels, "size": size, "weight": weight})
    other.step({"x": x[:16], "labels": labels[:16], "size": size[:16], "weight": weight[:16]})
    for name, array in trainer.parameters().items():
        np.testing.assert_allclose(array, other.parameters()[name], rtol=1e-5, atol=1e-6)
    history = trainer.fit((x, labels, weight, size), 1, 8, validation=(x, labels, weight, size))
    assert np.isfinite(history["val_loss"]).all()  # though the weights of its last batch are 0
    assert len(history["val_accuracy"]) == 1
    with pytest.raises(InputError, match="nothing says that its loss is a mean"):
        gt.Trainer(two_heads, loss, gt.optim.SGD(), micro_batches=2).fit((x, labels, weight, size), 1, 8)
