"""``torch.compile(module, backend="glowtrain")``."""
