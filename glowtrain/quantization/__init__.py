"""Quantization: calibrate a float model, round its tensors to integers, say what that cost.

    float model --calibrate--> Profile --prepare--> FakeQuantize --(training)--> convert --> QDQ --> gt.save

:func:`quantize` is the whole of it for a model that is not trained again.
"""

from glowtrain.quantization.analysis import LayerNoise, Sensitivity, accuracy, sensitivity, signal_to_noise
from glowtrain.quantization.batch_norm import freeze
from glowtrain.quantization.calibrate import calibrate
from glowtrain.quantization.convert import convert
from glowtrain.quantization.export import FORMATS, in_bytes, save_quantized
from glowtrain.quantization.fold import folded
from glowtrain.quantization.methods import (
    METHODS,
    WEIGHT_METHODS,
    Entropy,
    MeanSquare,
    Method,
    MinMax,
    MovingAverage,
    Percentile,
)
from glowtrain.quantization.placement import Kept
from glowtrain.quantization.post_training import Quantized, quantize
from glowtrain.quantization.prepare import prepare
from glowtrain.quantization.profile import Profile
from glowtrain.quantization.qat import finetune, frozen_trainer, learn, prepare_training, resume_training
from glowtrain.quantization.qoperator import qoperator
from glowtrain.quantization.recipe import Recipe
from glowtrain.quantization.report import Report, report
from glowtrain.quantization.scheme import Parameters, Scheme

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
