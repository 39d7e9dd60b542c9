"""Native code of Glowtrain's own that compiled steps need in this process: compiled, or had from a cache."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from glowtrain.backends.cache.folder import Cache
from glowtrain.backends.cache.key import sources
from glowtrain.backends.container import pack, unpack
from glowtrain.backends.llvm import toolchain
from glowtrain.backends.llvm.target import Target
from glowtrain.errors import ArtifactError


def loaded(name: str, text: str, exports: Sequence[str], cache: Cache | None) -> toolchain.Library:
    """The functions of a text for this processor, which the cache may have under the name."""
    return toolchain.load([_object(name, text, cache)], exports)


def _object(name: str, text: str, cache: Cache | None) -> bytes:
    target = Target.host()
    if cache is None:
        return toolchain.compile_text(text, target)
    parts = name, toolchain.version(), target.fingerprint, sources(), text
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    if (found := cache.get(key)) is not None:
        with suppress(ArtifactError):  # damaged: it is made again, and written over
            return unpack(name, found)[0]["object"].tobytes()
    made = toolchain.compile_text(text, target)
    cache.put(key, pack(name, {"object": np.frombuffer(made, np.uint8)}, {}))
    return made
