"""Settings as records: the fields of one frozen dataclass are the arguments of every function that takes them.

A function's signature, its documentation and the command line's options come from the fields, so that a setting is
added in one place: where it is a field, with its help.
"""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from glowtrain.presentation.messages import check_keywords

Fields = ParamSpec("Fields")
Record = TypeVar("Record")
Result = TypeVar("Result")
Value = TypeVar("Value")
Self = TypeVar("Self")

_SETTING = "setting"


@dataclass(frozen=True)
class Setting:
    """What is said of a field. ``help``: a sentence, which the command line shows, too; ``more``: what a caller in
    Python is told besides. A command line has an option for it unless it is not ``listed``: ``--flag``, by default
    after its name; ``metavar`` stands for its value, a number from ``least`` to ``most``. ``type`` is that of the
    option where it is not the field's, and ``parse`` makes the field's value of it. Shells complete it to
    ``choices``."""

    help: str
    more: str = ""
    metavar: str | None = None
    flag: str | None = None
    least: float | None = None
    most: float | None = None
    type: Any = None
    parse: Callable[[Any], Any] | None = None
    panel: str | None = None
    choices: Collection[str] = ()
    listed: bool = True


def setting(default: Value, help: str, more: str = "", **details: Any) -> Value:
    """A field of a record, with its default and the :class:`Setting` of these arguments."""
    return dataclasses.field(default=default, metadata={_SETTING: Setting(help, more, **details)})


def settings_of(record: Any) -> Iterator[tuple[dataclasses.Field[Any], Setting]]:
    """The fields of a record that have a :class:`Setting`, in the order of its signature."""
    for field in dataclasses.fields(record):
        if (found := field.metadata.get(_SETTING)) is not None:
            yield field, found


def values_of(record: Any) -> dict[str, Any]:
    """A record's values by name, as they are: what makes an equal one."""
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(record) if field.init}


def changed(record: Any, kind: type) -> list[str]:
    """Which fields of ``kind``, a class of the record, are not as they are where nobody says anything."""
    return [field.name for field in dataclasses.fields(kind) if getattr(record, field.name) != field.default]


def takes(record: Callable[Fields, Record]) -> Callable[[Callable[[Record], Result]], Callable[Fields, Result]]:
    """Decorator: a function that gets a record takes its fields as arguments.

    It raises ``TypeError`` for arguments that the record does not have, with the nearest name.
    """
    signature = inspect.signature(record)

    def decorate(function: Callable[[Record], Result]) -> Callable[Fields, Result]:
        @wraps(function)
        def taking(*args: Fields.args, **kwargs: Fields.kwargs) -> Result:
            _check_arguments(function.__name__, signature, args, kwargs)
            return function(record(*args, **kwargs))

        return cast(Callable[Fields, Result], _documented(taking, signature, record))

    return decorate


def method_takes(
    record: Callable[Fields, Record],
) -> Callable[[Callable[[Self, Record], Result]], Callable[Concatenate[Self, Fields], Result]]:
    """:func:`takes` for a method."""
    signature = inspect.signature(record)

    def decorate(method: Callable[[Self, Record], Result]) -> Callable[Concatenate[Self, Fields], Result]:
        @wraps(method)
        def taking(self: Self, /, *args: Fields.args, **kwargs: Fields.kwargs) -> Result:
            name = type(self).__name__ if method.__name__ == "__init__" else method.__name__
            _check_arguments(name, signature, args, kwargs)
            return method(self, record(*args, **kwargs))

        receiver = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        own = signature.replace(parameters=[receiver, *signature.parameters.values()])
        return cast(Callable[Concatenate[Self, Fields], Result], _documented(taking, own, record))

    return decorate


def _check_arguments(name: str, signature: inspect.Signature, args: Any, kwargs: Mapping[str, Any]) -> None:
    """Raise ``TypeError`` for arguments that do not fit a signature."""
    check_keywords(name, kwargs, list(signature.parameters))
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{name}(): {error}") from None


def documentation(record: Any) -> str:
    """The settings of a record, one after the other, with their help."""
    described = ((field.name, f"{each.help} {each.more}".strip()) for field, each in settings_of(record))
    return "\n\n".join(
        textwrap.fill(f"``{name}``: {text}", 116, subsequent_indent="    ", break_long_words=False)
        for name, text in described
    )


def _documented(function: Callable[..., Any], signature: inspect.Signature, record: Any) -> Any:
    """The function with its arguments in its signature and its docstring."""
    returned = inspect.signature(function, follow_wrapped=True).return_annotation
    function.__signature__ = signature.replace(return_annotation=returned)  # type: ignore[attr-defined]
    text = inspect.cleandoc(function.__doc__ or "")
    function.__doc__ = f"{text}\n\n{documentation(record)}".strip()
    return function
