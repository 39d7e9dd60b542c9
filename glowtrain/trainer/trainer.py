"""The trainer: a compiled step, and the loop over epochs and batches."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import glowtrain
from glowtrain import compiler
from glowtrain.compiler import MemoryUse
from glowtrain.errors import BackendError, InputError
from glowtrain.optim.lbfgs import Minimization
from glowtrain.settings import method_takes
from glowtrain.trainer.feed import Data
from glowtrain.trainer.fitting.fit import Fit
from glowtrain.trainer.fitting.spec import FitSpec, same_on_all
from glowtrain.trainer.full_batch import minimize
from glowtrain.trainer.graphs import optimizer_variables, parameter_names
from glowtrain.trainer.history import History
from glowtrain.trainer.steps import Steps
from glowtrain.trainer.summary import NOT_COMPILED, TrainingSummary, trained_sizes


class Trainer(Steps):
    """Trains a model. Forward, backward and update are one function, compiled once for each batch shape.

    ``loss``: one of :mod:`glowtrain.losses`, the name of a scalar output of the model, a function
    ``(outputs, inputs) -> value``, or losses by the names of outputs. ``optimizer``: one of :mod:`glowtrain.optim`, or
    its name. The settings are those of :class:`~glowtrain.trainer.settings.TrainingSpec`; ``gradients`` are not
    affected by ``residuals``.

    Models in f16 and bf16: named losses are computed in f32, with f32 targets; the optimizer's state and its arithmetic
    are f32, and each new parameter is rounded to its own type, so updates smaller than its last bit are lost: learning
    rates must not be too small. Gradients are of the parameters' type and are not scaled; in f16 those below 6e-8 are
    zero.

    ``hyper`` holds the hyperparameters, which may be changed between steps; ``history`` the records of past epochs.
    Raises :class:`DifferentiationError` if nothing can be trained, or not in parts of a batch.
    """

    @method_takes(FitSpec)
    def fit(self, spec: FitSpec) -> History:
        """Train for some epochs, in mini-batches.

        ``examples`` and ``validation``: (x, y), arrays by input name, or a :class:`~glowtrain.data.Dataset`; or batches
        of such: a PyTorch ``DataLoader``, another iterable, a function that returns one for each epoch.

        Short steps run many in one native call, to the bits of :meth:`step` for each; with callbacks, one by one.

        Raises :class:`InputError`, :class:`DataError`, :class:`CheckpointError` before training where the fault can be
        found there; :class:`NonFiniteError` and :class:`BatchError`, of batches that cannot be made or do not fit, with
        the parameters from before that batch. A trainer is in one call of fit at a time: another one is an
        :class:`InputError`.
        """
        with self._exclusive:
            if self.fleet is None:
                return self._fit(spec)
            with self.fleet.run("training"):
                self.fleet.check_same(self.fleet.settings | same_on_all(spec))
                return self._fit(spec)

    def _fit(self, spec: FitSpec) -> History:
        checkpoint = None if spec.checkpoint is None else Path(spec.checkpoint)
        return Fit(self, spec, resumed=spec.resume and self._restored(checkpoint)).run()

    def fit_lbfgs(
        self, examples: Data, iterations: int = 100, *, history: int = 10, tolerance: float = 1e-5
    ) -> Minimization:
        """Minimize the loss of all examples at once by L-BFGS (:mod:`glowtrain.optim.lbfgs`), for small problems: least
        squares, logistic regression, equations.

        The model must be a function of its parameters alone, without dropout and statistics of batches. The loss has
        the terms of ``regularize=`` here; the optimizer, its state and means of parameters are left as they are. It
        ends where no element of the gradient is above ``tolerance``, after so many ``iterations``, or where rounding
        leaves nothing to gain: models in f64 get further. Ctrl-C leaves the best parameters so far.
        Raises :class:`InputError`.
        """
        with self._exclusive:
            return minimize(self, examples, iterations=iterations, history=history, tolerance=tolerance)

    def memory(self, batch: int | Mapping[str, Any] | None = None) -> MemoryUse:
        """The bytes that training takes: variables, and what a step allocates beside them, as the compiled code does.

        For a ``batch``, by its size or as arrays by input name, for which the step is compiled if need be; by default
        for the one that the step was compiled for last. Batches themselves, code, and what ``evaluate`` and ``predict``
        take are not in the sum.

        Raises :class:`InputError` where nothing has been compiled yet, and for a batch that the model does not take;
        :class:`BackendError` for a backend that plans no memory.
        """
        if isinstance(batch, Mapping):
            arrays = self.signature.checked(batch)
        else:
            arrays = {} if batch is None else self.signature.of_size(batch)
        use = self._step.memory({**arrays, **self.hyper.inputs} if arrays else None)
        step, model = self._example_step, self.graphs.trained(self.graphs.example)
        return use.with_variables(self.state.sizes, parameter_names(step), optimizer_variables(step, model))

    def summary(self, batch: int | Mapping[str, Any] | None = None) -> TrainingSummary:
        """The layers of the model with results, parameters and multiply-adds, what a step takes of these, and memory.

        For a ``batch`` as :meth:`memory` takes it, for which the step is compiled if need be; by default for the one
        that it was compiled for last. Before that the batch is small, and memory the state alone.

        Raises :class:`InputError` for a batch that the model does not take.
        """
        known = batch is not None or self._step.is_compiled
        try:
            memory = self.memory(batch) if known else NOT_COMPILED
        except BackendError as error:
            memory = str(error)
        model = self.graphs.at(self.compiled.graph.binding) if known else self._bound()
        work = sum(compiler.outline.multiply_adds(node) for node in self.graphs.whole_step_of(model).nodes)
        return TrainingSummary(compiler.outline.outline(model, trained_sizes(self.graphs)), work, self.nbytes, memory)

    def to_torch(self, module: Any) -> None:
        """Write the present parameters and running statistics into the tensors of a PyTorch module, in place.

        Names, element types and shapes must be the same, as they are for a model by :func:`glowtrain.from_torch`;
        buffers that the model does not use stay as they are. Needs PyTorch (the extra ``torch``). Raises
        :class:`InputError` that lists what does not fit: nothing has been written then.
        """
        glowtrain.torch.to_torch(self, module)

    def _restored(self, checkpoint: Path | None) -> bool:
        """Go on from a checkpoint, if there is one. Raises :class:`InputError` where none can be."""
        if checkpoint is None:
            raise InputError("fit: resume=True needs checkpoint=, the file to go on from")
        if not (checkpoint.exists() if self.fleet is None else self.fleet.from_first(checkpoint.exists)):
            return False
        self.restore(checkpoint)
        return True
