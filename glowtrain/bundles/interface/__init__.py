"""The C interface of a bundle, as LLVM text around the code of its functions."""

from glowtrain.bundles.interface.interface import VERSION, Interface

__all__ = ["VERSION", "Interface"]
