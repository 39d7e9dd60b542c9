"""What reading and writing share: tensors, attributes and operands as ONNX defines them."""
