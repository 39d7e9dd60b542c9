"""What notebooks show (docs/site/notebooks.py runs them)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat

from docs.site.notebooks import run


def outputs_of(*cells: str, folder: Path) -> list[list[Any]]:
    """What each of some cells of code shows."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    return [cell.outputs for cell in run(notebook, folder).cells]


def text_of(notebook: Any) -> str:
    """What a notebook's outputs say as text, each in lines of its own. None of them is a warning."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert all(output.get("name") != "stderr" for output in outputs), outputs
    texts = (output.get("text") or output.data["text/plain"] for output in outputs)
    return "".join(text if text.endswith("\n") else f"{text}\n" for text in texts)
