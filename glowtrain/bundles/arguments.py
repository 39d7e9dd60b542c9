"""Check the arguments of bundles before they are used. Each check raises :class:`BundleError`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from glowtrain.backends.target import Target
from glowtrain.errors import BundleError
from glowtrain.presentation.messages import kind_of

SEEDS = 1 << 63


def folder_of(path: object) -> Path:
    """A folder."""
    if not isinstance(path, (str, os.PathLike)) or not isinstance(os.fspath(path), str):
        raise BundleError(f"the folder of a bundle must be a path, not {kind_of(path)}")
    if not os.fspath(path):
        raise BundleError("the folder of a bundle has no name; . is the present one")
    if "\0" in os.fspath(path):
        raise BundleError(f"{os.fspath(path)!r} is no path: it has a null character")
    return Path(path)


def target_of(target: object) -> Target:
    """A processor, given by its name or as it is. Raises :class:`CodegenError` for an unknown name, and
    :class:`BundleError` for one that is named for what bundles do not use."""
    found = Target.named(target) if isinstance(target, str) else target
    if not isinstance(found, Target):
        raise BundleError(f"target must be the name of one, such as 'host' or 'cortex-m4', not {kind_of(target)}")
    if found.unasked is not found and found != Target.host():
        raise BundleError(
            f"target {found.name} has registers that hold matrices (AMX), which a program must ask Linux for and a "
            "bundle does not; use avx512vnni, which computes the same bits"
        )
    return found


def dims_of(dims: object) -> Mapping[str, int]:
    """Extents by the names of dimensions; their values are looked at where they are bound."""
    if dims is not None and not isinstance(dims, Mapping):
        raise BundleError(f"dims must be a mapping, such as {{'batch': 8}}, not {kind_of(dims)}")
    return dims or {}


def faces_of(faces: object) -> tuple[str, ...]:
    """Names of languages: one, or several."""
    if isinstance(faces, str):
        return (faces,)
    if not isinstance(faces, Iterable):
        raise BundleError(f"faces must be names of languages, such as ['rust'], not {kind_of(faces)}")
    return tuple(faces)


def split_command(command: object, option: str) -> list[str]:
    """The words of a command, split as a shell does. ``option`` is where it was given."""
    if not isinstance(command, str):
        raise BundleError(f"{option} must be a command as in a shell, not {kind_of(command)}")
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise BundleError(f"{option} {command!r} is no command: {error}") from error
    if not words:
        raise BundleError(f"{option} {command!r} names no command")
    return words


def check_name(name: object) -> None:
    """A name for symbols and files, or None."""
    if name is not None and not isinstance(name, str):
        raise BundleError(f"name must be text, not {kind_of(name)}")


def check_seed(seed: object) -> None:
    """A number that fits into 64 bits."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not -SEEDS <= seed < SEEDS:
        raise BundleError(f"seed must be a whole number of 64 bits, not {kind_of(seed)}")
