"""Notebooks, run from their first cell to their last as Jupyter runs them: in a kernel of its own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "notebooks"
SECONDS = 300
"""For each cell."""


def run(notebook: Any, folder: Path) -> Any:
    """The notebook with its outputs, run by this Python in a folder. A cell that fails raises its error."""
    manager = AsyncKernelManager(kernel_name="python3")
    assert manager.kernel_spec is not None
    manager.kernel_spec.argv[0] = sys.executable
    NotebookClient(notebook, km=manager, timeout=SECONDS, resources={"metadata": {"path": str(folder)}}).execute()
    return notebook


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
