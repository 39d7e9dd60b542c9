"""Bundles: a model as an object file with a C interface, which runs and trains without Glowtrain or libraries."""

from glowtrain.bundles.writing import Bundle, bundle

__all__ = ["Bundle", "bundle"]
