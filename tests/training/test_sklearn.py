"""Estimators of scikit-learn: its own checks, pipelines, searches in processes, labels and frames as people have
them."""

from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris, make_friedman1, make_moons
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import glowtrain as gt
from glowtrain import nn
from glowtrain.errors import InputError, MissingExtraError
from glowtrain.sklearn import Classifier, Regressor


def rounded_otherwise(estimator: Any) -> dict[str, str]:
    """Sums of weighted and of repeated examples round to other f32; ``test_a_weight_is_a_number_of_copies`` says how
    far apart they are."""
    return {"check_sample_weight_equivalence_on_dense_data": "equal to rounding, not to the bit"}


@pytest.mark.spread(30)
@parametrize_with_checks([Classifier(epochs=60), Regressor(epochs=60)], expected_failed_checks=rounded_otherwise)
def test_what_scikit_learn_asks_of_estimators(estimator: Any, check: Any) -> None:
    check(estimator)


def wide(x: gt.Value, outputs: int) -> gt.Value:
    return nn.linear(nn.gelu(nn.linear(x, 32, name="first")), outputs, name="last")


@pytest.mark.parametrize("kind", [Classifier, Regressor])
def test_a_weight_is_a_number_of_copies(kind: Any, random: np.random.Generator) -> None:
    x, y, weights = random.normal(size=(20, 3)), random.integers(0, 3, 20), random.integers(0, 4, 20)
    assert 0 in weights
    copies = np.repeat(x, weights, axis=0), np.repeat(y, weights)
    settings: dict[str, Any] = {"epochs": 40, "batch_size": 100, "random_state": 0}
    weighted, copied, plain = kind(**settings).fit(x, y, weights), kind(**settings).fit(*copies), kind(**settings)
    name = "predict_proba" if kind is Classifier else "predict"
    expected = getattr(copied, name)(x)
    np.testing.assert_allclose(getattr(weighted, name)(x), expected, rtol=1e-4, atol=1e-5)
    assert np.abs(getattr(plain.fit(x, y), name)(x) - expected).max() > 0.01
    assert weighted.score(x, y, weights) == pytest.approx(copied.score(*copies), rel=1e-4)


def test_weights_that_cannot_be() -> None:
    x, y = np.ones((4, 2)), [0, 1, 0, 1]
    for weights, expected in (
        ([1, 1], "sample_weight.shape"),
        ([1, 1, 1, -1], "Negative values in data passed to `sample_weight`"),
    ):
        with pytest.raises(ValueError, match=expected):
            Classifier(epochs=1).fit(x, y, sample_weight=weights)
    with pytest.raises(ValueError, match="partial_fit sees a part of the labels"):
        Classifier(class_weight="balanced").partial_fit(x, y)


class TestClassifier:
    @pytest.mark.parametrize("weights", ["balanced", {"a": 1.0, "b": 9.0}])
    def test_classes_by_their_weights(self, weights: Any, random: np.random.Generator) -> None:
        x, y = random.normal(size=(100, 2)), np.array(["a"] * 90 + ["b"] * 10)
        settings: dict[str, Any] = {"epochs": 20, "batch_size": 100, "random_state": 0}
        model = Classifier(class_weight=weights, **settings).fit(x, y)
        by_example = Classifier(**settings).fit(x, y, np.where(y == "b", 9.0, 1.0))
        np.testing.assert_allclose(model.predict_proba(x), by_example.predict_proba(x), atol=1e-4)
        assert (model.predict(x) == "b").sum() > 2 * (Classifier(**settings).fit(x, y).predict(x) == "b").sum()
        again = pickle.loads(pickle.dumps(model))
        assert np.array_equal(again.predict_proba(x), model.predict_proba(x))
        assert again.trainer_.spec.class_weight == model.trainer_.spec.class_weight

    def test_a_pipeline_learns(self) -> None:
        x, y = load_iris(return_X_y=True)
        model = make_pipeline(StandardScaler(), Classifier(wide, random_state=0))
        assert cross_val_score(model, x, y, cv=3).mean() > 0.9

    def test_labels_are_strings_and_rows_a_frame(self) -> None:
        frame = load_iris(as_frame=True).frame
        x, y = frame.drop(columns="target"), frame["target"].map({0: "setosa", 1: "versicolor", 2: "virginica"})
        model = Classifier(random_state=0).fit(x, y)
        assert model.classes_.tolist() == ["setosa", "versicolor", "virginica"]
        assert set(model.predict(x)) <= {*model.classes_}
        assert model.feature_names_in_.tolist() == [*x.columns]
        assert model.predict_proba(x).sum(axis=1) == pytest.approx(1)
        with pytest.raises(ValueError, match="feature names"):
            model.predict(x.rename(columns={x.columns[0]: "other"}))

    def test_parts_of_data_go_on_from_each_other(self) -> None:
        x, y = make_moons(300, noise=0.1, random_state=0)
        model = Classifier(random_state=0)
        for _ in range(150):
            model.partial_fit(x, y, classes=[0, 1])
        assert model.score(x, y) > 0.95
        assert len(model.history_) == 150
        with pytest.raises(ValueError, match=r"labels \[2\] are none of the classes \[0, 1\]"):
            model.partial_fit(x[:1], [2])

    def test_early_stopping_keeps_the_best(self) -> None:
        x, y = make_moons(400, noise=0.3, random_state=0)
        model = Classifier(epochs=500, early_stopping=True, patience=5, random_state=0).fit(x, y)
        assert len(model.history_) < 500
        assert "no progress in 5 epochs" in model.history_.stopped

    def test_the_seed_decides(self) -> None:
        x, y = make_moons(100, random_state=0)
        first, same, other = (Classifier(epochs=5, random_state=seed).fit(x, y).predict_proba(x) for seed in (1, 1, 2))
        assert np.array_equal(first, same)
        assert not np.array_equal(first, other)

    def test_its_model_is_saved_as_onnx(self, tmp_path: Path) -> None:
        x, y = load_iris(return_X_y=True)
        model = Classifier(random_state=0).fit(x, y)
        gt.save(model.trainer_.model(), tmp_path / "iris.onnx")
        scores = gt.compile(gt.load(tmp_path / "iris.onnx"))({"x": x.astype(np.float32)})["output"]
        assert np.array_equal(model.classes_[scores.argmax(axis=1)], model.predict(x))


class TestRegressor:
    def test_a_pipeline_learns(self) -> None:
        x, y = make_friedman1(500, noise=0.5, random_state=0)
        x, held, y, expected = train_test_split(x, y, random_state=0)
        model = make_pipeline(StandardScaler(), Regressor(optimizer=gt.optim.AdamW(1e-2), random_state=0))
        assert model.fit(x, y).score(held, expected) > 0.7

    def test_several_targets(self) -> None:
        x = np.random.default_rng(0).standard_normal((200, 3))
        y = np.stack([x[:, 0], x.sum(axis=1)], axis=1)
        model = Regressor(random_state=0).fit(x, y)
        assert model.predict(x).shape == (200, 2)
        assert model.score(x, y) > 0.95


def test_a_fitted_estimator_is_pickled_and_goes_on() -> None:
    x, y = make_moons(200, random_state=0)
    model = Classifier(wide, epochs=5, random_state=0).fit(x, y)
    twin = pickle.loads(pickle.dumps(model))
    assert np.array_equal(twin.predict_proba(x), model.predict_proba(x))
    assert len(twin.history_) == 5
    assert clone(model).get_params() == model.get_params()
    twin.partial_fit(x, y)
    assert not np.array_equal(twin.predict_proba(x), model.predict_proba(x))


def test_an_estimator_that_is_not_fitted_says_so() -> None:
    for use in ("predict", "predict_proba"):
        with pytest.raises(NotFittedError, match="This Classifier instance is not fitted yet"):
            getattr(Classifier(), use)([[0.0]])
    with pytest.raises(NotFittedError):
        _ = Regressor().trainer_


SCRIPT = """
    from sklearn.datasets import make_moons
    from sklearn.model_selection import GridSearchCV, cross_val_score
    from glowtrain import nn
    from glowtrain.sklearn import Classifier

    def own(x, outputs):
        return nn.linear(nn.tanh(nn.linear(x, 16, name="first")), outputs, name="last")

    if __name__ == "__main__":
        x, y = make_moons(200, noise=0.1, random_state=0)
        search = GridSearchCV(Classifier(own, random_state=0), {"epochs": [2, 60]}, n_jobs=2, cv=2).fit(x, y)
        assert search.best_params_ == {"epochs": 60}, search.best_params_
        print(cross_val_score(search.best_estimator_, x, y, n_jobs=2, cv=2).min())
"""


def test_searches_run_in_processes_with_a_model_of_the_script(tmp_path: Path) -> None:
    script = tmp_path / "search.py"
    script.write_text(textwrap.dedent(SCRIPT))
    done = subprocess.run([sys.executable, script], check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) > 0.8


def test_targets_and_rows_that_do_not_fit() -> None:
    frame = pd.DataFrame({"a": [1.0, np.nan], "b": [2.0, 3.0]})
    with pytest.raises(ValueError, match="NaN"):
        Classifier().fit(frame, [0, 1])
    with pytest.raises(ValueError, match="Unknown label type: continuous"):
        Classifier().fit([[0.0], [1.0]], [0.5, 1.5])
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        Regressor().fit([[0.0], [1.0]], [1.0])


def test_a_model_whose_shapes_are_fixed_is_told_what_to_be() -> None:
    @gt.model(x=gt.f32["batch", 1])
    def network(x: gt.Value) -> gt.Value:
        return nn.linear(x, 2)

    with pytest.raises(InputError, match=r"is a function \(x, outputs\): network without @gt.model"):
        Classifier(network).fit([[0.0], [1.0]], [0, 1])


def test_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("glowtrain.sklearn")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(gt, "sklearn", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        MissingExtraError, match=r"glowtrain.sklearn needs scikit-learn: pip install -e '\.\[sklearn\]'"
    ):
        _ = gt.sklearn
