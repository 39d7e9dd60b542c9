"""ai.onnx.ml: the operators of models on tables."""
