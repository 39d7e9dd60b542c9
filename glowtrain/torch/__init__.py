"""PyTorch modules, trained and checked by Glowtrain. Needs PyTorch: the extra ``torch``."""

from glowtrain.torch.check import gradcheck
from glowtrain.torch.module import from_torch
from glowtrain.torch.step import CompiledStep, NonFiniteLossWarning, compile_step

__all__ = ["CompiledStep", "NonFiniteLossWarning", "compile_step", "from_torch", "gradcheck"]
