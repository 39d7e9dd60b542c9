"""Losses, ONNX's optimizer operators, and StopGradient."""
