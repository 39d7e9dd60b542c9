"""A figure that a notebook shows, whether pyplot has been imported or not. Needs matplotlib (the ``plot`` extra)."""

from __future__ import annotations

from matplotlib.figure import Figure

from glowtrain.presentation import figures

SCREEN = 100
"""Dots per inch as a notebook shows a figure: there are more in it, for screens that have more."""


class NotebookFigure(Figure):
    """A figure that is no pyplot's, so that nobody has to close it. With pyplot's inline backend, that shows it."""

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        width, height = (round(inches * SCREEN) for inches in self.get_size_inches())
        return figures.saved(self, "png"), {"width": width, "height": height}
