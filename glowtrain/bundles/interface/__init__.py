"""The C interface of a bundle, as LLVM text around the code of its functions."""

from glowtrain.bundles.interface.interface import VERSION, Interface
from glowtrain.bundles.interface.text import interface_text

__all__ = ["VERSION", "Interface", "interface_text"]
