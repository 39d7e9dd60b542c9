"""ONNX operators that are read in a way of their own: subgraphs, sequences, function bodies, what needs its operands."""
