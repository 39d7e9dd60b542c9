"""com.microsoft: operators that ONNX Runtime's quantizer and optimizers emit."""

from glowtrain.ops.microsoft import attention, fused, linear, lstm, normalization, quantized, weights

__all__ = ["attention", "fused", "linear", "lstm", "normalization", "quantized", "weights"]
