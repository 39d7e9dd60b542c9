"""Boxes: suppression of overlapping ones."""
