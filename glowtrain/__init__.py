"""Glowtrain: a training compiler for neural networks. See README.md and docs/walk.md."""

__version__ = "0.1.0"
