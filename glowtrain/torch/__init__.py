"""PyTorch modules, trained and checked by Glowtrain. Needs PyTorch: the extra ``torch``."""

from glowtrain.torch.module import from_torch

__all__ = ["from_torch"]
