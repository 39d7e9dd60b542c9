"""ONNX in and out: the only part of Glowtrain that imports ``onnx``."""

from glowtrain.modes.training_and_inference import inference, make_trainable
from glowtrain.onnx_io.read.load import load
from glowtrain.onnx_io.write.save import save

__all__ = ["inference", "load", "make_trainable", "save"]
