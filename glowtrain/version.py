"""The version, for those parts of Glowtrain that cannot import all of it."""

__version__ = "0.2.0"
