"""ONNX in and out: the only part of Glowtrain that imports ``onnx``."""

from glowtrain.onnx_io.load import load
from glowtrain.onnx_io.save import save
from glowtrain.onnx_io.trainable import inference, make_trainable

__all__ = ["inference", "load", "make_trainable", "save"]
