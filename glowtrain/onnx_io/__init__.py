"""ONNX in and out: the only part of Glowtrain that imports ``onnx``."""

from glowtrain.onnx_io.load import load

__all__ = ["load"]
