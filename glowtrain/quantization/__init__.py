"""Quantization: calibrate a float model, round its tensors to integers, say what that cost.

    float model --calibrate--> Profile --prepare--> FakeQuantize --(training)--> convert --> QDQ --> gt.save

:func:`quantize` is the whole of it for a model that is not trained again; :func:`dynamic` takes a model without data,
and rounds its activations while it runs.
"""

from glowtrain.quantization.calibration.calibrate import calibrate
from glowtrain.quantization.calibration.profile import Profile
from glowtrain.quantization.calibration.ranges import (
    METHODS,
    WEIGHT_METHODS,
    Entropy,
    MeanSquare,
    Method,
    MinMax,
    MovingAverage,
    Percentile,
)
from glowtrain.quantization.dynamic import dynamic
from glowtrain.quantization.export.convert import convert
from glowtrain.quantization.export.files import FORMATS, in_bytes, save_quantized
from glowtrain.quantization.export.fold import folded
from glowtrain.quantization.export.qoperator import qoperator
from glowtrain.quantization.improve.sensitivity import LayerNoise, Sensitivity, accuracy, sensitivity, signal_to_noise
from glowtrain.quantization.placement.placement import Kept
from glowtrain.quantization.placement.prepare import prepare
from glowtrain.quantization.placement.recipe import Recipe
from glowtrain.quantization.placement.scheme import Parameters, Scheme
from glowtrain.quantization.post_training import Quantized, quantize
from glowtrain.quantization.report.report import Report, report
from glowtrain.quantization.training.batch_norm import freeze
from glowtrain.quantization.training.qat import finetune, frozen_trainer, learn, prepare_training, resume_training

__all__ = [
    "FORMATS",
    "METHODS",
    "WEIGHT_METHODS",
    "Entropy",
    "Kept",
    "LayerNoise",
    "MeanSquare",
    "Method",
    "MinMax",
    "MovingAverage",
    "Parameters",
    "Percentile",
    "Profile",
    "Quantized",
    "Recipe",
    "Report",
    "Scheme",
    "Sensitivity",
    "accuracy",
    "calibrate",
    "convert",
    "dynamic",
    "finetune",
    "folded",
    "freeze",
    "frozen_trainer",
    "in_bytes",
    "learn",
    "prepare",
    "prepare_training",
    "qoperator",
    "quantize",
    "report",
    "resume_training",
    "save_quantized",
    "sensitivity",
    "signal_to_noise",
]
