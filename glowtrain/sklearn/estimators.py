"""``Classifier`` and ``Regressor``: networks as estimators of scikit-learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    check_is_fitted,
    check_random_state,
    column_or_1d,
    validate_data,
)

from glowtrain.memory.budget import Memory
from glowtrain.optim import Adam, Optimizer
from glowtrain.sklearn.network import FeatureNetwork, Model, model_of
from glowtrain.types import Array

RATE = 1e-2
"""The learning rate where nobody says an optimizer."""
SEEDS = 1 << 31


class _Estimator(BaseEstimator):
    """What both estimators do. ``model``: a function ``(x, outputs) -> value`` of a batch of rows, f32[batch,
    features], in :mod:`glowtrain.nn`; by default linear layers of ``hidden`` widths with ReLU. Its outputs for a row
    must not depend on other rows at prediction.

    ``optimizer``: one of :mod:`glowtrain.optim` (Adam with a rate of 0.01). With ``early_stopping`` the part
    ``validation_fraction`` of the examples is held out, and training ends after ``patience`` epochs without progress
    on it, with the parameters of the best. ``random_state`` decides initial values and the order of examples.
    ``threads`` and ``memory``: as for a :class:`~glowtrain.trainer.trainer.Trainer`.

    ``history_``: the records of all epochs; ``trainer_``: the trainer, which saves the model as ONNX
    (``gt.save(estimator.trainer_.model(), path)``).
    """

    LOSS: str

    def __init__(
        self,
        model: Model | None = None,
        *,
        hidden: Sequence[int] = (64,),
        optimizer: Optimizer | None = None,
        epochs: int = 100,
        batch_size: int = 64,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        patience: int = 10,
        random_state: Any = None,
        threads: int | None = None,
        memory: Memory = None,
        verbose: bool = False,
    ) -> None:
        self.model = model
        self.hidden = hidden
        self.optimizer = optimizer
        self.epochs = epochs
        self.batch_size = batch_size
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.random_state = random_state
        self.threads = threads
        self.memory = memory
        self.verbose = verbose

    @property
    def trainer_(self) -> Any:
        """The trainer of a fitted estimator."""
        return self._fitted().trainer

    @property
    def history_(self) -> Any:
        """The records of all epochs."""
        return self._fitted().trainer.history

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "network_")

    def __getstate__(self) -> dict[str, Any]:
        """Settings, and the network as what training has changed in it: the step is compiled anew where it is read."""
        state = dict(super().__getstate__())
        if (network := state.pop("network_", None)) is not None:
            state["_network"] = network.outputs, network.seed, network.settings.get("class_weight"), network.state()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        kept = state.pop("_network", None)
        super().__setstate__(state)
        if kept is not None:
            outputs, seed, class_weight, changed = kept
            self.network_ = self._network(outputs, seed, class_weight).restored(changed)

    def _network(self, outputs: int, seed: int, class_weight: Sequence[float] | None) -> FeatureNetwork:
        optimizer = Adam(RATE) if self.optimizer is None else self.optimizer
        settings = {
            "loss": self.LOSS, "optimizer": optimizer, "threads": self.threads, "memory": self.memory,
            "class_weight": class_weight, "sample_weight": True,
        }  # fmt: skip
        return FeatureNetwork(model_of(self.model, self.hidden), self.n_features_in_, outputs, seed, settings)

    def _begin(self, outputs: int, class_weight: Sequence[float] | None = None) -> None:
        seed = int(check_random_state(self.random_state).randint(SEEDS))
        self.network_ = self._network(outputs, seed, class_weight)

    def _train(self, x: Array, y: Array, weights: Any, epochs: int, *, whole: bool) -> Self:
        weights = _check_sample_weight(weights, x, dtype=np.float32, ensure_non_negative=True)
        stopping: dict[str, Any] = {}
        if whole and self.early_stopping:
            stopping = {"validation": self.validation_fraction, "patience": self.patience, "restore_best": True}
        self.network_.fit((x, y, weights), epochs, self.batch_size, progress=bool(self.verbose) and None, **stopping)
        return self

    def _fitted(self) -> FeatureNetwork:
        check_is_fitted(self)
        return self.network_

    def _outputs(self, rows: Any) -> Array:
        network = self._fitted()
        x = validate_data(self, rows, dtype=np.float32, reset=False)
        return network.predict(x, self.batch_size)


class Classifier(ClassifierMixin, _Estimator):
    """A network that gives each class a score. Labels are whatever can be sorted: numbers, strings."""

    __doc__ = f"{__doc__}\n\n{_Estimator.__doc__}"
    LOSS = "softmax_cross_entropy"

    def __init__(
        self,
        model: Model | None = None,
        *,
        hidden: Sequence[int] = (64,),
        optimizer: Optimizer | None = None,
        epochs: int = 100,
        batch_size: int = 64,
        class_weight: Mapping[Any, float] | Literal["balanced"] | None = None,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        patience: int = 10,
        random_state: Any = None,
        threads: int | None = None,
        memory: Memory = None,
        verbose: bool = False,
    ) -> None:
        super().__init__(
            model, hidden=hidden, optimizer=optimizer, epochs=epochs, batch_size=batch_size,
            early_stopping=early_stopping, validation_fraction=validation_fraction, patience=patience,
            random_state=random_state, threads=threads, memory=memory, verbose=verbose,
        )  # fmt: skip
        self.class_weight = class_weight

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train anew on rows f[n, features] and labels [n]. Raises ``ValueError`` for what cannot be these."""
        x, labels = self._rows(X, y)
        self.classes_, classes = np.unique(labels, return_inverse=True)
        weights = None
        if self.class_weight is not None:
            weights = compute_class_weight(self.class_weight, classes=self.classes_, y=labels).tolist()
        self._begin(len(self.classes_), weights)
        return self._train(x, classes.astype(np.int64), sample_weight, self.epochs, whole=True)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Train for one epoch more; the first call takes all ``classes`` that there will be."""
        first = not hasattr(self, "network_")
        x, labels = self._rows(X, y, reset=first)
        if first:
            if self.class_weight == "balanced":
                raise ValueError("partial_fit sees a part of the labels: give class_weight as a dict, not 'balanced'")
            self.classes_ = np.unique(labels if classes is None else classes)
            given = self.class_weight or {}
            self._begin(len(self.classes_), [given.get(each, 1.0) for each in self.classes_] if given else None)
        strange = np.setdiff1d(labels, self.classes_)
        if strange.size:
            raise ValueError(f"labels {strange.tolist()} are none of the classes {self.classes_.tolist()}")
        return self._train(x, np.searchsorted(self.classes_, labels).astype(np.int64), sample_weight, 1, whole=False)

    def predict_proba(self, X: Any) -> Array:
        """Probabilities f32[n, classes], in the order of ``classes_``."""
        scores = self._outputs(X).astype(np.float64)
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))

    def predict(self, X: Any) -> Array:
        """The likeliest label of each row."""
        scores = self._outputs(X)
        return np.asarray(self.classes_[scores.argmax(axis=1)])

    def _rows(self, rows: Any, labels: Any, *, reset: bool = True) -> tuple[Array, Array]:
        x, y = validate_data(self, rows, labels, dtype=np.float32, reset=reset)
        check_classification_targets(y)
        return x, column_or_1d(y, warn=True)


class Regressor(RegressorMixin, _Estimator):
    """A network that gives numbers: one for a target [n], several for one [n, outputs]."""

    __doc__ = f"{__doc__}\n\n{_Estimator.__doc__}"
    LOSS = "mse"

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train from the start on rows f[n, features] and targets. Raises ``ValueError`` for what these cannot be."""
        x, targets = self._rows(X, y)
        self._begin(targets.shape[1])
        return self._train(x, targets, sample_weight, self.epochs, whole=True)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train for one epoch more."""
        first = not hasattr(self, "network_")
        x, targets = self._rows(X, y, reset=first)
        if first:
            self._begin(targets.shape[1])
        return self._train(x, targets, sample_weight, 1, whole=False)

    def predict(self, X: Any) -> Array:
        """Numbers f64[n], or f64[n, outputs]."""
        outputs = self._outputs(X).astype(np.float64)
        return outputs[:, 0] if self.single_ else outputs

    def _rows(self, rows: Any, targets: Any, *, reset: bool = True) -> tuple[Array, Array]:
        x, y = validate_data(self, rows, targets, dtype=np.float32, multi_output=True, y_numeric=True, reset=reset)
        y = np.asarray(y, np.float32)
        self.single_ = y.ndim == 1
        return x, y.reshape(len(y), -1)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
