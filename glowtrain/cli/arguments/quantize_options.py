"""What ``glowtrain quantize`` can be told, as annotated types."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from glowtrain import data
from glowtrain import quantization as q
from glowtrain.cli.arguments import options
from glowtrain.cli.arguments.completion import names
from glowtrain.optim import OPTIMIZERS
from glowtrain.quantization.export.files import FORMATS

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

Out = Annotated[
    Path, typer.Option("--out", metavar="F", help="Where the integer model goes.", rich_help_panel=options.OUTPUT)
]
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
    typer.Option(metavar="F", help=r"A page with plots (needs glowtrain\[plot]).", rich_help_panel=options.OUTPUT),
]
ReportJson = Annotated[
    Path | None, typer.Option("--json", metavar="F", help="The report as JSON.", rich_help_panel=options.OUTPUT)
]
Ranking = Annotated[
    bool,
    typer.Option("--sensitivity", help="Rank layers by what rounding them costs.", rich_help_panel=options.OUTPUT),
]
