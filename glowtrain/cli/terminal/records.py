"""Records as options: a parameter of a command that is a record stands for the options of its fields.

A record of the command line is a frozen dataclass whose fields are settings (:mod:`glowtrain.settings`), or annotated
with typer's options. Of a record of Glowtrain's own, ``Annotated[Given, From(TrainingSettings)]`` takes the settings
that are listed for the command line, and the command gets their values by name.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from glowtrain.cli.arguments.completion import names
from glowtrain.settings import Setting, settings_of

Given = Mapping[str, Any]
"""Values of settings by name."""


@dataclass(frozen=True)
class From:
    """The settings of a record: all that are listed, or ``only`` these, or all ``but`` those."""

    record: type
    only: tuple[str, ...] = ()
    but: tuple[str, ...] = ()

    def fields(self) -> Iterator[tuple[dataclasses.Field[Any], Setting]]:
        """The fields that have options, and what is said of them."""
        for field, each in settings_of(self.record):
            if each.listed and field.name not in self.but and (not self.only or field.name in self.only):
                yield field, each

    def options(self) -> Iterator[inspect.Parameter]:
        """Parameters of a command for them."""
        hints = get_type_hints(self.record)
        for field, each in self.fields():
            yield _of_setting(field, each, hints[field.name])

    def record_of(self, values: Mapping[str, Any]) -> Given:
        """The settings by name, from the options' values."""
        found = {field.name: (each, values[field.name]) for field, each in self.fields()}
        return {name: each.parse(value) if each.parse else value for name, (each, value) in found.items()}


def _of_setting(field: dataclasses.Field[Any], each: Setting, hint: Any) -> inspect.Parameter:
    kind = each.type or hint
    default = [] if get_origin(kind) is list else field.default
    if kind is str and default is not None:
        default = str(default)
    option = typer.Option(
        each.flag or f"--{field.name.replace('_', '-')}", help=each.help, metavar=each.metavar, min=each.least,
        max=each.most, rich_help_panel=each.panel, autocompletion=names(each.choices) if each.choices else None,
    )  # fmt: skip
    return _parameter(field.name, Annotated[kind, option], default)


def _parameter(name: str, kind: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


@dataclass(frozen=True)
class _Record:
    """A record whose fields are settings, or annotated with options."""

    kind: type

    def options(self) -> Iterator[inspect.Parameter]:
        hints = get_type_hints(self.kind, include_extras=True)
        settings = {field.name: each for field, each in settings_of(self.kind)}
        for field in dataclasses.fields(self.kind):
            if field.name in settings:
                yield _of_setting(field, settings[field.name], hints[field.name])
                continue
            default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
            if field.default_factory is not dataclasses.MISSING:
                default = field.default_factory()
            yield _parameter(field.name, hints[field.name], default)

    def record_of(self, values: Mapping[str, Any]) -> Any:
        return self.kind(**{field.name: values[field.name] for field in dataclasses.fields(self.kind)})


def _expander(kind: Any) -> From | _Record | None:
    """What makes options of a parameter of this type; None for a parameter that is one itself."""
    found = next((each for each in get_args(kind)[1:] if isinstance(each, From)), None)
    if found is not None:
        return found
    return _Record(kind) if isinstance(kind, type) and dataclasses.is_dataclass(kind) else None


@dataclass(frozen=True)
class Expanded:
    """The options of a command's records in place of these, and the arguments of a call from the options' values."""

    signature: inspect.Signature
    records: Mapping[str, From | _Record]

    def arguments(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """What the command is called with."""
        spread = {option.name for record in self.records.values() for option in record.options()}
        own = {name: value for name, value in values.items() if name not in spread}
        return own | {name: record.record_of(values) for name, record in self.records.items()}


def expanded(command: Callable[..., Any]) -> Expanded:
    """A command's options."""
    signature, hints = inspect.signature(command), get_type_hints(command, include_extras=True)
    records: dict[str, From | _Record] = {}
    options: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        if (record := _expander(hints[name])) is not None:
            records[name] = record
            options.extend(record.options())
        else:
            options.append(_parameter(name, hints[name], parameter.default))
    return Expanded(inspect.Signature(options), records)
