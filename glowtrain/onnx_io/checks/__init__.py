"""ONNX's own tests, what is supported, and other runtimes' answers."""
