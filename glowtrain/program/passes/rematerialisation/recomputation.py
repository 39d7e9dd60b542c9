"""Kernels that recompute a buffer later: of an earlier kernel, nothing but the statements that lead to its contents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from glowtrain.loops import (
    Buffer,
    Expr,
    For,
    Let,
    Load,
    Ref,
    Statement,
    Store,
    rewrite_body,
    statements,
)
from glowtrain.program.analysis.kernel_facts import box
from glowtrain.program.passes.needed import leading_to
from glowtrain.program.program import Kernel

SUFFIX = ".again"
"""Ends the names of kernels and buffers that hold what was computed before."""


@dataclass(frozen=True, eq=False)
class Recomputation:
    """Kernels that make ``buffer`` again, on the buffers of its producers: copies of them write others.

    ``sources`` are what they read of others' results; ``scratch`` what they write besides, for themselves alone.
    """

    buffer: Buffer
    kernels: tuple[Kernel, ...]

    @cached_property
    def sources(self) -> tuple[Buffer, ...]:
        read = dict.fromkeys(buffer for kernel in self.kernels for buffer in kernel.reads)
        return tuple(buffer for buffer in read if not any(buffer in kernel.written for kernel in self.kernels))

    @cached_property
    def scratch(self) -> tuple[Buffer, ...]:
        written = dict.fromkeys(buffer for kernel in self.kernels for buffer in kernel.writes)
        return tuple(buffer for buffer in written if buffer is not self.buffer)

    @property
    def name(self) -> str:
        """That of the first of the kernels."""
        return self.kernels[0].name

    def copy(self, buffers: dict[Buffer, Buffer]) -> list[Kernel]:
        """The kernels that read and write the buffers that ``buffers`` gives for their own."""
        return [_copy(kernel).with_buffers(buffers) for kernel in self.kernels]


def _copy(kernel: Kernel) -> Kernel:
    """The same kernel with other names inside, and one that says what it is."""
    lets = (statement for statement in statements(kernel.body) if isinstance(statement, Let))
    named: dict[Expr, Ref] = {let.ref: Ref(let.ref.dtype, let.ref.name) for let in lets}
    return Kernel(kernel.name + SUFFIX, _defining(named, rewrite_body(kernel.body, named.get)))


def stored_scalars(kernel: Kernel) -> dict[Buffer, tuple[Ref, Load]]:
    """The scalars of a loop that are the elements of a result, by that: they can be loaded rather than computed."""
    loop = box(kernel)
    found: dict[Buffer, tuple[Ref, Load]] = {}
    for statement in loop.body if loop is not None else ():
        if isinstance(statement, Store) and isinstance(statement.value, Ref):
            buffer, ref = statement.buffer, statement.value
            if buffer.kind == "activation" and buffer.dtype == ref.dtype and buffer not in kernel.reads:
                found[buffer] = ref, Load(buffer, statement.index)
    return found


def recomputation_kernel(kernel: Kernel, buffer: Buffer, loaded: dict[Buffer, tuple[Ref, Load]]) -> Kernel:
    """What of a kernel leads to one of its results: itself, where all does. The scalars ``loaded`` are read where they
    were stored."""
    body = kernel.body
    if loaded:
        change: dict[Expr, Expr] = dict(loaded.values())
        body = rewrite_body(body, change.get)
    own = set(kernel.written) & set(kernel.reads)
    needed = leading_to({buffer} | own, body)
    return kernel if needed is kernel.body else Kernel(kernel.name, needed)


def _defining(named: dict[Expr, Ref], body: Sequence[Statement]) -> tuple[Statement, ...]:
    """The same statements that define other names."""
    return tuple(_defines(named, statement) for statement in body)


def _defines(named: dict[Expr, Ref], statement: Statement) -> Statement:
    match statement:
        case For(indices=indices, body=body, serial=serial):
            return For(indices, _defining(named, body), serial)
        case Let(ref=ref, value=value):
            return Let(named[ref], value)
    return statement
