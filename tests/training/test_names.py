from __future__ import annotations

import subprocess
import sys

import pytest

import glowtrain as gt


@pytest.mark.parametrize("name", gt.__all__)
def test_every_exported_name_is_there(name: str) -> None:
    assert getattr(gt, name) is not None
    assert name in dir(gt)


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="'glowtrain' has no attribute 'nothing'"):
        _ = gt.nothing


def test_importing_the_package_is_quick() -> None:
    program = "import sys, glowtrain; print([name for name in ('numpy', 'onnx', 'hypothesis') if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
