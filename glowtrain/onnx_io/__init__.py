"""ONNX in and out: the only part of Glowtrain that imports ``onnx``."""

from glowtrain.onnx_io.load import load
from glowtrain.onnx_io.save import save

__all__ = ["load", "save"]
