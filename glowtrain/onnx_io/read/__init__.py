"""From an ONNX file to a graph or a template."""
