"""L-BFGS: the method on functions with known minima, trainers against scipy, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import optimize

import glowtrain as gt
from glowtrain.errors import InputError
from glowtrain.optim.lbfgs import CURVATURE, DECREASE, LBFGS, Function


def minimized(function: Function, x: Any, **settings: Any) -> LBFGS:
    settings = {"iterations": 200, "history": 10, "tolerance": 1e-8, **settings}
    method = LBFGS(function, np.array(x, np.float64), **settings)
    method.run()
    return method


def rosenbrock(x: np.ndarray) -> tuple[float, np.ndarray]:
    return float(optimize.rosen(x)), optimize.rosen_der(x)


def test_a_curved_valley() -> None:
    method = minimized(rosenbrock, np.zeros(10))
    np.testing.assert_allclose(method.point.x, np.ones(10), atol=1e-7)
    assert method.result.stopped == "the gradient is small"
    assert method.result.gradient <= 1e-8
    reference = optimize.minimize(
        rosenbrock, np.zeros(10), jac=True, method="L-BFGS-B", options={"gtol": 1e-8, "ftol": 0}
    )
    assert method.result.evaluations < 1.5 * reference.nfev
    assert (np.diff(method.result.losses) < 0).all()


def test_a_quadratic_function_takes_as_many_steps_as_it_has_curvatures(random: np.random.Generator) -> None:
    """With all pairs kept, and exact arithmetic, it would be at most one more than there are distinct eigenvalues."""
    basis, _ = np.linalg.qr(random.normal(size=(20, 20)))
    matrix, goal = basis @ np.diag(np.repeat([1.0, 30.0, 500.0], [10, 6, 4])) @ basis.T, random.normal(size=20)
    method = minimized(lambda x: (float((x - goal) @ matrix @ (x - goal)) / 2, matrix @ (x - goal)), np.zeros(20))
    np.testing.assert_allclose(method.point.x, goal, atol=1e-8)
    assert method.result.iterations < 25


def test_steps_fulfil_the_strong_wolfe_conditions() -> None:
    points: list[Any] = []

    class Watched(LBFGS):
        def _remember(self, following: Any) -> None:
            points.append((self.point, following))
            super()._remember(following)

    method = Watched(rosenbrock, np.array([-1.2, 1.0, -1.2, 1.0]), iterations=100, history=5, tolerance=1e-6)
    assert method.run().iterations == len(points) > 10
    for before, after in points:
        step = after.x - before.x
        assert after.value <= before.value + DECREASE * before.gradient @ step
        assert abs(after.gradient @ step) <= CURVATURE * abs(before.gradient @ step)


@pytest.mark.parametrize("name", ["value", "gradient"])
def test_steps_into_what_is_no_number_are_shortened(name: str) -> None:
    """log(x) is none left of 0, where the first steps lead."""

    def function(x: np.ndarray) -> tuple[float, np.ndarray]:
        with np.errstate(invalid="ignore"):
            value, gradient = float(x[0] - np.log(x[0])) if x[0] > 0 else np.nan, 1 - 1 / x
        return (0.0 if name == "gradient" and x[0] <= 0 else value), gradient if x[0] > 0 else gradient * np.nan

    method = minimized(function, [20.0], tolerance=1e-9)
    assert method.point.x == pytest.approx(1)
    assert minimized(function, [-1.0]).result.stopped == "the loss is NaN or infinite"


def test_it_ends_where_nothing_is_to_be_gained() -> None:
    scale = np.array([1.0, 7.0, 50.0])
    rounded = minimized(lambda x: (float(np.float32(scale @ x**2 + 1)), 2 * scale * x), np.full(3, 0.3), tolerance=0.0)
    assert rounded.result.stopped == "no step makes the loss smaller"
    assert minimized(rosenbrock, np.zeros(2), iterations=1).result.stopped == "1 iteration is done"
    assert minimized(rosenbrock, np.zeros(2), iterations=0).result.losses == [1.0]
    assert minimized(lambda x: (1.0, np.zeros(2)), np.zeros(2)).result.iterations == 0
    wrong = minimized(lambda x: (float(x @ x), -2 * x), np.ones(2))  # a gradient with the wrong sign
    assert wrong.result.stopped == "no step makes the loss smaller"


# --- trainers --------------------------------------------------------------------------------------------------------


@gt.model(x=gt.f64["batch", 6])
def logistic(x: gt.Value) -> gt.Value:
    return gt.nn.linear(x, 3, name="layer")


def regression(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    x = random.normal(size=(80, 6))
    return x, (x[:, :3] + random.normal(size=(80, 3))).argmax(1)


STRENGTH = 0.02


def trainer_of(model: Any = logistic, loss: Any = "softmax_cross_entropy", **settings: Any) -> gt.Trainer:
    return gt.Trainer(model, loss, gt.optim.SGD(0.1), **{"backend": "interpreter", **settings})


def by_scipy(x: np.ndarray, labels: np.ndarray) -> Any:
    """The same regression by another implementation: value and gradient in NumPy."""

    def function(vector: np.ndarray) -> tuple[float, np.ndarray]:
        weight, bias = vector[:18].reshape(6, 3), vector[18:]
        scores = x @ weight + bias
        powers = np.exp(scores - scores.max(1, keepdims=True))
        p = powers / powers.sum(1, keepdims=True)
        loss = -np.log(p[np.arange(len(x)), labels]).mean() + STRENGTH * (weight**2).sum()
        error = (p - np.eye(3)[labels]) / len(x)
        return loss, np.concatenate([(x.T @ error + 2 * STRENGTH * weight).ravel(), error.sum(0)])

    return optimize.minimize(function, np.zeros(21), jac=True, method="L-BFGS-B", options={"gtol": 1e-10, "ftol": 0})


@pytest.mark.spread(1)
@pytest.mark.parametrize("backend", ["interpreter", "cpu"])
def test_logistic_regression_is_scipys(backend: str, random: np.random.Generator) -> None:
    x, labels = regression(random)
    trainer = trainer_of(regularize={"*.weight": gt.optim.L2(STRENGTH)}, backend=backend)
    result = trainer.fit_lbfgs((x, labels), 200, tolerance=1e-9)
    expected = by_scipy(x, labels)
    assert result.stopped == "the gradient is small"
    assert result.losses[-1] == pytest.approx(expected.fun, abs=1e-12)
    np.testing.assert_allclose(trainer.parameters()["layer.weight"], expected.x[:18].reshape(6, 3), atol=1e-6)
    penalty = STRENGTH * (trainer.parameters()["layer.weight"] ** 2).sum()
    assert trainer.evaluate((x, labels), batch_size=80)["loss"] == pytest.approx(expected.fun - penalty, rel=1e-9)
    assert len(trainer.history) == 0
    assert "iterations; the gradient is small>" in repr(result)


def oscillator(outputs: Any, inputs: Any) -> gt.Value:
    """u'' = -u with u(0) = 1 and u'(0) = 0, whose solution is the cosine, for u = 1 + t² network(t)."""
    t = inputs["t"]
    (first,) = gt.jvp([outputs["u"]], [t], [np.ones(t.shape)])
    (second,) = gt.jvp([first], [t], [np.ones(t.shape)])
    return gt.nn.mean((second + outputs["u"]) ** 2)


@gt.model(t=gt.f64["batch", 1])
def solution(t: gt.Value) -> dict[str, gt.Value]:
    hidden = gt.nn.tanh(gt.nn.linear(gt.nn.tanh(gt.nn.linear(t, 12)), 12))
    return {"u": 1.0 + t * t * gt.nn.linear(hidden, 1)}


@pytest.mark.exhaustive
def test_a_differential_equation() -> None:
    t = np.linspace(0, 3, 40)[:, None]
    trainer = trainer_of(solution, oscillator, backend="cpu")
    result = trainer.fit_lbfgs({"t": t}, 400, tolerance=1e-7)
    assert result.losses[-1] < 1e-6
    np.testing.assert_allclose(trainer.predict(t)["u"], np.cos(t), atol=1e-3)


def test_models_in_f32_end_at_rounding(random: np.random.Generator) -> None:
    @gt.model(x=gt.f32["batch", 6])
    def single(x: gt.Value) -> gt.Value:
        return gt.nn.linear(x, 3, name="layer")

    x, labels = regression(random)
    trainer = trainer_of(single, regularize={"*.weight": gt.optim.L2(STRENGTH)})
    result = trainer.fit_lbfgs((x.astype(np.float32), labels), 200, tolerance=1e-12)
    assert result.stopped == "no step makes the loss smaller"
    assert result.losses[-1] == pytest.approx(by_scipy(x, labels).fun, abs=1e-6)


def test_a_part_is_trained_and_the_rest_stays(random: np.random.Generator) -> None:
    x, labels = regression(random)
    trainer = trainer_of(trainable=["layer.weight[:3]"], class_weight="balanced")
    before = trainer.parameters()
    result = trainer.fit_lbfgs((x, labels), 30)
    after = trainer.parameters()
    assert result.losses[-1] < result.losses[0]
    assert np.array_equal(before["layer.weight"][3:], after["layer.weight"][3:])
    assert np.array_equal(before["layer.bias"], after["layer.bias"])
    assert not np.array_equal(before["layer.weight"][:3], after["layer.weight"][:3])


def test_interrupts_leave_the_best_parameters(random: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    data = regression(random)
    trainer, calls, original = trainer_of(), [0], LBFGS.at

    def interrupted(self: LBFGS, x: np.ndarray) -> Any:
        calls[0] += 1
        if calls[0] == 6:
            self.function(-50 * x)  # the parameters of a step that is not taken
            raise KeyboardInterrupt
        return original(self, x)

    monkeypatch.setattr(LBFGS, "at", interrupted)
    before = trainer_of().evaluate(data, batch_size=80)["loss"]
    with pytest.raises(KeyboardInterrupt):
        trainer.fit_lbfgs(data)
    assert trainer.evaluate(data, batch_size=80)["loss"] < before


@gt.model(x=gt.f64["batch", 6])
def dropped(x: gt.Value) -> gt.Value:
    return gt.nn.linear(gt.nn.dropout(x, 0.5), 3)


@pytest.mark.parametrize(
    ("trainer", "arguments", "expected"),
    [
        (lambda: trainer_of(dropped), {}, "change with each step"),
        (lambda: trainer_of(regularize={"*": gt.optim.L1(0.1)}), {}, "have corners"),
        (lambda: trainer_of(constraints={"*": gt.optim.NonNegative()}), {}, "have corners"),
        (trainer_of, {"iterations": -1}, "iterations must be a whole number of at least 0"),
        (trainer_of, {"iterations": 1.5}, "iterations must be a whole number"),
        (trainer_of, {"history": 0}, "history must be a whole number of at least 1"),
        (trainer_of, {"tolerance": float("nan")}, "tolerance must be a number"),
    ],
)
def test_what_cannot_be(trainer: Any, arguments: Any, expected: str, random: np.random.Generator) -> None:
    with pytest.raises(InputError, match=expected):
        trainer().fit_lbfgs(regression(random), **arguments)


def test_data_that_cannot_be(random: np.random.Generator) -> None:
    x, labels = regression(random)
    with pytest.raises(InputError, match="all examples at once"):
        trainer_of().fit_lbfgs([(x, labels)])
    with pytest.raises(InputError, match="label 3 is at"):
        trainer_of().fit_lbfgs((x, labels + 1))
