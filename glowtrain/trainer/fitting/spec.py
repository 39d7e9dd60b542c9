"""What a person says of one call of :meth:`~glowtrain.trainer.trainer.Trainer.fit`, as a record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, fields
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from glowtrain.datasets.augment import NAMED, Augmentation, as_augmentations
from glowtrain.errors import InputError
from glowtrain.memory.resources import OUTPUT, TRAINING
from glowtrain.presentation.messages import kind_of
from glowtrain.settings import setting
from glowtrain.trainer.feed import Data
from glowtrain.trainer.fitting.moments import Callback
from glowtrain.trainer.graphs import DEFAULT_BATCH, DEFAULT_EPOCHS

OWN = "examples", "validation", "prefetch", "checkpoint", "checkpoint_every", "log", "plot", "progress", "callbacks"
"""Arguments that the ranks of a fleet may have different ones of, or that are compared as what they hold."""


@dataclass(frozen=True)
class FitSpec:
    """The arguments of :meth:`~glowtrain.trainer.trainer.Trainer.fit`. Raises :class:`InputError` for what they cannot
    be."""

    examples: Data
    epochs: int = setting(
        DEFAULT_EPOCHS,
        "Passes over the data.",
        "So many more than there were; with resume, in all.",
        metavar="N",
        least=0,
    )
    batch_size: int | None = setting(
        None, f"Examples in a batch ({DEFAULT_BATCH}, or what the model is fixed to).", metavar="B", least=1
    )
    validation: Data | float | None = setting(
        None,
        "Hold out this part of the examples (0.2), and measure it after each epoch.",
        "Or data, by default a Dataset's own validation part. A part of arrays is drawn by the trainer's seed, of each "
        "class as many where the loss has labels.",
        metavar="P",
        type=float | None,
    )
    _: KW_ONLY
    steps_per_epoch: int | None = setting(None, "Batches of an epoch that ends before its examples do.", listed=False)
    prefetch: int | None = setting(
        None,
        "Batches of a loader, or of what is not in memory, that a thread makes ahead (0: no thread).",
        listed=False,
    )
    sample_weight: Any = setting(
        None,
        "A weight for each example of arrays, for a Trainer(..., sample_weight=True); also a last array of the data.",
        listed=False,
    )
    shuffle: bool = setting(True, "Whether each epoch takes examples of arrays in another order.", listed=False)
    augment: Augmentation | str | Sequence[Augmentation | str] = setting(
        (),
        "Change the examples of training at random (repeatable): flip, crop=4, noise=0.1, mixup=0.2, cutmix.",
        "Augmentations of gt.data, or their names, in the order in which they are applied.",
        metavar="NAME",
        type=list[str],
        parse=tuple,
        choices=NAMED,
        panel=TRAINING,
    )
    drop_last: bool = setting(
        False,
        "Leave out an epoch's last, short batch; of validation data, too, where the model's batch is fixed.",
        panel=TRAINING,
    )
    patience: int | None = setting(
        None,
        "Stop after N epochs without progress, and keep the parameters of the best epoch.",
        "Progress is a validation loss that fell by more than min_delta, or what monitor names. In Python the "
        "parameters stay as they are unless restore_best is set.",
        metavar="N",
        least=1,
        panel=TRAINING,
    )
    monitor: str | None = setting(
        None,
        "What --patience goes by in place of the validation loss: an entry of the log, e.g. val_accuracy.",
        "Whether more of it is better is known of each metric.",
        metavar="ENTRY",
        panel=TRAINING,
    )
    min_delta: float = setting(0.0, "What a validation loss must fall by, or monitor get better by.", listed=False)
    restore_best: bool = setting(False, "At the end take the parameters of the best epoch.", listed=False)
    checkpoint: str | Path | None = setting(
        None,
        "Written after every epoch, at Ctrl-C and at SIGTERM.",
        "The latter take effect after the present step (of short steps, after those of the present call: some 20 ms).",
        metavar="F",
        type=Path | None,
        panel=OUTPUT,
    )
    checkpoint_every: int | None = setting(None, "Batches after which the checkpoint is written, too.", listed=False)
    resume: bool = setting(
        False,
        "Go on from the checkpoint if there is one; a --lr takes effect.",
        "The same call finishes an interrupted run, to the same bits where the data can be read from any batch on.",
        panel=OUTPUT,
    )
    log: str | Path | None = setting(None, "JSON lines, one an epoch.", metavar="F", type=Path | None, panel=OUTPUT)
    plot: str | Path | None = setting(
        None, "Curves of losses and accuracy: .png or .svg.", metavar="F", type=Path | None, panel=OUTPUT
    )
    progress: bool | int | TextIO | None = setting(
        None,
        "Where epochs are reported in lines.",
        "By default on standard error: each on a terminal, with a progress bar, elsewhere some 20 of them; in a "
        "notebook one output changes. Another stream, which gets each; False; or a number: a line each so many epochs, "
        "and after the last.",
        listed=False,
    )
    callbacks: Sequence[Callback] = setting(
        (),
        "Functions that get a Moment after each batch and each epoch, or objects of glowtrain.callbacks.",
        "Steps run one by one where something is to be done after each batch.",
        listed=False,
    )

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "steps_per_epoch", "prefetch", "patience", "checkpoint_every"):
            value = getattr(self, name)
            least = 0 if name in ("epochs", "prefetch") else 1
            if value is not None and (not isinstance(value, (int, np.integer)) or value < least):
                raise InputError(f"fit: {name} must be a whole number of at least {least}, not {_given(name, value)}")
        as_augmentations(self.augment)
        if self.restore_best and self.patience is None:
            raise InputError("fit: restore_best=True goes with patience=")
        if self.monitor is not None and self.patience is None:
            raise InputError(f"fit: monitor={self.monitor!r} goes with patience=")
        if self.checkpoint_every is not None and self.checkpoint is None:
            raise InputError("fit: checkpoint_every= needs checkpoint=, the file to write")


def same_on_all(spec: FitSpec) -> dict[str, str]:
    """What must be the same on all ranks of a fleet, beside the data."""
    return {each.name: str(getattr(spec, each.name)) for each in fields(FitSpec) if each.name not in OWN}


def _given(name: str, value: object) -> str:
    """What was given for a number; data in place of ``epochs`` are targets that belong into a tuple."""
    plain = isinstance(value, (int, float, str))
    advice = "; inputs and targets are one argument, a tuple: fit((x, y))" if name == "epochs" and not plain else ""
    return (repr(value) if plain else kind_of(value)) + advice
