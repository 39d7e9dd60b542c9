"""What ``glowtrain quantize`` can be told: how to round, how to train, what to write."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from glowtrain import data
from glowtrain import quantization as q
from glowtrain.cli.arguments import options
from glowtrain.cli.arguments.completion import names
from glowtrain.cli.arguments.files import check_reports
from glowtrain.cli.arguments.training import batches_in, optimizer_of, schedule_of
from glowtrain.cli.terminal.records import Given
from glowtrain.errors import InputError
from glowtrain.graph import Graph, Template
from glowtrain.optim import OPTIMIZERS, Optimizer
from glowtrain.quantization.export.files import FORMATS
from glowtrain.quantization.placement.scheme import ACTIVATIONS, WEIGHTS, Granularity
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
ActivationType = Annotated[
    Activations,
    typer.Option(metavar="T", help=f"Type of activations: {', '.join(Activations)}.", rich_help_panel=SCHEME),
]
WeightType = Annotated[
    Weights, typer.Option(metavar="T", help=f"Type of weights: {', '.join(Weights)}.", rich_help_panel=SCHEME)
]
PerChannel = Annotated[
    bool, typer.Option("--per-channel/--per-tensor", help="What shares a scale of weights.", rich_help_panel=SCHEME)
]
Block = Annotated[
    int, typer.Option(min=0, metavar="N", help="N weights of a channel share a scale.", rich_help_panel=SCHEME)
]
Symmetric = Annotated[
    bool, typer.Option("--symmetric", help="Activations' ranges symmetric about 0.", rich_help_panel=SCHEME)
]
PowerOfTwo = Annotated[bool, typer.Option("--power-of-two", help="All scales powers of two.", rich_help_panel=SCHEME)]
Keep = Annotated[
    list[str],
    typer.Option(metavar="PATTERN", help="Stay in float: names or operators (repeatable).", rich_help_panel=SCHEME),
]
KeepSensitive = Annotated[
    int,
    typer.Option(
        min=0, metavar="N", help="The N layers stay in float that cost results the most.", rich_help_panel=SCHEME
    ),
]
CalibrationMethod = Annotated[
    Method,
    typer.Option(
        metavar="M", help=f"How ranges of activations are found: {', '.join(q.METHODS)}.", rich_help_panel=CALIBRATION
    ),
]
WeightCalibrationMethod = Annotated[
    WeightMethod,
    typer.Option(
        metavar="M",
        help=f"How ranges of weights are found: {', '.join(q.WEIGHT_METHODS)}.",
        rich_help_panel=CALIBRATION,
    ),
]
Examples = Annotated[
    int, typer.Option(min=1, metavar="N", help="Calibrate with the first N.", rich_help_panel=CALIBRATION)
]
ProfileFile = Annotated[
    Path | None,
    typer.Option(metavar="F", help="Ranges as JSON: read if it is there, else written.", rich_help_panel=CALIBRATION),
]
Equalize = Annotated[
    bool, typer.Option("--equalize", help="Cross-layer equalisation first.", rich_help_panel=CALIBRATION)
]
CorrectBias = Annotated[
    bool, typer.Option("--correct-bias", help="Take mean errors out of biases.", rich_help_panel=CALIBRATION)
]
RoundWeights = Annotated[
    int,
    typer.Option(min=0, metavar="N", help="N steps of AdaRound for each layer's weights.", rich_help_panel=CALIBRATION),
]
Epochs = Annotated[
    int, typer.Option(min=0, metavar="EPOCHS", help="Train with rounding for so long.", rich_help_panel=TRAINING)
]
FrozenEpochs = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="EPOCHS",
        help="Of these, the last with BatchNormalization frozen (a third, rounded down).",
        rich_help_panel=TRAINING,
    ),
]
OptimizerName = Annotated[
    str,
    typer.Option(
        metavar="O",
        help=f"{', '.join(OPTIMIZERS)}.",
        autocompletion=options.OPTIMIZER_NAMES,
        rich_help_panel=TRAINING,
    ),
]
LearningRate = Annotated[float, typer.Option(metavar="R", help="Learning rate.", rich_help_panel=TRAINING)]
ScheduleName = Annotated[
    str,
    typer.Option(
        metavar="S",
        help=f"{', '.join(options.SCHEDULES)}, over the whole run.",
        autocompletion=names(options.SCHEDULES),
        rich_help_panel=TRAINING,
    ),
]
FileFormat = Annotated[
    Format,
    typer.Option(
        "--format", metavar="F", help=f"Of the ONNX file: {', '.join(FORMATS)}.", rich_help_panel=options.OUTPUT
    ),
]
AsBytes = Annotated[
    bool,
    typer.Option(
        "--as-bytes",
        help="4-bit weights in bytes (not --block's): twice the room, but ONNX Runtime multiplies them as integers.",
        rich_help_panel=options.OUTPUT,
    ),
]
ReportPage = Annotated[
    Path | None,
    typer.Option(
        "--report", metavar="F", help=r"A page with plots (needs glowtrain\[plot]).", rich_help_panel=options.OUTPUT
    ),
]
ReportJson = Annotated[
    Path | None, typer.Option("--json", metavar="F", help="The report as JSON.", rich_help_panel=options.OUTPUT)
]
Ranking = Annotated[
    bool,
    typer.Option("--sensitivity", help="Rank layers by what rounding them costs.", rich_help_panel=options.OUTPUT),
]


@dataclass(frozen=True)
class SchemeOptions:
    """How tensors are rounded."""

    activations: ActivationType = Activations.u8
    weights: WeightType = Weights.i8
    per_channel: PerChannel = True
    block: Block = 0
    symmetric: Symmetric = False
    power_of_two: PowerOfTwo = False
    keep: Keep = field(default_factory=list)
    keep_sensitive: KeepSensitive = 0

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

    method: CalibrationMethod = MINMAX
    weight_method: WeightCalibrationMethod = WEIGHT_MINMAX
    examples: Examples = EXAMPLES
    equalize: Equalize = False
    correct_bias: CorrectBias = False
    round_weights: RoundWeights = 0

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
        Path, typer.Option("--out", metavar="F", help="Where the integer model goes.", rich_help_panel=options.OUTPUT)
    ]
    profile: ProfileFile = None
    page: ReportPage = None
    plain: ReportJson = None
    form: FileFormat = QDQ
    opset: options.Opset = None
    as_bytes: AsBytes = False

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

    qat: Epochs = 0
    frozen: FrozenEpochs = None
    optimizer: OptimizerName = "adam"
    lr: LearningRate = 2e-4
    schedule: ScheduleName = "cosine"

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
