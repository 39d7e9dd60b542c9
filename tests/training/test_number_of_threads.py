"""Training on several threads: the same steps, and copies that run on as many."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import glowtrain as gt
from glowtrain import models
from glowtrain.errors import BackendError, InputError

MODEL = models.build("cnn", (1, 12, 12))


@gt.model(x=gt.f32["batch", 4])
def small(x: gt.Value) -> gt.Value:
    return gt.nn.linear(x, 3)


def trainer(threads: int | None) -> gt.Trainer:
    return gt.Trainer(MODEL, "softmax_cross_entropy", gt.optim.Adam(1e-3), threads=threads)


@pytest.mark.exhaustive
def test_fit_gives_the_same_bits() -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(70, 1, 12, 12)).astype(np.float32), random.integers(0, 10, 70)
    results = []
    for threads in (1, 2, 3, None):
        t = trainer(threads)
        history = t.fit((x, y), epochs=2, batch_size=32, validation=(x[:20], y[:20]), progress=False)
        results.append((history["loss"], history["val_loss"], {k: v.tobytes() for k, v in t.variables().items()}))
    assert all(result == results[0] for result in results)


@pytest.mark.spread(1)
@pytest.mark.parametrize("threads", [1, 2])
def test_steps_run_on_as_many_as_were_asked_for(threads: int) -> None:
    t = trainer(threads)
    t.step({"x": np.zeros((4, 1, 12, 12), np.float32), "labels": np.zeros(4, np.int64)})
    (special,) = t._step._kept.values()
    assert special.executable.threads == threads  # type: ignore[attr-defined]


def test_copies_run_on_as_many_threads() -> None:
    t = gt.Trainer(small, "softmax_cross_entropy", gt.optim.Adam(1e-3), threads=2)
    assert str(t.backend) == "cpu"
    for other in (copy.deepcopy(t), pickle.loads(pickle.dumps(t))):
        assert other.backend.threads == 2


@pytest.mark.parametrize("threads", [0, 1.5, "all"])
def test_what_is_no_number_of_threads(threads: object) -> None:
    with pytest.raises(InputError, match="threads must be"):
        trainer(threads)  # type: ignore[arg-type]


def test_a_backend_with_one_thread() -> None:
    with pytest.raises(BackendError, match="backend interpreter runs on one thread"):
        gt.Trainer(MODEL, "softmax_cross_entropy", gt.optim.Adam(1e-3), backend="interpreter", threads=2)
