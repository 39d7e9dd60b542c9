"""Questions that passes ask about kernels: what defines a buffer, what a kernel costs, who must run before whom."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from glowtrain.loops import (
    FUNCTIONS,
    Apply,
    Cast,
    Const,
    Expr,
    FlatStatement,
    For,
    Index,
    Load,
    Reduce,
    Statement,
    Store,
    address,
    affine,
    evaluations,
    expression,
    flatten,
    substitute,
    walk,
)
from glowtrain.loops.functions import Cost
from glowtrain.memo import memoized
from glowtrain.program.program import Instruction, Kernel
from glowtrain.types import bf16, f32, i8, i16, i32, u8, u16

CHEAP = 8
"""Operations of an expression that is computed again rather than stored."""
PARTLESS = 64
"""Terms of a sum of floats that no backend takes in parts, so that no result has to hold parts of it."""
INTEGERS = frozenset({i8, u8, i16, u16, i32})
"""Types of which contractions with sums in i32 are made."""


@functools.lru_cache(maxsize=4096)
def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a row-major layout."""
    return tuple([math.prod(shape[axis + 1 :]) for axis in range(len(shape))])


@dataclass(frozen=True)
class Definition:
    """``buffer[...] = value`` for every element, and nothing else in the kernel."""

    store: Store
    steps: tuple[tuple[Index, int], ...]

    @property
    def value(self) -> Expr:
        return self.store.value

    @cached_property
    def nodes(self) -> tuple[Expr, ...]:
        """The value and everything below it, each shared expression once."""
        subscripts = sum(len(list(walk(subscript))) for subscript in self.store.index)
        return self.store.nodes[subscripts:]

    @property
    def loads(self) -> tuple[Load, ...]:
        return tuple([node for node in self.nodes if isinstance(node, Load)])

    @property
    def is_cheap(self) -> bool:
        """Whether the value costs no more than a few cycles per element; affine addresses are not counted."""
        nodes = [node for node in _computed(self.value) if isinstance(node, (Apply, Reduce))]
        return len(nodes) <= CHEAP and all(map(_takes_one_step, nodes))

    @property
    def widens_elementwise(self) -> bool:
        """Whether each element is one of bf16 at the same subscripts, as f32: then a load outside of the buffer is one
        outside of the other, and gives the same 0."""
        if not is_widening(self.value):
            return False
        (load,) = self.loads
        return load.index == self.store.index and load.fill is None and load.buffer.shape == self.store.buffer.shape

    @memoized
    def element(self, load: Load) -> Expr:
        """The expression of the element that is loaded."""
        if load.fill == 0 and self.widens_elementwise:
            return Cast(Load(self.loads[0].buffer, load.index, load.fill), f32)
        return substitute(self.value, dict(self.indices_at(load.index)))

    def indices_at(self, subscripts: Sequence[Expr]) -> Iterator[tuple[Expr, Expr]]:
        """What the loop indices are where the element at ``subscripts`` is written."""
        direct = dict(zip(self.store.index, subscripts, strict=True))
        flat: Expr | None = None
        for index, step in self.steps:
            if index in direct:
                yield index, direct[index]
            else:
                flat = flatten(subscripts, self.store.buffer.shape) if flat is None else flat
                yield index, expression(affine((flat // step) % index.extent))


def definition(kernel: Kernel) -> Definition | None:
    """The definition of a kernel's only result, if the kernel is one plain store over the whole buffer."""
    match kernel.body:
        case (For(indices=indices, body=(Store() as store,), serial=False),):
            steps = radix_steps(store, indices)
            return None if steps is None else Definition(store, steps)
    return None


def radix_steps(store: Store, indices: Sequence[Index]) -> tuple[tuple[Index, int], ...] | None:
    """Each loop index with its step through the buffer's row-major positions, if the store writes every element
    exactly once.

    The steps must be those of a mixed radix: 1, then the extents multiplied up.
    """
    shape = store.buffer.shape
    if store.index == tuple(indices) and shape == tuple([index.extent for index in indices]) and 0 not in shape:
        steps = zip(indices, row_major(shape), strict=True)
        return tuple([(index, step if index.extent > 1 else 1) for index, step in steps])
    form = address(store.index, row_major(shape))
    if form.constant or not form.is_linear:
        return None
    strides = {index: form.coefficient(index) for index in indices if index.extent > 1}
    step = 1
    for index, coefficient in sorted(strides.items(), key=lambda pair: pair[1]):
        if coefficient != step:
            return None
        step *= index.extent
    if step != store.buffer.type.size or len(strides) != len(form.terms):
        return None
    return tuple((index, strides.get(index, 1)) for index in indices)


def covers(store: Store, indices: Sequence[Index]) -> bool:
    """Whether a store under these loops writes every element of its buffer exactly once."""
    return radix_steps(store, indices) is not None


def is_injective(store: Store, indices: Sequence[Index]) -> bool:
    """Whether a store under these loops surely writes no element twice: each index has a subscript of its own."""
    forms = [affine(subscript) for subscript in store.index]
    alone = [form.terms[0][0] for form in forms if len(form.terms) == 1]
    return all(form.is_linear for form in forms) and {index for index in indices if index.extent > 1} <= set(alone)


def box(kernel: Kernel) -> For | None:
    """The kernel's loop, if it is a single parallel one."""
    match kernel.body:
        case (For(serial=False) as loop,):
            return loop
    return None


def is_move(expr: Expr) -> bool:
    """Only rearranges: an element of a buffer, or a constant; a bf16 as f32, too, as whatever loads one widens it."""
    return isinstance(expr, (Const, Load)) or is_widening(expr)


def is_widening(expr: Expr) -> bool:
    """Whether it is an element of bf16 as f32."""
    return isinstance(expr, Cast) and isinstance(expr.value, Load) and (expr.value.dtype, expr.dtype) == (bf16, f32)


def _computed(expr: Expr) -> Iterator[Expr]:
    """The nodes that take time: an expression without the subscripts of loads at affine addresses."""
    seen, stack = {expr}, [expr]
    while stack:
        node = stack.pop()
        yield node
        below = () if isinstance(node, Load) and is_linear(node) else node.children
        stack += [child for child in below if child not in seen]
        seen.update(below)


def _takes_one_step(node: Expr) -> bool:
    match node:
        case Apply(function="div", arguments=(_, Const()), dtype=dtype) if dtype.is_float:
            return True
        case Apply(function=function):
            return FUNCTIONS[function].cost == Cost.CHEAP
    return False


def contraction_operands(expr: Expr) -> tuple[Reduce, Load, Load] | None:
    """The parts of a sum of products of two loads, if ``expr`` is one and its operands are used more than once."""
    match expr:
        case Reduce(op="add", partials=0, body=Apply(function="mul", arguments=(a, b))):
            left, right = _uncast(a), _uncast(b)
            if (
                isinstance(left, Load)
                and isinstance(right, Load)
                and _exact(expr, left, right)
                and _reuses(expr, left, right)
            ):
                return expr, left, right
    return None


def blocked_operands(expr: Expr) -> tuple[Reduce, Load, Load] | None:
    """The same of a sum of floats that an index cuts into blocks: the sum, over that index, of the blocks' sums."""
    match expr:
        case Reduce(op="add", partials=0, indices=(_,), body=Reduce() as block) if expr.dtype.is_float:
            found = contraction_operands(block)
            return None if found is None else (expr, *found[1:])
    return None


def summed_indices(total: Reduce) -> tuple[Index, ...]:
    """The indices of a contraction's sum, and of its blocks."""
    block = total.body
    return (*total.indices, *(block.indices if isinstance(block, Reduce) else ()))


def _exact(total: Reduce, a: Load, b: Load) -> bool:
    """Whether the sum is of floats, or of the products of integers that fit its 32 bits as they are."""
    return total.dtype.is_float or (total.dtype == i32 and {a.dtype, b.dtype} <= INTEGERS)


def _reuses(total: Reduce, a: Load, b: Load) -> bool:
    """Whether an index outside of the sum moves one operand only; otherwise nothing is gained by register tiles."""
    return _moving(a).difference(total.indices) != _moving(b).difference(total.indices)


def _moving(load: Load) -> set[Expr]:
    """The indices that move a load."""
    found = set[Expr]()
    for subscript in load.index:
        if isinstance(subscript, Index):  # most are
            found.add(subscript)
        else:
            found.update(node for node in walk(subscript) if isinstance(node, Index))
    return found


def _uncast(expr: Expr) -> Expr:
    return expr.value if isinstance(expr, Cast) and isinstance(expr.value, Load) else expr


def contractions(body: Sequence[Statement]) -> Iterator[tuple[Reduce, Load, Load]]:
    """Every contraction in a body; one in blocks is one."""
    for statement in evaluations(body):
        if statement.reductions:
            yield from _contractions(statement)


@memoized
def _contractions(statement: FlatStatement) -> tuple[tuple[Reduce, Load, Load], ...]:
    blocked = list(filter(None, map(blocked_operands, statement.reductions)))
    blocks = [total.body for total, _, _ in blocked]
    whole = (contraction_operands(reduction) for reduction in statement.reductions if reduction not in blocks)
    return (*blocked, *filter(None, whole))


def is_linear(load: Load) -> bool:
    """Whether the load's address is affine in loop indices alone."""
    return is_direct(load.index) or address(load.index, load.buffer.strides).is_linear


def is_direct(subscripts: Sequence[Expr]) -> bool:
    """Whether subscripts are indices and numbers, as most are."""
    return all(map(_PLAIN.__contains__, map(type, subscripts)))


_PLAIN = frozenset({Index, Const})


def conflict(first: Instruction, second: Instruction) -> bool:
    """Whether two instructions must keep their order."""
    return not (first.written.isdisjoint(second.touched) and first.touched.isdisjoint(second.written))
