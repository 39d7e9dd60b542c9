"""Bundles: a model as an object file with a C interface, which runs and trains without Glowtrain or libraries."""

from glowtrain.bundles.devices.sizes import BundleSize
from glowtrain.bundles.faces.python.loading import LoadedBundle, load_bundle, save_bundle_weights
from glowtrain.bundles.writing import Bundle, bundle, bundle_size

__all__ = ["Bundle", "BundleSize", "LoadedBundle", "bundle", "bundle_size", "load_bundle", "save_bundle_weights"]
