"""Names and types of elements in Rust."""

from __future__ import annotations

from glowtrain.bundles.faces.words import named, words
from glowtrain.bundles.signature import BundleTensor
from glowtrain.types import DType

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
ELEMENTS = {
    "f64": "f64", "f32": "f32", "f16": "u16", "bf16": "u16", "i64": "i64", "i32": "i32", "i16": "i16",
    "i8": "i8", "i4": "i8", "i2": "i8", "u64": "u64", "u32": "u32", "u16": "u16",
}  # fmt: skip
"""Rust's types of elements; those that are not here are passed as their bits, ``u8``."""


def element(dtype: DType) -> str:
    """The Rust type of an element; 16-bit floats are passed as their bits."""
    return ELEMENTS.get(dtype.name, "u8")


def argument(tensor: BundleTensor) -> str:
    """A name that neither means something else in Rust nor is one of ours around it."""
    return named(tensor.name, KEYWORDS | LOCALS)
