"""Split a loop whose index is only used in quotients and remainders into two loops. Shuffled channels, for one:

    for i<12: y[i] = x[3 * (i % 4) + i // 4]      =>      for p<3, q<4: y[4 * p + q] = x[3 * q + p]

All addresses are linear then, and vectors run along what lies side by side; quotients had every element loaded alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from glowtrain.loops import (
    Affine,
    Expr,
    For,
    Index,
    Let,
    Load,
    Statement,
    Store,
    address,
    affine,
    expression,
    loads,
    rewrite_body,
)
from glowtrain.loops.affine import Quotient, Remainder
from glowtrain.program.analysis.kernel_facts import box
from glowtrain.program.program import Instruction, Kernel


def split_quotients(instruction: Instruction) -> Instruction:
    """The same instruction, its elementwise kernels without such loops."""
    if instruction.children:
        return instruction.with_children([split_quotients(child) for child in instruction.children])
    return instruction if instruction.kernel is None else _split_all(instruction.kernel)


def _split_all(kernel: Kernel) -> Kernel:
    loop = box(kernel)
    if loop is None or kernel.survey.reductions or not all(isinstance(s, (Let, Store)) for s in loop.body):
        return kernel
    if _linear(loop.body):
        return kernel
    for index in loop.indices:
        divisors = set(_divisors(loop.body, index))
        loop = _split(loop, index, *divisors) if len(divisors) == 1 else loop
    return replace(kernel, body=(loop,)) if _linear(loop.body) else kernel


def _divisors(body: Sequence[Statement], index: Index) -> Iterator[int]:
    """What an index is divided by, where an address has a quotient or remainder of it alone."""
    for atom in (atom for form in _addresses(body) for atom, _ in form.terms):
        if (
            isinstance(atom, (Quotient, Remainder))
            and atom.dividend.terms == ((index, 1),)
            and not atom.dividend.constant
        ):
            yield atom.divisor


def _split(loop: For, index: Index, divisor: int) -> For:
    """The loop with two indices for one, where it goes through whole multiples of the divisor."""
    if not 1 < divisor < index.extent or index.extent % divisor:
        return loop
    quotient, rest = Index(index.extent // divisor, "p"), Index(divisor, "q")
    parts: dict[Expr, Expr] = {index: quotient * divisor + rest}
    body = tuple(_plain(statement) for statement in rewrite_body(loop.body, parts.get))
    indices = [part for each in loop.indices for part in ((quotient, rest) if each is index else (each,))]
    return For(tuple(indices), body)


def _plain(statement: Statement) -> Statement:
    """A statement whose subscripts are simple."""
    (statement,) = rewrite_body((statement,), _plain_load)
    if isinstance(statement, Store):
        return replace(statement, index=_simple(statement.index))
    return statement


def _plain_load(expr: Expr) -> Expr | None:
    return Load(expr.buffer, _simple(expr.index), expr.fill) if isinstance(expr, Load) else None


def _simple(subscripts: Sequence[Expr]) -> tuple[Expr, ...]:
    return tuple(expression(affine(subscript)) for subscript in subscripts)


def _linear(body: Sequence[Statement]) -> bool:
    """Whether every address is linear in the indices."""
    return all(form.is_linear for form in _addresses(body))


def _addresses(body: Sequence[Statement]) -> Iterator[Affine]:
    accesses: list[Load | Store] = [*loads(body), *(s for s in body if isinstance(s, Store))]
    return (address(access.index, access.buffer.strides) for access in accesses)
