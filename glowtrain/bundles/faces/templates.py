"""Templates: files of other languages in the folders of this package, filled in with what a bundle has.

A template is about a bundle called ``network``, in capitals ``NETWORK``: this is replaced by the bundle's name wherever
it stands. There are two tags of Mustache: ``{{key}}`` is a value, and the lines from ``{{#key}}`` to ``{{/key}}`` are
there if the value is true. A comment that is a tag, such as ``//{{key}}``, is replaced by lines with its indentation.
What is filled in is not searched for tags, so that names from a model mean nothing here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from importlib import resources
from textwrap import indent
from typing import Any

from glowtrain.bundles.module import BundleModule
from glowtrain.bundles.weights import file_size

_SECTION = re.compile(r"^[^\w\n]*\{\{#(\w+)\}\}[^\w\n]*\n(.*?)^[^\w\n]*\{\{/\1\}\}[^\w\n]*\n", re.MULTILINE | re.DOTALL)
_TAG = re.compile(r"^( *)(?://|/\*|!|#)\{\{(\w+)\}\}(?:\*/)?\n|\{\{(\w+)\}\}|network|NETWORK", re.MULTILINE)


def filled(template: str, name: str, /, **values: object) -> str:
    """A template, by its path below this folder, for a bundle of this name. Lines are one text, or several."""

    def replaced(tag: re.Match[str]) -> str:
        margin, lines, value = tag.groups()
        if lines:
            return indent("".join(f"{line}\n" for line in _lines(values[lines])), margin)
        return str(values[value]) if value else name if tag[0].islower() else name.upper()

    return _TAG.sub(replaced, _chosen(template_text(template), values))


def filled_for(module: BundleModule, template: str, /, **values: object) -> str:
    """The text of a template, in which the sizes of a module are filled in as well."""
    sizes = {
        "version": module.version,
        "alignment": module.memory.alignment,
        "variables_bytes": module.memory.size,
        "arena_bytes": module.interface.arena,
        "variables": len(module.memory.slots),
        "file_bytes": file_size(module.memory.types) if module.memory.slots else 0,
    }
    return filled(template, module.name, **sizes, **values)


def template_text(template: str) -> str:
    """A template as it stands in its file."""
    return (resources.files(__package__) / template).read_text(encoding="utf-8")


def _lines(value: Any) -> Iterable[str]:
    return ([value] if value else []) if isinstance(value, str) else value


def _chosen(text: str, values: dict[str, object]) -> str:
    """The text without the sections whose values are false."""
    return _SECTION.sub(lambda section: _chosen(section[2], values) if values[section[1]] else "", text)


def as_json(value: Any, indent: int | None = None) -> str:
    """JSON that can stand in a script and within HTML, in ASCII."""
    return json.dumps(value, indent=indent).replace("<", "\\u003c")
