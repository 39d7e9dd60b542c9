"""Finding out what keeps something from being pickled."""

from __future__ import annotations

import pickle
from types import FunctionType
from typing import Any

from glowtrain.errors import UnpicklableError


class _Nowhere:
    """A file that forgets what is written."""

    def write(self, data: bytes | memoryview) -> int:
        return len(data)


class _Trial(pickle.Pickler):
    """Finds out whether something can be pickled. Functions of ``__main__`` are left to the pickler that is used: some,
    as cloudpickle, take them by value."""

    def reducer_override(self, part: Any) -> Any:
        return (str, ()) if isinstance(part, FunctionType) and part.__module__ == "__main__" else NotImplemented


def check_pickles(part: Any, what: str, instead: str) -> None:
    """Raise :class:`UnpicklableError` for a part of something that cannot be pickled; ``instead``: what else to do."""
    try:
        _Trial(_Nowhere()).dump(part)
    except UnpicklableError:
        raise
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UnpicklableError(
            f"{what} cannot be pickled: {error}. Functions and classes must stand at the top of a module, where pickle "
            f"finds them by their names; or {instead}"
        ) from None
