"""What people get wrong at first: each mistake is told, with what to do."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.errors import InputError, ShapeError, UntrainedWarning

X, Y = np.ones((6, 4), np.float32), np.zeros(6, np.int64)


@gt.model(x=gt.f32["batch", 4])
def net(x: gt.Value) -> gt.Value:
    return gt.nn.linear(x, 3)


@gt.model(x=gt.f32["batch", 1, 8, 8])
def unflattened(x: gt.Value) -> gt.Value:
    return gt.nn.linear(x, 10)


@gt.model(x=gt.f32["batch", 4])
def two_heads(x: gt.Value) -> dict[str, gt.Value]:
    hidden = gt.nn.linear(x, 5, name="trunk")
    return {"scores": gt.nn.linear(hidden, 3, name="head"), "aux": gt.nn.linear(hidden, 3, name="aux")}


def trainer(model: gt.Template = net, loss: Any = "softmax_cross_entropy", **settings: Any) -> gt.Trainer:
    return gt.Trainer(model, loss, gt.optim.SGD(), **settings)


def by_array() -> gt.Template:
    @gt.model(x=gt.f32["batch", 2])
    def model(x: gt.Value) -> gt.Value:
        return x @ gt.nn.parameter("w", np.zeros((2, 1)))  # type: ignore[arg-type]

    return model


def fit(model: gt.Template, *data: Any) -> None:
    trainer(model).fit(*data, epochs=1, progress=False)


MISTAKES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "x and y": (lambda: trainer().fit(X, Y), InputError, r"not ndarray; .* one argument, a tuple: fit\(\(x, y\)\)"),
    "a list of y": (lambda: trainer().fit(X, [0, 1]), InputError, "epochs .* not list; .* a tuple"),  # type: ignore[arg-type]
    "no flatten": (
        lambda: fit(unflattened, (np.ones((6, 1, 8, 8), np.float32), Y)),
        InputError,
        r"'labels' must be i64\[batch,1,8\], not int64\[6\]; .* f32\[batch,1,8,10\], which may lack a gt.nn.flatten",
    ),
    "no channels": (
        lambda: fit(unflattened, (np.ones((6, 8, 8), np.float32), Y)),
        InputError,
        r"it lacks an axis of 1: use \.reshape\(-1, 1, 8, 8\)",
    ),
    "no channels in one step": (
        lambda: trainer(unflattened).step(
            {"x": np.ones((6, 8, 8), np.float32), "labels": np.zeros((6, 1, 8), np.int64)}
        ),
        InputError,
        r"it lacks an axis of 1: use \.reshape\(-1, 1, 8, 8\)",
    ),
    "no channels in a prediction": (
        lambda: trainer(unflattened).predict(np.ones((6, 8, 8), np.float32)),
        InputError,
        r"'x' must be f32\[batch,1,8,8\], not float32\[6,8,8\]; it lacks an axis of 1",
    ),
    "a rate of a trainer": (lambda: trainer(learning_rate=1), TypeError, "'learning_rate' .the nearest is 'optimizer'"),
    "weights of examples": (
        lambda: trainer().fit((X, Y, np.ones(6))),
        InputError,
        r"weights of examples go with gt\.Trainer\(\.\.\., sample_weight=True",
    ),
    "targets that are an argument of their own": (
        lambda: trainer().evaluate(X, Y),
        InputError,
        r"inputs and targets are one argument, a tuple: evaluate\(\(x, y\)\)",
    ),
    "a name of metrics": (lambda: trainer(metrics=["aucc"]), InputError, "no metric 'aucc' .the nearest is 'auc'"),
    "a near argument": (lambda: trainer(metric=True), TypeError, r"Trainer takes no argument 'metric' .*'metrics'"),
    "another argument": (lambda: trainer(epoch=3), TypeError, "Trainer takes no argument 'epoch'; there are 'model',"),
    "Keras's rate": (lambda: gt.optim.Adam(learning_rate=1), TypeError, "'learning_rate' .the nearest is 'lr'"),  # type: ignore[call-arg]
    "a typing error": (lambda: gt.optim.SGD(momentun=1), TypeError, "'momentun' .the nearest is 'momentum'"),  # type: ignore[call-arg]
    "Keras's layer": (lambda: gt.nn.dense, AttributeError, "no layer 'dense' .the nearest is 'linear'"),
    "PyTorch's layer": (lambda: gt.nn.LayerNorm, AttributeError, "no layer 'LayerNorm' .the nearest is 'layer_norm'"),
    "an array for a shape": (
        lambda: gt.summary(by_array()),
        ShapeError,
        r"parameter 'w': its shape must be a tuple, .*, not ndarray; .* gt\.Variable\(name, array\)",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_is_said(name: str) -> None:
    make, kind, message = MISTAKES[name]
    with pytest.raises(kind, match=message):
        make()


def test_a_head_that_the_loss_does_not_reach() -> None:
    with pytest.warns(UntrainedWarning, match=r"loss of two_heads does not depend on 'aux.weight', 'aux.bias'"):
        made = trainer(two_heads)
    assert made.graphs.untrained == ("aux.weight", "aux.bias")


@pytest.mark.parametrize("settings", [{"trainable": ["trunk.*", "head.*"]}, {"loss": gt.losses.custom(
    lambda out, _: gt.nn.mean(out["scores"] * out["aux"])
)}], ids=["selected", "summed"])  # fmt: skip
def test_what_is_trained_whole_is_not_warned_of(settings: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer(two_heads, **settings)


def test_given_values_of_a_parameter() -> None:
    w = gt.Variable("w", np.full((4, 1), 2.0, np.float32))

    @gt.model(x=gt.f32["batch", 4])
    def model(x: gt.Value) -> gt.Value:
        return x @ w

    assert (trainer(model, "mse").predict(X)["output"] == 8.0).all()


@pytest.mark.parametrize(("progress", "told"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (9, [5]), (0, [])])
def test_a_line_for_each_so_many_epochs(progress: int, told: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    trainer().fit((X, Y), epochs=5, progress=progress)
    assert [int(line.split()[1].split("/")[0]) for line in io.StringIO(capsys.readouterr().err)] == told
