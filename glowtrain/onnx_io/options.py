"""How a model is to be read: what a person says of it besides where it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LoadOptions:
    """The arguments of :func:`glowtrain.loading.load.load` besides its source, which says what they mean."""

    dims: Mapping[str, int] | None = None
    values: Mapping[str, Any] | None = None
    open_batch: bool = False
    untie: str | Sequence[str] = ()
    name: str = ""
