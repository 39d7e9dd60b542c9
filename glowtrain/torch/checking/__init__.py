"""The gradient check of PyTorch modules."""
