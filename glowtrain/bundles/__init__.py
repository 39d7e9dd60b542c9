"""Bundles: a model as an object file with a C interface, which runs and trains without Glowtrain or libraries."""

from glowtrain.bundles.faces.python.loading import LoadedBundle, load_bundle, save_bundle_weights
from glowtrain.bundles.writing import Bundle, bundle

__all__ = ["Bundle", "LoadedBundle", "bundle", "load_bundle", "save_bundle_weights"]
