"""The verifier of the Program IR."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import combinations

from glowtrain.errors import ProgramError
from glowtrain.loops import (
    FUNCTIONS,
    Accumulate,
    Affine,
    Apply,
    Buffer,
    Cast,
    Const,
    Expr,
    For,
    Index,
    Let,
    Load,
    Reduce,
    Ref,
    Statement,
    Store,
    always_differ,
    call,
    expressions,
    flatten,
    walk,
    within,
    writes,
)
from glowtrain.program.analysis.write_coverage import covered, depends_on_data, program_stores
from glowtrain.program.interpret import functions
from glowtrain.program.interpret.storage import Memory
from glowtrain.program.interpret.vectorize import Evaluation, VectorFacts, VectorScope
from glowtrain.program.program import Instruction, Program, describe
from glowtrain.program.statement_text import expression_text, statement_text
from glowtrain.types import boolean, i64

MAX_POINTS = 1 << 22
"""Subscripts whose ranges the affine analysis does not find are computed at up to this many points."""


def verify(program: Program, stage: str = "") -> None:
    """Check every invariant of a program and raise :class:`ProgramError` with all that are broken.

    The error names the ``stage`` that made the program.

    Buffers
    - Layouts are permutations of the axes; names differ.
    - Inputs, outputs, variables and constants are listed in the program, under their kind; every other buffer is an
      activation.
    - Constants and variables hold arrays of their type.
    - Inputs and constants are never written; a variable is written if and only if the program lists it as updated.
    - Activations and outputs are written before they are read; every element of an output is written.

    Calls
    - Results are neither operands nor twice results; operands and results are row-major.

    Statements
    - Loads, stores and accumulations have as many subscripts as the buffer has axes; subscripts are i64.
    - Stores, and loads without a fill, stay inside of their buffer for all values of the indices. Loads at places
      that depend on data are the exception: whoever writes them answers for them.
    - What is stored or accumulated has the buffer's element type; accumulations and reductions combine by a known
      operation.
    - Functions are those of the loop language, with their number of operands, of one element type (a select's
      condition: bool).
    - An index is bound by exactly one enclosing For, Reduce or Repeat.
    - A ref is defined by one Let, earlier in an enclosing body, of its element type.
    - Points of a parallel loop are independent: a store depends on every index of the parallel loops around it, and a
      buffer that such a loop stores to is loaded in it, and stored to once more, only at the point's own element or at
      elements that no point stores.
    """
    problems = list(dict.fromkeys(_Verifier(program).problems()))
    if problems:
        after = f" after {stage}" if stage else ""
        raise ProgramError(f"program {program.name} is not well formed{after}:", problems)


@dataclass
class _Scope:
    """What a statement sees: bound indices, refs that are defined, parallel loops around it, outermost first."""

    kernel: str
    bound: tuple[Index, ...]
    refs: frozenset[Ref]
    parallel: tuple[Index, ...] = ()


@dataclass
class _Verifier:
    program: Program
    facts: VectorFacts = field(default_factory=VectorFacts)
    defined: Counter[Ref] = field(default_factory=Counter)

    def problems(self) -> Iterator[str]:
        yield from self._buffers()
        statements = list(self._instructions(self.program.instructions, ()))
        yield from statements
        yield from self._order()
        if not statements:  # what is written can be told only where subscripts make sense
            yield from self._outputs()

    # ---- buffers

    def _buffers(self) -> Iterator[str]:
        program = self.program
        listed = {"input": program.inputs, "output": program.outputs, "variable": program.variables}
        for kind, buffers in listed.items():
            yield from (f"{describe(b)} is listed as {kind} {name!r}" for name, b in buffers.items() if b.kind != kind)
        yield from (f"{describe(b)} is listed as a constant" for b in program.constants if b.kind != "constant")
        known = {*program.inputs.values(), *program.outputs.values(), *program.variables.values(), *program.constants}
        written = {buffer for instruction in program.instructions for buffer in instruction.writes}
        for buffer in program.buffers:
            if sorted(buffer.layout) != list(range(buffer.type.rank)):
                yield f"{describe(buffer)}: layout {list(buffer.layout)} is no permutation of its axes"
            if buffer.kind != "activation" and buffer not in known:
                yield f"{describe(buffer)} is not listed among the program's {buffer.kind}s"
            yield from self._contents(buffer)
            yield from self._written(buffer, buffer in written)
        for name, count in Counter(buffer.name for buffer in program.buffers).items():
            if count > 1:
                yield f"{count} buffers are called {name!r}"
        yield from (
            f"update of {name!r}, which is no variable" for name in program.updates if name not in program.variables
        )

    def _contents(self, buffer: Buffer) -> Iterator[str]:
        if buffer.kind == "constant" and buffer.initial is None:
            yield f"{describe(buffer)} has no contents"
        if (
            buffer.kind in ("constant", "variable")
            and buffer.initial is not None
            and not buffer.type.accepts(buffer.initial)
        ):
            yield f"{describe(buffer)} holds {buffer.initial.dtype}{list(buffer.initial.shape)}"

    def _written(self, buffer: Buffer, written: bool) -> Iterator[str]:
        if buffer.kind in ("input", "constant") and written:
            yield f"{describe(buffer)} is written"
        if buffer.kind == "variable":
            updated = any(self.program.variables.get(name) is buffer for name in self.program.updates)
            if written and not updated:
                yield f"{describe(buffer)} is written but not listed among the updates"
            if updated and not written:
                yield f"{describe(buffer)} is listed among the updates but never written"

    def _order(self) -> Iterator[str]:
        """Written before read, following the order of statements."""
        written: set[Buffer] = set()
        for leaf in self.program.leaves:
            problems = [*_early_reads(leaf.nests, written, frozenset())]
            if not leaf.nests:
                problems = [*_unwritten(leaf.reads, written)]
                written.update(leaf.writes)
            yield from (f"{leaf.kind} {leaf.name}: {problem}" for problem in problems)

    def _outputs(self) -> Iterator[str]:
        for buffer in dict.fromkeys(self.program.outputs.values()):
            mask = covered(buffer, program_stores(self.program.instructions), unknown=True)
            if not mask.all():
                yield f"{describe(buffer)}: {int((~mask).sum())} of {mask.size} elements are never written"

    # ---- statements

    def _instructions(self, instructions: Sequence[Instruction], bound: tuple[Index, ...]) -> Iterator[str]:
        for instruction in instructions:
            where = f"{instruction.kind} {instruction.name}"
            repeated = [index.name for index in instruction.indices if index in bound]
            yield from (f"{where}: index {name} is bound already" for name in repeated)
            yield from (f"{where}: {problem}" for problem in self._own(instruction, bound))
            yield from self._instructions(instruction.children, (*bound, *instruction.indices))

    def _own(self, instruction: Instruction, bound: tuple[Index, ...]) -> Iterator[str]:
        """What an instruction itself breaks, not those inside of it."""
        yield from instruction.faults()
        yield from self._body(instruction.nests, _Scope(instruction.name, bound, frozenset()))
        for buffer in instruction.row_major if instruction.is_leaf else ():
            if buffer.layout != tuple(range(buffer.type.rank)):
                yield f"{describe(buffer)} has layout {list(buffer.layout)}; it is taken row-major"

    def _body(self, body: Sequence[Statement], scope: _Scope) -> Iterator[str]:
        refs = scope.refs
        for statement in body:
            here = _Scope(scope.kernel, scope.bound, refs, scope.parallel)
            if isinstance(statement, For):
                yield from self._loop(statement, here)
                continue
            if any(i.extent == 0 for i in scope.bound):
                continue  # never runs
            for problem in self._statement(statement, here):
                yield f"{statement_text(statement, scope.bound)}: {problem}"
            if isinstance(statement, Let):
                refs |= {statement.ref}

    def _loop(self, loop: For, scope: _Scope) -> Iterator[str]:
        for index, count in Counter(loop.indices).items():
            if count > 1 or index in scope.bound:
                yield f"{statement_text(loop, scope.bound)} index {index.name} is bound already"
        bound = (*scope.bound, *(i for i in dict.fromkeys(loop.indices) if i not in scope.bound))
        own = () if loop.serial else tuple(i for i in loop.indices if i.extent > 1)
        yield from self._body(loop.body, _Scope(scope.kernel, bound, scope.refs, (*scope.parallel, *own)))
        if own and all(i.extent for i in bound):
            yield from self._independent(loop, own, bound)

    def _statement(self, statement: Statement, scope: _Scope) -> Iterator[str]:
        for expr in expressions(statement):
            yield from self._expression(expr, scope)
        match statement:
            case Let(ref=ref, value=value):
                if ref.dtype != value.dtype:
                    yield f"a value of type {value.dtype} for a ref of type {ref.dtype}"
                self.defined[ref] += 1
                if self.defined[ref] > 1:
                    yield f"{ref.name} is defined more than once"
            case Store(buffer=buffer, index=index, value=value):
                yield from _typed(buffer, value)
                yield from self._subscripts(buffer, index, scope)
                yield from self._inside(buffer, index, scope, "written")
                yield from self._own_element(statement, scope)
            case Accumulate(op=op, buffer=buffer, index=index, value=value):
                yield from _typed(buffer, value)
                yield from self._subscripts(buffer, index, scope)
                if op not in functions.UFUNCS:
                    yield f"there is no accumulation by {op!r}"

    def _own_element(self, store: Store, scope: _Scope) -> Iterator[str]:
        used = frozenset[Index]().union(*(self.facts.free(i) for i in store.index))
        missing = [i.name for i in scope.parallel if i not in used]
        if missing and not any(depends_on_data(i) for i in store.index):
            yield f"every point of the parallel loop over {', '.join(missing)} writes the same element"

    def _independent(self, loop: For, own: tuple[Index, ...], bound: tuple[Index, ...]) -> Iterator[str]:
        """No point of a parallel loop reads what another point writes."""
        stores = [s for s in _flat(loop.body) if isinstance(s, (Store, Accumulate))]
        head = statement_text(loop, [i for i in bound if i not in loop.indices])
        for one, other in combinations([s for s in stores if isinstance(s, Store)], 2):
            if one.buffer is other.buffer and not self._same_point(one.index, other, own, bound):
                yield f"{head} two stores to {one.buffer.name} may write the same element at different points"
        for statement in _flat(loop.body):
            for node in (n for e in expressions(statement) for n in walk(e) if isinstance(n, Load)):
                for store in stores:
                    if store.buffer is node.buffer and not self._same_point(store.index, node, own, bound):
                        text = expression_text(node, dict.fromkeys((*bound, *self.facts.free(node))))
                        yield f"{head} {text} may read what another point of the loop writes"

    def _same_point(
        self, index: Sequence[Expr], other: Load | Store, own: tuple[Index, ...], bound: tuple[Index, ...]
    ) -> bool:
        """Whether a store and another access of its buffer can only meet at equal values of ``own``."""
        if len(index) != len(other.index):
            return True  # reported as a wrong rank
        stored = self.facts.affine(flatten(index, other.buffer.shape))
        if stored == self.facts.affine(flatten(other.index, other.buffer.shape)):
            return not stored.is_linear or _injective(stored)
        outer = set(bound) - set(own)
        fixed: set[Index] = set()
        for a, b in zip(index, other.index, strict=True):
            free = self.facts.free(a) | self.facts.free(b)
            if always_differ(self.facts.affine(a), self.facts.affine(b), free - outer):
                return True
            if free <= outer and not depends_on_data(a) and not depends_on_data(b):
                low, high = self._range(call("ne", a, b))
                if low == high == 1:
                    return True  # never the same slice, e.g. the two slots of a state
            fixed |= _agreed(self.facts.affine(a), self.facts.affine(b), set(own), outer)
        return fixed >= set(own)

    # ---- expressions

    def _expression(self, expr: Expr, scope: _Scope) -> Iterator[str]:
        for index in self.facts.free(expr) - set(scope.bound):
            yield f"index {index.name} is used outside of its loop"
        inner: dict[Index, None] = {}
        nodes = list(walk(expr))
        for node in nodes:
            if isinstance(node, Reduce):
                inner.update(dict.fromkeys(node.indices))
        bound = (*scope.bound, *(i for i in inner if i not in scope.bound))
        for node in nodes:
            yield from self._node(node, scope, bound)

    def _node(self, node: Expr, scope: _Scope, bound: tuple[Index, ...]) -> Iterator[str]:
        match node:
            case Ref(name=name):
                if node not in scope.refs:
                    yield f"{name} is used before it is defined"
            case Load(buffer=buffer, index=index, fill=fill):
                yield from self._subscripts(buffer, index, scope)
                if fill is None and not any(i.extent == 0 for i in bound):
                    yield from self._inside(buffer, index, scope, "read", bound)
            case Apply():
                yield from _application(node)
            case Reduce():
                yield from self._reduce(node, scope)
            case Const() | Index() | Cast():
                pass
            case _:
                yield f"{type(node).__name__} is not an expression of the loop language"

    def _reduce(self, reduce: Reduce, scope: _Scope) -> Iterator[str]:
        op, indices, body, partials = reduce.op, reduce.indices, reduce.body, reduce.partials
        if op not in functions.UFUNCS:
            yield f"there is no reduction by {op!r}"
        elif op in ("and", "or") and body.dtype != boolean:
            yield f"a reduction by {op!r} of {body.dtype}; it takes bool"
        if partials and (partials < 0 or partials & (partials - 1) or len(indices) != 1):
            yield f"{partials} partial sums over {len(indices)} indices; a power of two goes with one index"
        nested = {i for node in walk(body) if isinstance(node, Reduce) for i in node.indices}
        for index, count in Counter(indices).items():
            if count > 1 or index in scope.bound or index in nested:
                yield f"index {index.name} is bound more than once"

    def _subscripts(self, buffer: Buffer, index: Sequence[Expr], scope: _Scope) -> Iterator[str]:
        if len(index) != buffer.type.rank:
            yield f"{len(index)} subscripts for {describe(buffer)}"
        for i in index:
            if i.dtype != i64:
                yield f"subscript {expression_text(i, scope.bound)} of {buffer.name} is {i.dtype}, not i64"

    def _inside(
        self, buffer: Buffer, index: Sequence[Expr], scope: _Scope, verb: str, bound: tuple[Index, ...] | None = None
    ) -> Iterator[str]:
        for axis, (i, extent) in enumerate(zip(index, buffer.shape, strict=False)):
            if i.dtype != i64 or within(self.facts.affine(i), extent):
                continue
            if verb == "read" and depends_on_data(i):
                continue
            low, high = self._range(i)
            if low < 0 or high >= extent:
                text = expression_text(i, scope.bound if bound is None else bound)
                reach = "is not provably inside" if high - low > 1 << 60 else f"reaches {low}..{high}, outside of"
                yield f"{describe(buffer)} is {verb} at {text} on axis {axis}, which {reach} [0, {extent})"

    def _range(self, expr: Expr) -> tuple[int, int]:
        """The exact range where the subscript is small enough to be computed, else that of the affine expression."""
        used = tuple(self.facts.free(expr))
        if depends_on_data(expr) or math.prod(index.extent for index in used) > MAX_POINTS:
            return self.facts.affine(expr).range()
        scope = VectorScope().opened(used, [(0, index.extent) for index in used])
        values = Evaluation(Memory(Program("", {}, {}, {}, ()), {}, {}, None), self.facts, {}, scope).value(expr)
        return (int(values.min()), int(values.max())) if values.size else (0, -1)


def _early_reads(body: Sequence[Statement], written: set[Buffer], carried: frozenset[Buffer]) -> Iterator[str]:
    """Reads of what nothing wrote before.

    A filled load of what a serial loop around it stores may see earlier trips only.
    """
    for statement in body:
        if isinstance(statement, For):
            stored = writes(statement.body) if statement.serial else ()
            yield from _early_reads(statement.body, written, carried | frozenset(stored))
            continue
        loads = [n for e in expressions(statement) for n in walk(e) if isinstance(n, Load)]
        read = [n.buffer for n in loads if n.fill is None or n.buffer not in carried]
        if isinstance(statement, Accumulate):
            read.append(statement.buffer)
        yield from _unwritten(read, written)
        if isinstance(statement, (Store, Accumulate)):
            written.add(statement.buffer)


def _unwritten(read: Iterable[Buffer], written: set[Buffer]) -> Iterator[str]:
    for buffer in dict.fromkeys(read):
        if buffer.kind in ("activation", "output") and buffer not in written and buffer.type.size:
            yield f"{describe(buffer)} is read before it is written"


def _agreed(a: Affine, b: Affine, own: AbstractSet[Index], outer: AbstractSet[Index]) -> AbstractSet[Index]:
    """The ``own`` indices that are the same wherever two subscripts are, if all ``outer`` ones are: those of rows that
    are farther apart than what further indices reach within one, and of columns of a matrix by rows."""
    mine, other = (tuple(term for term in each.terms if term[0] in own) for each in (a, b))
    if not mine or mine != other or not a.is_linear or not b.is_linear:
        return set()
    fixed, others = (Affine(each.constant, tuple(t for t in each.terms if t[0] in outer)) for each in (a, b))
    between = fixed + others.scale(-1)
    inner, inside = (Affine(0, tuple(t for t in each.terms if t[0] not in own | outer)) for each in (a, b))
    (low, high), (least, most), (first, last) = (value.range() for value in (between, inner, inside))
    reach = max(high + most - first, last - least - low, 0)
    rows = math.gcd(between.constant, *(step for each in (between, inner, inside) for _, step in each.terms))
    left, right = Affine(0, mine).range()
    if _injective(Affine(0, mine), reach) or (right - left < rows and _injective(Affine(0, mine))):
        return {atom for atom, _ in mine if isinstance(atom, Index)}
    return set()


def _injective(offset: Affine, reach: int = 0) -> bool:
    """Whether different index values give offsets that are farther apart than ``reach``: each coefficient exceeds what
    the smaller ones reach."""
    for factor, extent in sorted((abs(c), atom.extent) for atom, c in offset.terms if isinstance(atom, Index)):
        if factor <= reach:
            return False
        reach += factor * (extent - 1)
    return True


def _typed(buffer: Buffer, value: Expr) -> Iterator[str]:
    if value.dtype != buffer.dtype:
        yield f"a value of type {value.dtype} for {describe(buffer)}"


def _application(node: Apply) -> Iterator[str]:
    function, arguments = node.function, node.arguments
    if function not in FUNCTIONS:
        yield f"{function} is no function of the loop language"
        return
    record = FUNCTIONS[function]
    if len(arguments) != record.arity:
        yield f"{function} takes {record.arity} operands, not {len(arguments)}"
        return
    if function == "select" and arguments[0].dtype != boolean:
        yield f"the condition of a select is {arguments[0].dtype}, not bool"
    typed = arguments[1:] if function == "select" else arguments
    if len({argument.dtype for argument in typed}) > 1:
        types = " and ".join(str(argument.dtype) for argument in typed)
        yield f"{function} of {types}; its operands must have one type"
    if function == "bitcast":
        if node.dtype.size != typed[0].dtype.size:
            yield f"bitcast of {typed[0].dtype} to {node.dtype}; their sizes must be equal"
        return
    result = boolean if record.predicate else typed[0].dtype
    if node.dtype != result:
        yield f"{function} of {typed[0].dtype} gives {result}, not {node.dtype}"
    if not record.takes(typed[0].dtype):
        yield f"{function} is not defined for {typed[0].dtype}"


def _flat(body: Sequence[Statement]) -> Iterator[Statement]:
    for statement in body:
        if isinstance(statement, For):
            yield from _flat(statement.body)
        else:
            yield statement
