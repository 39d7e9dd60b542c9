"""The tutorials: notebooks, run as Jupyter runs them, and as pages that show what their cells do."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbconvert import MarkdownExporter

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "notebooks"
SECONDS = 300
"""For each cell."""


def run(notebook: Any, folder: Path) -> Any:
    """The notebook with its outputs, run from its first cell to its last by this Python, in a kernel of its own and in
    a folder. A cell that fails raises its error."""
    manager = AsyncKernelManager(kernel_name="python3")
    assert manager.kernel_spec is not None
    manager.kernel_spec.argv[0] = sys.executable
    client = NotebookClient(notebook, km=manager, timeout=SECONDS, resources={"metadata": {"path": str(folder)}})
    client.execute(cleanup_kc=True)
    return notebook


@dataclass(frozen=True)
class Tutorial:
    """A page in Markdown, and its pictures: PNG files by the names that it has for them."""

    name: str
    page: str
    pictures: dict[str, bytes]


def tutorials() -> Iterator[Tutorial]:
    """Each notebook with what it shows."""
    os.environ["MPLBACKEND"] = "inline"  # for kernels that inherit another one
    for path in sorted(FOLDER.glob("*.ipynb")):
        with TemporaryDirectory() as folder:
            notebook = run(nbformat.read(path, 4), Path(folder))
        page, resources = MarkdownExporter().from_notebook_node(notebook, {"unique_key": path.stem})
        yield Tutorial(path.stem, page.replace("![png](", "![What the cell above draws]("), resources["outputs"])
