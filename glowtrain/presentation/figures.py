"""Figures by matplotlib (the ``plot`` extra): as files, or as SVG for :mod:`glowtrain.presentation.pages`.

The same data give the same bytes, whatever a person's own settings of matplotlib are.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any, Literal, cast

from glowtrain.errors import check_extra

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FileFormat = Literal["png", "svg"]
FILE_FORMATS: tuple[FileFormat, ...] = ("png", "svg")
"""Kinds of picture files, by their suffixes."""
DPI = 150
"""Dots per inch of a file."""
LIMIT = "#d6453d"
"""The colour of limits and of what is beyond them."""

# Axes in a grey that is readable on white and on black. Text stays black, which SVG leaves to the page to say.
STYLE = {
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color", "grid.color"), "#7f8894"),
    **dict.fromkeys(("xtick.labelcolor", "ytick.labelcolor"), "black"),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right"), False),
    **dict.fromkeys(("axes.grid", "axes.axisbelow"), True),
    **dict.fromkeys(("axes.labelsize", "xtick.labelsize", "ytick.labelsize", "legend.fontsize"), 9),
    "grid.alpha": 0.3,
    "font.sans-serif": "DejaVu Sans",
    "legend.frameon": False,
    "text.parse_math": False,  # names may have dollar signs
    "svg.fonttype": "none",
}
_NUMBERED = re.compile(r'<g id="[\w.]+_\d+">')
"""Ids that figures of one page share; nothing refers to them. Others are hashes, salted with the title."""


def check_drawing() -> None:
    """Raise :class:`MissingExtraError` if matplotlib is not installed."""
    check_extra("drawing", "matplotlib", "matplotlib", "plot")


def figure(draw: Callable[[Figure], None], width: float, height: float) -> Figure:
    """A figure of this size in inches with what ``draw`` puts into it, which a notebook shows without pyplot, too.

    Raises :class:`InputError` without matplotlib.
    """
    check_drawing()
    from glowtrain.presentation.notebook_figure import NotebookFigure  # noqa: PLC0415  matplotlib is an extra

    with _style():
        drawn = NotebookFigure(figsize=(width, height), layout="constrained")
        draw(drawn)
    return drawn


def saved(drawn: Figure, file_format: FileFormat) -> bytes:
    """A file with a figure of :func:`figure`."""
    with _style():
        return _saved(drawn, file_format, transparent=False)


def picture(draw: Callable[[Figure], None], width: float, height: float, file_format: FileFormat) -> bytes:
    """A file with what ``draw`` puts into a figure of this size in inches. Raises :class:`InputError`."""
    return saved(figure(draw, width, height), file_format)


def svg(draw: Callable[[Figure], None], width: float, height: float, title: str) -> str:
    """The same as an SVG element without a background, whose text has the colour of the page."""
    drawn = figure(draw, width, height)
    with _style(title):
        text = _saved(drawn, "svg", transparent=True).decode()
    named = f'<svg role="img" aria-label="{escape(title)}"'
    return _NUMBERED.sub("<g>", text[text.index("<svg") :].replace("<svg", named, 1))


@contextmanager
def _style(salt: str = "") -> Iterator[None]:
    """matplotlib's settings are ours, whatever a person's own are."""
    import matplotlib  # noqa: PLC0415  an extra

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a browser has other fonts
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(cast("Any", {**STYLE, "svg.hashsalt": salt}))
        yield


def _saved(drawn: Figure, file_format: FileFormat, *, transparent: bool) -> bytes:
    file = io.BytesIO()
    about = dict.fromkeys(("Date", "Creator", "Format", "Type") if file_format == "svg" else ())
    drawn.savefig(file, format=file_format, dpi=DPI, transparent=transparent, metadata=about)
    return file.getvalue()


def short(name: str, longest: int = 40) -> str:
    """A name that fits beside an axis: the middle of a long one is left out, as both ends of it tell more."""
    half = (longest - 1) // 2
    return name if len(name) <= longest else f"{name[:half]}…{name[-half:]}"
