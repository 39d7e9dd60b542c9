"""Source locations of traced operators: the part of a module, and the line of its source, that one comes from."""

from __future__ import annotations

import dis
import inspect
import re
import traceback
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch

LIBRARY = str(Path(torch.__file__).parent)
_OWN = str(Path(__file__).parents[1])
_BETWEEN = _OWN, str(Path(LIBRARY) / "_dynamo")
"""What stands between a caller and this package: torch.compiler.disable does, too."""


def module_path(node: torch.fx.Node) -> str:
    """``layers.0.attention``: the innermost submodule that made a node; '' for the outermost."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [path for path, _ in stack.values()]
    return str(paths[-1]) if paths else ""


def source_line(node: torch.fx.Node) -> str:
    """``model.py:12: h = torch.fft.fft(x)``: the innermost line outside of PyTorch that made a node, if it is known."""
    found = re.findall(r'File "(.+)", line (\d+), in \S+\n\s*(.*)', node.meta.get("stack_trace") or "")
    own = [each for each in found if _is_users(each[0])] or [each for each in found if not each[0].startswith(_OWN)]
    return f"{own[-1][0]}:{own[-1][1]}: {own[-1][2]}" if own else ""


def source_location(node: torch.fx.Node, prefix: str) -> str:
    """``in layers.0 (model.py:12: h = torch.tanh(x))``: the submodule within ``prefix``, and the line."""
    path, line = module_path(node).removeprefix(prefix).removeprefix("."), source_line(node)
    return " ".join(filter(None, (f"in {path}" if path else "", f"({line})" if line else "")))


def innermost_line(error: BaseException) -> str:
    """`` (model.py:12: if x.sum() > 0:)``: the line outside of PyTorch that an error came through last, if any."""
    line = _innermost(traceback.extract_tb(error.__traceback__))
    return f" ({line})" if line else ""


def present_line() -> str:
    """``model.py:12: y = Cube.apply(x)``: the innermost line outside of PyTorch that is being run, if any."""
    return _innermost(traceback.extract_stack())


def warn_caller(message: str, category: type[Warning]) -> None:
    """Warn at the line that called into this package."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_code.co_filename.startswith(_BETWEEN):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def loaded_by_caller(names: Collection[str]) -> list[str]:
    """Those of the names that the code loads which called into this package."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(_BETWEEN):
        frame = frame.f_back
    code = dis.get_instructions(frame.f_code) if frame is not None else ()
    loaded = {each.argval for each in code if each.opname.startswith("LOAD") and isinstance(each.argval, str)}
    return [name for name in names if name in loaded]


def _innermost(frames: traceback.StackSummary) -> str:
    own: list[Any] = [each for each in frames if _is_users(each.filename)]
    return f"{own[-1].filename}:{own[-1].lineno}: {own[-1].line}" if own else ""


def _is_users(file: str) -> bool:
    return not file.startswith((LIBRARY, _OWN, "<"))
