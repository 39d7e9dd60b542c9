"""How commands describe themselves: help that a narrow terminal can show, and a plain usage line."""

from __future__ import annotations

import inspect
from typing import Any

from typer.core import TyperCommand, TyperGroup


class Command(TyperCommand):
    """A command whose flags are shown without a value, and whose usage has arguments without braces."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Arguments and options, with the one for help."""
        return without_values(super().get_params(ctx))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """``[OPTIONS] MODEL``"""
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]


class Group(TyperGroup):
    """The same of the command that has others below it."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Options, with the one for help."""
        return without_values(super().get_params(ctx))


def without_values(parameters: list[Any]) -> list[Any]:
    """The parameters; flags among them are shown with nothing behind them."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters


def paragraphs(documented: object) -> str:
    """A docstring with every paragraph in one line, so that it is broken anew for each terminal."""
    text = inspect.getdoc(documented) or ""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
