"""Pooling, regions of interest, columns of patches."""
