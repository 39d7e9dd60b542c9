"""What ``glowtrain quantize`` can be told: how to round, how to train, what to write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from glowtrain import data
from glowtrain import quantization as q
from glowtrain.cli.arguments import options
from glowtrain.cli.arguments.files import check_reports
from glowtrain.cli.arguments.training import batches_in, optimizer_of, schedule_of
from glowtrain.cli.terminal.records import Given
from glowtrain.errors import InputError
from glowtrain.graph import Graph, Template
from glowtrain.memory.resources import OUTPUT
from glowtrain.optim import OPTIMIZERS, Optimizer
from glowtrain.quantization.export.files import FORMATS
from glowtrain.quantization.placement.scheme import ACTIVATIONS, WEIGHTS, Granularity
from glowtrain.settings import setting
from glowtrain.types import DTYPES

EXAMPLES = 1024
"""Examples that ranges are found on, where nobody says how many."""

SCHEME, CALIBRATION, TRAINING = "Types and scales", "Calibration and rounding", "Training (--qat)"


class Activations(StrEnum):
    """Types of activations."""

    u8 = "u8"
    i8 = "i8"
    u16 = "u16"
    i16 = "i16"


class Weights(StrEnum):
    """Types of weights."""

    i8 = "i8"
    u8 = "u8"
    i4 = "i4"
    u4 = "u4"


Format = StrEnum("Format", FORMATS)  # type: ignore[misc]
Method = StrEnum("Method", {name.replace("-", "_"): name for name in q.METHODS})  # type: ignore[misc]
WeightMethod = StrEnum("WeightMethod", {name: name for name in q.WEIGHT_METHODS})  # type: ignore[misc]
QDQ, MINMAX, WEIGHT_MINMAX = Format("qdq"), Method("minmax"), WeightMethod("minmax")

Calibrate = Annotated[
    str | None,
    typer.Option(
        "--calibrate",
        metavar="D",
        help=f"Typical data: {', '.join(data.NAMES)} or an .npz file.",
        autocompletion=options.DATA,
    ),
]
Dynamic = Annotated[
    bool,
    typer.Option(
        "--dynamic", help="Without data: weights of MatMul and Gemm in i8, and each row by its own range as it comes."
    ),
]
Ranking = Annotated[
    bool,
    typer.Option("--sensitivity", help="Rank layers by what rounding them costs.", rich_help_panel=OUTPUT),
]


@dataclass(frozen=True)
class SchemeOptions:
    """How tensors are rounded."""

    activations: Activations = setting(
        Activations.u8, f"Type of activations: {', '.join(Activations)}.", metavar="T", panel=SCHEME
    )
    weights: Weights = setting(Weights.i8, f"Type of weights: {', '.join(Weights)}.", metavar="T", panel=SCHEME)
    per_channel: bool = setting(
        True, "What shares a scale of weights.", flag="--per-channel/--per-tensor", panel=SCHEME
    )
    block: int = setting(0, "N weights of a channel share a scale.", metavar="N", least=0, panel=SCHEME)
    symmetric: bool = setting(False, "Activations' ranges symmetric about 0.", panel=SCHEME)
    power_of_two: bool = setting(False, "All scales powers of two.", panel=SCHEME)
    keep: Sequence[str] = setting(
        (), "Stay in float: names or operators (repeatable).", metavar="PATTERN", type=list[str], panel=SCHEME
    )
    keep_sensitive: int = setting(
        0, "The N layers stay in float that cost results the most.", metavar="N", least=0, panel=SCHEME
    )

    @property
    def of_activations(self) -> q.Scheme:
        """How activations are rounded."""
        form = "symmetric" if self.symmetric else ACTIVATIONS.form
        return ACTIVATIONS.with_(dtype=DTYPES[self.activations], form=form, power_of_two=self.power_of_two)

    @property
    def of_weights(self) -> q.Scheme:
        """How weights are rounded."""
        granularity: Granularity = "block" if self.block else "channel" if self.per_channel else "tensor"
        return WEIGHTS.with_(
            dtype=DTYPES[self.weights], granularity=granularity, block=self.block, power_of_two=self.power_of_two
        )


@dataclass(frozen=True)
class CalibrationOptions:
    """How ranges are found, and what is done about errors of rounding."""

    method: Method = setting(
        MINMAX, f"How ranges of activations are found: {', '.join(q.METHODS)}.", metavar="M", panel=CALIBRATION
    )
    weight_method: WeightMethod = setting(
        WEIGHT_MINMAX, f"How ranges of weights are found: {', '.join(q.WEIGHT_METHODS)}.", metavar="M",
        panel=CALIBRATION,
    )  # fmt: skip
    examples: int = setting(EXAMPLES, "Calibrate with the first N.", metavar="N", least=1, panel=CALIBRATION)
    equalize: bool = setting(False, "Cross-layer equalisation first.", panel=CALIBRATION)
    correct_bias: bool = setting(False, "Take mean errors out of biases.", panel=CALIBRATION)
    round_weights: int = setting(
        0, "N steps of AdaRound for each layer's weights.", metavar="N", least=0, panel=CALIBRATION
    )

    def recipe(self, scheme: SchemeOptions) -> q.Recipe:
        """How a model is rounded."""
        return q.Recipe(
            scheme.of_activations, scheme.of_weights, method=str(self.method), weight_method=str(self.weight_method),
            keep=scheme.keep, keep_sensitive=scheme.keep_sensitive,
            equalize=self.equalize, correct_bias=self.correct_bias, round_weights=self.round_weights,
        )  # fmt: skip

    @property
    def after_training(self) -> bool:
        """Whether something is done about errors that training with rounding would do itself."""
        return self.equalize or self.correct_bias or self.round_weights > 0


@dataclass(frozen=True)
class QuantizeFiles:
    """What a run reads and writes beside its model and data."""

    out_path: Annotated[
        Path, typer.Option("--out", metavar="F", help="Where the integer model goes.", rich_help_panel=OUTPUT)
    ]
    profile: Path | None = setting(
        None, "Ranges as JSON: read if it is there, else written.", metavar="F",
        panel=CALIBRATION,
    )  # fmt: skip
    page: Path | None = setting(
        None, r"A page with plots (needs glowtrain\[plot]).", flag="--report", metavar="F", panel=OUTPUT
    )
    plain: Path | None = setting(None, "The report as JSON.", flag="--json", metavar="F", panel=OUTPUT)
    form: Format = setting(QDQ, f"Of the ONNX file: {', '.join(FORMATS)}.", flag="--format", metavar="F", panel=OUTPUT)
    opset: options.Opset = None
    as_bytes: bool = setting(
        False,
        "4-bit weights in bytes (not --block's): twice the room, but ONNX Runtime multiplies them as integers.",
        panel=OUTPUT,
    )

    def check(self) -> None:
        """Raise :class:`InputError` before anything is loaded for a file that could not be written."""
        new_profile = None if self.profile is None or self.profile.exists() else self.profile
        check_reports(self.out_path, self.plain, new_profile, page=self.page)

    def check_savable(self, recipe: q.Recipe) -> None:
        """Raise :class:`QuantizationError` if the operator set that was asked for is too old for a recipe."""
        if self.opset is not None:
            recipe.check_opset(self.opset, as_bytes=self.as_bytes)

    @property
    def histograms(self) -> bool:
        """Whether a file holds them."""
        return self.page is not None or self.profile is not None


@dataclass(frozen=True)
class Finetuning:
    """Training with rounding; for no epochs (``qat``), none."""

    qat: int = setting(0, "Train with rounding for so long.", metavar="EPOCHS", least=0, panel=TRAINING)
    frozen: int | None = setting(
        None, "Of these, the last with BatchNormalization frozen (a third, rounded down).", metavar="EPOCHS", least=0,
        panel=TRAINING,
    )  # fmt: skip
    optimizer: str = setting("adam", f"{', '.join(OPTIMIZERS)}.", metavar="O", choices=OPTIMIZERS, panel=TRAINING)
    lr: float = setting(2e-4, "Learning rate.", metavar="R", panel=TRAINING)
    schedule: str = setting(
        "cosine", f"{', '.join(options.SCHEDULES)}, over the whole run.", metavar="S", choices=options.SCHEDULES,
        panel=TRAINING,
    )  # fmt: skip

    def check(self, *, after_training: bool) -> None:
        """Raise :class:`InputError` for options that contradict each other; ``after_training`` says whether some of
        rounding after training were given."""
        if self.frozen is not None and self.frozen > self.qat:
            raise InputError(f"--frozen {self.frozen} is part of the epochs of --qat, and these are {self.qat}")
        if self.qat and after_training:
            contradicting = "--equalize, --correct-bias and --round-weights"
            raise InputError(f"{contradicting} are for rounding after training: --qat trains")

    @property
    def frozen_epochs(self) -> int:
        """The last epochs, with BatchNormalization frozen."""
        return self.qat // 3 if self.frozen is None else self.frozen

    def rule(self, model: Graph | Template, examples: int, fit: Given) -> Optimizer:
        """The optimizer for a model and so many examples."""
        batches = batches_in(model, examples, {**fit, "epochs": self.qat})
        return optimizer_of(self.optimizer, schedule_of(self.schedule, max(1, batches), 0), lr=self.lr)
