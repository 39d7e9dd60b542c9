"""The trainer: a compiled step, and the loop over epochs and batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import glowtrain
from glowtrain.compiler import MemoryUse
from glowtrain.errors import InputError
from glowtrain.trainer.feed import Data
from glowtrain.trainer.fit import Callback, Fit, FitOptions
from glowtrain.trainer.graphs import DEFAULT_EPOCHS, optimizer_variables, parameter_names
from glowtrain.trainer.history import History
from glowtrain.trainer.steps import Steps


class Trainer(Steps):
    """Trains a model. Forward, backward and update are one function, compiled once for each batch shape.

    ``loss``: one of :mod:`glowtrain.losses`, the name of a scalar output of the model, or a function
    ``(outputs, inputs) -> value``. ``trainable``: None for all parameters, patterns of names (``["head.*"]``) with
    ranges of elements where only a part is (``"conv2.*[:32]"``), or a function of a name; gradients of the others are
    not computed. Running statistics keep adapting, as in PyTorch; with
    ``freeze_statistics`` those of a BatchNormalization whose scale is not trained stay as they are, and it uses them.
    ``seed`` decides the order of examples and what dropout drops. ``unbiased``: the running variance of
    BatchNormalization as PyTorch estimates it, not as ONNX does. With ``metrics`` each step also gives the metrics of
    the loss (``accuracy``) as ``measured``, and records of epochs have their means (``train_accuracy``): those of the
    training form, each batch before its update. This takes no second forward pass, but some time with many classes.
    ``threads`` and ``memory``: as :func:`glowtrain.compile` takes them; results are the same with any.
    ``micro_batches``: each batch is taken in so many equal parts, one after the other, whose gradients are added up, as
    an optimizer does that accumulates as many batches, in less memory (to the bit where both steps take their sums in
    one order); ``"auto"``: in as few as ``memory`` asks for. The loss must be a mean or a sum over examples, and
    nothing may take statistics of a batch.
    ``residuals="bf16"``: what the backward pass reads of the forward pass is rounded to 16 bits while it waits, which
    takes up to half of the memory; the loss of a step has the same bits, gradients are those at rounded values, the
    same with any ``memory`` but ``"small"`` and limits that this does not meet: with those less is rounded.
    ``gradients`` are not affected.

    Models in f16 and bf16: named losses are computed in f32, with f32 targets; the optimizer's state and its arithmetic
    are f32, and each new parameter is rounded to its own type, so updates smaller than its last bit are lost: learning
    rates must not be too small. Gradients are of the parameters' type and are not scaled; in f16 those below 6e-8 are
    zero.

    ``hyper`` holds the hyperparameters, which may be changed between steps; ``history`` the records of past epochs.
    Raises :class:`DifferentiationError` if nothing can be trained, or not in parts of a batch.
    """

    def fit(
        self,
        examples: Data,
        epochs: int = DEFAULT_EPOCHS,
        batch_size: int | None = None,
        validation: Data | None = None,
        *,
        steps_per_epoch: int | None = None,
        prefetch: int | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        patience: int | None = None,
        min_delta: float = 0.0,
        restore_best: bool = False,
        checkpoint: str | Path | None = None,
        checkpoint_every: int | None = None,
        resume: bool = False,
        log: str | Path | None = None,
        plot: str | Path | None = None,
        progress: bool | int | TextIO | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> History:
        """Train for ``epochs`` more epochs, in mini-batches of ``batch_size`` (64, or what the model is fixed to).

        ``examples`` and ``validation``: (x, y), arrays by input name, or a :class:`~glowtrain.data.Dataset`, whose own
        validation part is the default; or batches of such: a PyTorch ``DataLoader``, another iterable, a function that
        returns one for each epoch. A thread makes ``prefetch`` of these ahead while the step runs (0: no thread). An
        epoch ends where they do, or after ``steps_per_epoch``. Training stops early after ``patience`` epochs in which
        the validation loss did not fall by more than ``min_delta``; ``restore_best`` then takes the best epoch's
        parameters. ``checkpoint`` is written after each epoch, every ``checkpoint_every`` batches, and on Ctrl-C or
        SIGTERM, which take effect after the present step (of short steps, after those of the present call: some 20 ms).
        With ``resume``, an existing checkpoint is restored first and ``epochs`` is the total number, so the same call
        finishes an interrupted run, to the same bits where the data can be read from any batch on. ``drop_last`` leaves
        out the last, short batch of an epoch, and of validation data where the model's batch is fixed. ``log``: a file
        of JSON lines; ``plot``: a picture of them (``.png`` or ``.svg``). Each epoch is reported in a line on standard
        error (on standard output in a notebook), with a progress bar on terminals: ``progress`` may be another stream,
        False, or a number: a line each so many epochs, and after the last. Callbacks get a
        :class:`~glowtrain.trainer.fit.Moment` after each batch and each epoch.

        Short steps run many in one native call, to the bits of :meth:`step` for each; with callbacks, one by one.

        Raises :class:`InputError`, :class:`DataError`, :class:`CheckpointError` before training where the fault can be
        found there; :class:`NonFiniteError` and :class:`BatchError`, of batches that cannot be made or do not fit, with
        the parameters from before that batch. A trainer is in one call of fit at a time: another one is an
        :class:`InputError`.
        """
        with self._alone:
            path = None if checkpoint is None else Path(checkpoint)
            options = FitOptions(
                epochs=epochs,
                batch_size=batch_size,
                steps_per_epoch=steps_per_epoch,
                prefetch=prefetch,
                shuffle=shuffle,
                drop_last=drop_last,
                patience=patience,
                min_delta=min_delta,
                restore_best=restore_best,
                checkpoint=path,
                checkpoint_every=checkpoint_every,
                log=None if log is None else Path(log),
                plot=None if plot is None else Path(plot),
                progress=progress,
                callbacks=tuple(callbacks),
                resumed=resume and self._restored(path),
            )
            return Fit(self, examples, validation, options).run()

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
        if not checkpoint.exists():
            return False
        self.restore(checkpoint)
        return True
