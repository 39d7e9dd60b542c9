"""com.microsoft: operators that ONNX Runtime's quantizer and optimizers emit."""
