"""PyTorch modules, trained and checked by Glowtrain. Needs PyTorch: the extra ``torch``."""

from glowtrain.errors import check_extra

check_extra("glowtrain.torch", "PyTorch", "torch", "torch")

from glowtrain.torch.checking.gradcheck import gradcheck  # noqa: E402  what is missing is said first
from glowtrain.torch.module import from_torch  # noqa: E402  the same
from glowtrain.torch.pad_collate import PadCollate  # noqa: E402  the same
from glowtrain.torch.steps.recompilations import RecompilationWarning  # noqa: E402  the same
from glowtrain.torch.steps.step import CompiledStep, IneffectiveClippingWarning, compile_step  # noqa: E402  the same
from glowtrain.torch.steps.step_for_shape import NonFiniteLossWarning, UnkeptAttributeWarning  # noqa: E402  the same
from glowtrain.torch.write_back import to_torch as to_torch  # noqa: E402  the same

__all__ = [
    "CompiledStep", "IneffectiveClippingWarning", "NonFiniteLossWarning", "PadCollate", "RecompilationWarning",
    "UnkeptAttributeWarning", "compile_step", "from_torch", "gradcheck",
]  # fmt: skip
