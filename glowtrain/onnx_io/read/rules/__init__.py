"""ONNX operators that are read in a way of their own: subgraphs, sequences, bodies, what needs its operands."""
