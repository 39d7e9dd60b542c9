"""The files of this folder in JavaScript, HTML and CSS, with what a bundle fills in."""

from __future__ import annotations

import json
import re
from importlib import resources
from typing import Any


def text_of(file: str, **values: str) -> str:
    """The text of a file, with a value in place of each ``{{name}}``."""
    text = (resources.files(__package__) / file).read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], text)


def as_json(value: Any, indent: int | None = None) -> str:
    """JSON that can stand in a script and within HTML, in ASCII."""
    return json.dumps(value, indent=indent).replace("<", "\\u003c")
