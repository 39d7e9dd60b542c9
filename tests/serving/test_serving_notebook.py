"""The notebook that trains a model and serves it."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat

from docs.site.notebooks import FOLDER, run
from tests.notebooks import text_of


def test_a_model_behind_a_port(tmp_path: Path) -> None:
    said = text_of(run(nbformat.read(FOLDER / "serve.ipynb", 4), tmp_path))
    trained = re.search(r"^([\d.]+)% of the validation images are right$", said, re.MULTILINE)
    assert trained is not None
    assert float(trained[1]) > 95
    assert re.search(r"^256 requests of 8 clients: [\d.]+ ms", said, re.MULTILINE)
    assert "400 digits: 'x' must be f32[batch,1,8,8]" in said
    assert said.endswith("\n0\n")  # the server's exit status
