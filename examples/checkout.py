"""Lets the examples run from a bare checkout: the directory above this one holds the package ``glowtrain``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
