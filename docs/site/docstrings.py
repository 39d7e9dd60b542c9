"""Signatures and docstrings of functions that take a record's settings, without importing what they are in."""

from __future__ import annotations

import ast
from importlib import import_module
from typing import Any

from griffe import Attribute, Class, Docstring, Expr, ExprCall, Extension, Function, Module, Parameter, Parameters

TAKES = {"glowtrain.settings.takes", "glowtrain.settings.method_takes"}
SPECIAL = {"__init__", "__call__"}
"""Methods of Python's own protocols that people call by their arguments: the others are left out."""


class TakenSettings(Extension):
    """Arguments of a function under ``@takes(Record)`` are the record's fields (``glowtrain/settings.py``).

    Griffe's extension for dataclasses must come before it: from there are the arguments of records.
    """

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        """Called when all modules were read."""
        for function in _functions(pkg):
            function.public = False if function.is_special and function.name not in SPECIAL else None
            for decorator in function.decorators:
                if decorator.callable_path in TAKES and isinstance(decorator.value, ExprCall):
                    _take(function, pkg.modules_collection[decorator.value.arguments[0].canonical_path])


def _functions(scope: Module | Class) -> list[Function]:
    found: list[Function] = []
    for member in scope.members.values():
        if member.is_alias:
            continue
        if isinstance(member, Function):
            found.append(member)
        elif isinstance(member, Module | Class):
            found += _functions(member)
    return found


def _take(function: Function, record: Class) -> None:
    receiver, *fields = record.all_members["__init__"].parameters
    taken = [_with_default(field) for field in fields]
    function.parameters = Parameters(*([receiver] if isinstance(function.parent, Class) else []), *taken)
    told = [_told(field.name, record.all_members.get(field.name)) for field in fields]
    text = function.docstring.value if function.docstring else ""
    function.docstring = Docstring("\n".join([text, "", *filter(None, told)]).strip(), parent=function)


def _with_default(field: Parameter) -> Parameter:
    if _is_setting(field.default):
        field = Parameter(field.name, annotation=field.annotation, kind=field.kind, default=field.default.arguments[0])
    return field


def _told(name: str, field: Any) -> str:
    """An entry of a list, for a field that is a setting."""
    if not isinstance(field, Attribute) or not _is_setting(field.value):
        return ""
    help, *more = field.value.arguments[1:]
    texts = [help, *(each for each in more if isinstance(each, str))]
    return f"- `{name}`: " + " ".join(_text(each, field.module) for each in texts)


def _text(written: str | Expr, module: Module) -> str:
    """A string from its source; of an f-string, by the names of its module."""
    if isinstance(written, str):
        return str(ast.literal_eval(written))
    return str(eval(str(written), vars(import_module(module.path))))


def _is_setting(value: Any) -> bool:
    return isinstance(value, ExprCall) and value.canonical_path == "glowtrain.settings.setting"
