"""From a graph to an ONNX file."""
