"""``glowtrain verify``: a model up the ladder of ever more compiled forms."""

from __future__ import annotations

from typing import Annotated

import typer

from glowtrain.cli import options
from glowtrain.cli.console import command
