"""Output where not every character can be written: what looks like it stands in its place."""

from __future__ import annotations

import codecs
import io
import sys
import unicodedata

SIMILAR = {
    "×": "x", "µ": "u", "…": "...", "–": "-", "—": "-", "−": "-", "→": "->", "≤": "<=", "≥": ">=", "∞": "inf",
    "‘": "'", "’": "'", "“": '"', "”": '"', "•": "*", "│": "|", "─": "-",
}  # fmt: skip
HANDLER = "glowtrain.alike"


def encodable() -> None:
    """Let standard output and error take any character, in whatever encoding they are."""
    codecs.register_error(HANDLER, _replacement)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=HANDLER)


def _replacement(error: UnicodeError) -> tuple[str, int]:
    """What to write for characters that cannot be encoded, and where to go on."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(similar_ascii, error.object[error.start : error.end])), error.end


def similar_ascii(character: str) -> str:
    """ASCII that looks like a character; a question mark for one that nothing looks like."""
    plain = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    return SIMILAR.get(character) or plain or "?"
