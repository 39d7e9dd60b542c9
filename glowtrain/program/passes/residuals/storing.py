"""Rewrite kernels to store a result in bf16, and to read it back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from glowtrain.loops import Accumulate, Buffer, Const, Expr, For, Let, Load, Ref, Statement, Store, cast, indices_of
from glowtrain.loops import statements as all_statements
from glowtrain.program.passes.loop_fusion.fuse_pair import Sums
from glowtrain.program.passes.partial_sums import without_stores
from glowtrain.program.passes.rematerialisation.orders import keeps_orders
from glowtrain.program.program import Instruction, Kernel

SUFFIX = ".bf16"
"""Ends the names of buffers that are saved in bf16, and of kernels that do nothing but write them."""

Change = Callable[[Kernel], Kernel | None]


def reading(instruction: Instruction, narrow: Mapping[Buffer, Buffer]) -> Instruction:
    """The instruction with loads of bf16, widened, in place of those of f32."""

    def change(expr: Expr) -> Expr | None:
        if not isinstance(expr, Load) or expr.buffer not in narrow:
            return None
        return cast(Load(narrow[expr.buffer], expr.index, expr.fill), expr.dtype)

    return instruction.rewritten(change) if not narrow.keys().isdisjoint(instruction.reads) else instruction


def rounding(buffer: Buffer, narrow: Buffer) -> Kernel:
    """A kernel of its own that stores a buffer once more, in bf16."""
    indices = indices_of([buffer.shape[axis] for axis in buffer.layout])
    at = tuple(indices[buffer.layout.index(axis)] for axis in range(buffer.type.rank))
    store = Store(narrow, at, cast(Load(buffer, at), narrow.dtype))
    return Kernel(narrow.name, (For(indices, (store,)),))


@dataclass(frozen=True)
class Storing:
    """Lets what writes ``buffer`` write ``narrow`` too, or instead of it where nobody reads the buffer itself
    (``unread``), as far as the order of ``sums`` stays."""

    buffer: Buffer
    narrow: Buffer
    unread: bool
    sums: Sums | None

    def narrowed_in(self, instruction: Instruction) -> Instruction | None:
        """The instruction, whose kernels do so; ``None`` where one of them cannot."""
        if self.buffer not in instruction.written:
            return instruction
        if instruction.kernel is not None:
            return self._kernel(instruction.kernel)
        if instruction.is_leaf:
            return None
        children = [self.narrowed_in(child) for child in instruction.children]
        found = [child for child in children if child is not None]
        return instruction.with_children(found) if len(found) == len(children) else None

    def _kernel(self, kernel: Kernel) -> Kernel | None:
        """The least that a kernel can store."""
        own = [s for s in all_statements(kernel.body) if isinstance(s, Accumulate) and s.buffer is self.buffer]
        if own:
            return None
        ways = [Kernel(kernel.name, self._body(kernel.body))]
        if self.unread and self.buffer not in kernel.reads:
            ways.insert(0, without_stores(ways[0], [self.buffer]))
        return next((way for way in ways if keeps_orders(self.sums, [kernel], [way])), None)

    def _body(self, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        return tuple(new for statement in body for new in self._statement(statement))

    def _statement(self, statement: Statement) -> list[Statement]:
        """A store with a second one behind it, of the same value."""
        if isinstance(statement, For):
            return [For(statement.indices, self._body(statement.body), statement.serial)]
        if not isinstance(statement, Store) or statement.buffer is not self.buffer:
            return [statement]
        before, value = list[Statement](), statement.value
        if not isinstance(value, (Ref, Const)):
            ref = Ref(value.dtype, self.buffer.name)
            before, value = [Let(ref, value)], ref
        narrow = Store(self.narrow, statement.index, cast(value, self.narrow.dtype))
        return [*before, Store(self.buffer, statement.index, value), narrow]
