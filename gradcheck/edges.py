"""Samples at the edges of domains: empty and single axes, rank 5, zeros, units, large, denormal and non-finite values.

Gradients need not exist there; results do, and every form of a graph must give the same.
"""

from __future__ import annotations

from glowtrain.errors import GlowtrainError
from glowtrain.gradcheck.draw import EdgeDraw
from glowtrain.gradcheck.operators import applied
from glowtrain.graph import Operator, Sample

ATTEMPTS = 20
"""Draws before an operator counts as having no edges."""

_ZEROS = "its steps multiply by zeros (of padding, masks or unused weights), which infinities make NaN elsewhere"
_ORDER = "products and sums are formed in another order, so infinities cancel elsewhere"
_PLACES = "some operands say where to read or what comes first, and must be finite"

FINITE: dict[str, str] = {
    **dict.fromkeys(
        ("ConvTranspose", "glowtrain.ConvInputGradient", "DFT", "STFT", "Resize", "TfIdfVectorizer"), _ZEROS
    ),
    **dict.fromkeys(("Attention", "com.microsoft.Attention", "com.microsoft.MultiHeadAttention"), _ZEROS),
    **dict.fromkeys(("Einsum", "GRU", "LSTM", "RNN"), _ORDER),
    **dict.fromkeys((f"ai.onnx.preview.training.{name}" for name in ("Adagrad", "Adam", "Momentum")), _ORDER),
    **dict.fromkeys(("GridSample", "DeformConv", "MaxRoiPool", "RoiAlign", "glowtrain.NonMaxSuppression"), _PLACES),
}
"""Operators that get no infinities and NaN, each with the reason: theirs are not those of NumPy at every place."""


def drawn_edge(operator: type[Operator], seed: int, example: int) -> Sample | None:
    """A sample at the edges of an operator's domain; every other one has special values.

    Not every use exists without elements (an index needs a place to name): what cannot be drawn, or is refused, is
    drawn again; ``None`` if that does not help.
    """
    key, finite = operator.key(), operator.key() in FINITE
    for attempt in range(ATTEMPTS):
        draw = EdgeDraw(seed, "edge", key, example, attempt, special=example % 2 == 1, finite=finite)
        try:
            sample = operator.sample(draw)
            applied(sample)
        except (GlowtrainError, LookupError, ValueError):
            continue
        return sample
    return None
