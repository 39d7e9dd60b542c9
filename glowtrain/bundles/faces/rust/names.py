"""Names and types of elements in Rust."""

from __future__ import annotations

from glowtrain.bundles.faces.words import named, words
from glowtrain.bundles.signature import BundleTensor

KEYWORDS = words(
    """
    Self abstract as async await become box break const continue crate do dyn else enum extern false final fn for
    gen if impl in let loop macro match mod move mut override priv pub ref return self static struct super trait
    true try type typeof unsafe unsized use virtual where while yield
    """
)
LOCALS = words(
    """
    _ last loss measured model number state ALIGNMENT ARENA_BYTES FILE_BYTES VARIABLES_BYTES VERSION Err None Ok Owned
    Some batch begin checksum done float half sized text typed word
    """
)
"""Variables, functions and constants around the arguments, and what patterns take for no new name."""
CRATES = KEYWORDS | {"alloc", "core", "std", "test"} | words("Box Hyper Model Option Result String Vec")
"""What no crate is called: crates of the language, and types in a program that uses one."""


def argument(tensor: BundleTensor) -> str:
    """A name that neither means something else in Rust nor is one of ours around it."""
    return named(tensor.name, KEYWORDS | LOCALS)
