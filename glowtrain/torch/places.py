"""Which part of a module, and which line of its source, a traced operator comes from."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Any

import torch

_LIBRARY = str(Path(torch.__file__).parent)
_OWN = str(Path(__file__).parent)


def module_path(node: torch.fx.Node) -> str:
    """``layers.0.attention``: the innermost submodule that made a node; '' for the outermost."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [path for path, _ in stack.values()]
    return str(paths[-1]) if paths else ""


def source_line(node: torch.fx.Node) -> str:
    """``model.py:12: h = torch.fft.fft(x)``: the innermost line outside of PyTorch that made a node, if it is known."""
    found = re.findall(r'File "(.+)", line (\d+), in \S+\n\s*(.*)', node.meta.get("stack_trace") or "")
    own = [each for each in found if _is_users(each[0])] or found
    return f"{own[-1][0]}:{own[-1][1]}: {own[-1][2]}" if own else ""


def innermost_line(error: BaseException) -> str:
    """`` (model.py:12: if x.sum() > 0:)``: the line outside of PyTorch that an error came through last, if any."""
    frames: list[Any] = [each for each in traceback.extract_tb(error.__traceback__) if _is_users(each.filename)]
    return f" ({frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line})" if frames else ""


def _is_users(file: str) -> bool:
    return not file.startswith((_LIBRARY, _OWN, "<"))
