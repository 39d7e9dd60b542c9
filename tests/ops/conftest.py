"""What tests of operators' rules ask for by name."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest


@pytest.fixture
def quiet() -> Iterator[None]:
    """Infinities and NaN are data, as in the interpreter."""
    with np.errstate(all="ignore"):
        yield
