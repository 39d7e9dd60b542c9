"""What a broken model is met with."""

from __future__ import annotations

import pytest

from glowtrain import load
from glowtrain.errors import ModelError
from glowtrain.graph import Template


def load_and_bind(source: object) -> None:
    loaded = load(source)  # type: ignore[arg-type]
    if isinstance(loaded, Template):
        loaded.bind(dict.fromkeys(loaded.symbols, 2))


def refused(source: object, *parts: str, kind: type[ModelError] = ModelError) -> None:
    with pytest.raises(kind) as error:
        load_and_bind(source)
    for part in parts:
        assert part in str(error.value)
