"""Training steps of PyTorch modules: ``compile_step``."""
