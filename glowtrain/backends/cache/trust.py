"""Who may write to a cache folder: what lies there runs as native code, with the rights of whoever reads it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

TAG = "CACHEDIR.TAG"
_SIGNATURE = "Signature: 8a477f597d28d172789f06886806bc55\n# Code that Glowtrain compiled; see glowtrain cache.\n"
"""By which backups know that they need not keep the folder (the Cache Directory Tagging Specification)."""


def prepare(folder: Path, *, private: bool) -> str | None:
    """Make a folder for caching, for its owner alone, unless it is there. Returns why it cannot be used, if so.

    Nobody else may write to a user's ``private`` folder. Another one may belong to a group whose members trust each
    other, but not be open to everyone.
    """
    if not folder.is_absolute():
        return "there is no home directory: HOME is not set"
    try:
        _make(folder)
        return _distrust(folder.stat(), private)
    except OSError as error:
        return error.strerror or str(error)


def _make(folder: Path) -> None:
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / TAG).write_text(_SIGNATURE, encoding="utf-8")


def _distrust(found: os.stat_result, private: bool) -> str | None:
    """Why what lies in a folder must not be run, if so. Systems without users' numbers are not asked."""
    if not hasattr(os, "geteuid"):
        return None
    if private and found.st_uid != os.geteuid():
        return f"the folder belongs to another user (number {found.st_uid}), whose code would run as yours"
    others = stat.S_IWGRP | stat.S_IWOTH if private else stat.S_IWOTH
    if found.st_mode & others:
        return (
            f"other users can write to it (mode {stat.S_IMODE(found.st_mode):o}), and what lies there is run as native "
            "code: take that right away (chmod go-w), after deleting what is in it"
        )
    return None
