"""Compile native code of Glowtrain's own that steps need in this process, or take it from a cache."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from threading import Thread

import numpy as np

from glowtrain.backends.cache.folder import Cache
from glowtrain.backends.cache.key import sources
from glowtrain.backends.container import pack, unpack
from glowtrain.backends.llvm import pieces, toolchain
from glowtrain.backends.target import Target
from glowtrain.errors import ArtifactError, CodegenError
from glowtrain.forks import renew_in_children


def loaded(name: str, text: str, exports: Sequence[str], cache: Cache | None) -> toolchain.Library:
    """The functions of a text for this processor, which the cache may have under the name."""
    return toolchain.load([_object(name, text, cache)], exports)


def begin(name: str, text: str, cache: Cache | None) -> None:
    """Begin to compile a text, on a thread beside, for who will soon ask for its functions; unless the cache has it."""
    if text in _begun.texts or (cache is not None and _kept(name, text, cache) is not None):
        return
    renew_in_children(_begun)
    making = _Making(text)
    with suppress(RuntimeError):  # no more threads: who asks compiles it
        making.start()
        _begun.texts[text] = making


class _Making(Thread):
    """A thread on which a text becomes an object. It begins with what other threads have to wait for, LLVM's reading,
    and lets them go on while LLVM writes."""

    def __init__(self, text: str) -> None:
        super().__init__(name="glowtrain routines")
        self._text = text
        self._made: bytes | None = None

    def run(self) -> None:
        with suppress(CodegenError):  # it is raised for who asks
            self._made = _compiled(self._text)

    def object(self) -> bytes | None:
        """The object, when the thread has ended; None where none was made."""
        self.join()
        return self._made


class _Begun:
    """The texts that threads are at, or were, of which nobody has asked for the object."""

    def __init__(self) -> None:
        self.texts: dict[str, _Making] = {}

    def renew(self) -> None:
        """None: a child of fork has none of the threads."""
        self.texts.clear()


_begun = _Begun()


def _object(name: str, text: str, cache: Cache | None) -> bytes:
    if cache is None:
        return _made(text)
    if (found := _kept(name, text, cache)) is not None:
        return found
    made = _made(text)
    cache.put(_key(name, text), pack(name, {"object": np.frombuffer(made, np.uint8)}, {}))
    return made


def _made(text: str) -> bytes:
    begun = _begun.texts.pop(text, None)
    return (begun and begun.object()) or _compiled(text)


def _compiled(text: str) -> bytes:
    target = Target.host()
    return pieces.object_of(toolchain.parsed(text, target), toolchain.machine(target), target)


def _kept(name: str, text: str, cache: Cache) -> bytes | None:
    """The object that a cache has; None where it has none, or a damaged one: it is made again, and written over."""
    found = cache.get(_key(name, text))
    if found is not None:
        with suppress(ArtifactError):
            return unpack(name, found)[0]["object"].tobytes()
    return None


def _key(name: str, text: str) -> str:
    parts = name, toolchain.version(), Target.host().fingerprint, sources(), text
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
