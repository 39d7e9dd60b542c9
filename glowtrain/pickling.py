"""Finding out what keeps something from being pickled."""

from __future__ import annotations

import pickle
from typing import Any

from glowtrain.errors import UnpicklableError


class _Nowhere:
    """A file that forgets what is written."""

    def write(self, data: bytes | memoryview) -> int:
        return len(data)


def check_pickles(part: Any, what: str, instead: str) -> None:
    """Raise :class:`UnpicklableError` for a part of something that cannot be pickled; ``instead``: what else to do."""
    try:
        pickle.Pickler(_Nowhere()).dump(part)
    except UnpicklableError:
        raise
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UnpicklableError(
            f"{what} cannot be pickled: {error}. Functions and classes must stand at the top of a module, where pickle "
            f"finds them by their names; or {instead}"
        ) from None
