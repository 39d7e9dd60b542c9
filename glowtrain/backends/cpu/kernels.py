"""Write the functions of a module's kernels: each structure once, equal texts as one function."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from glowtrain.backends.cpu.loop_nest.writer import Nests
from glowtrain.backends.cpu.panels import Packing
from glowtrain.backends.cpu.recognise import (
    BufferFacts,
    ContractionProduct,
    FusedEpilogue,
    contraction_text,
    further_operands,
    is_small,
    outer_offset,
    recognise,
)
from glowtrain.backends.cpu.tasks import PARAMS, Work
from glowtrain.backends.llvm.text import INDEX, LlvmFunction, index_type, internal
from glowtrain.backends.llvm.values import pointer
from glowtrain.backends.target import Target
from glowtrain.errors import CodegenError
from glowtrain.loops import Affine, Buffer, Index, Load, Store
from glowtrain.program.analysis.kernel_key import Key, structure
from glowtrain.program.program import Kernel

_NAME = "KERNEL"
_NOWHERE = Affine(0)


@dataclass(frozen=True)
class Argument:
    """A pointer parameter: a buffer, and an offset in elements that depends on enclosing repeats.

    ``packing``: the encoding in which a constant is wanted instead of its own.
    """

    buffer: Buffer
    offset: Affine = _NOWHERE
    packing: Packing | None = None


@dataclass(frozen=True)
class KernelUnit:
    """One kernel as text with a placeholder name, and how it is called.

    ``functions``: name and text of each of its functions, after those that it calls; the kernel is the last."""

    functions: tuple[tuple[str, str], ...]
    arguments: list[Argument]
    outer: list[Index]
    work: Work
    workspace: int = 0

    def on(self, before: Sequence[Buffer], after: Sequence[Buffer]) -> KernelUnit:
        """The same code called with other buffers."""
        if before is after:
            return self
        new = dict(zip(before, after, strict=True))
        arguments = [Argument(new[each.buffer], each.offset, each.packing) for each in self.arguments]
        return KernelUnit(self.functions, arguments, self.outer, self.work, self.workspace)


class KernelFunctions:
    """The functions of a module's kernels: each structure is written once, equal texts are one function.

    ``wrote`` is called with each function's text as soon as it stands, after those of the functions that it calls.
    """

    def __init__(self, target: Target, wrote: Callable[[str], None]) -> None:
        self.target = target
        self.users: dict[str, list[str]] = {}
        self._wrote = wrote
        self._names: dict[tuple[tuple[str, str], ...], str] = {}
        self._parts: dict[str, str] = {}
        self._units: dict[tuple[Key, tuple[tuple[bool, ...], ...]], tuple[KernelUnit, list[Buffer]]] = {}
        self._smalls: dict[Buffer, bool] = {}

    def unit(self, kernel: Kernel, outer: list[Index], facts: BufferFacts) -> KernelUnit:
        """The code of a kernel's structure, over its own buffers."""
        decisive = tuple(self._decisive(buffer, facts) for buffer in kernel.operands)
        key = structure(kernel, outer), decisive
        own = kernel.operands
        if key not in self._units:
            unit = _unit(kernel, self.target, outer, facts)
            self._units[key] = unit, own
            self._write(unit, kernel)
        unit, operands = self._units[key]
        return unit.on(operands, own)

    def _decisive(self, buffer: Buffer, facts: BufferFacts) -> tuple[bool, ...]:
        """What is known of a buffer and decides about code."""
        unchanged = buffer.kind == "constant" or buffer in facts.lasting
        return unchanged, self._small(buffer), buffer in facts.held, buffer in facts.flushed

    def _small(self, buffer: Buffer) -> bool:
        if buffer not in self._smalls:
            self._smalls[buffer] = is_small(buffer)
        return self._smalls[buffer]

    def _write(self, unit: KernelUnit, kernel: Kernel) -> None:
        """Name a unit after its first kernel, unless another one has the same texts."""
        if unit.functions in self._names:
            return
        hint = re.sub(r"\W", "_", kernel.name)[:40]
        name = self._names[unit.functions] = f"k{len(self._names)}_{hint}"
        for text in _named(unit.functions, name, self._parts):
            self._wrote(text)

    def function(self, unit: KernelUnit, kernel: Kernel) -> str:
        """The name of a unit's function, which a kernel uses."""
        name = self._names[unit.functions]
        self.users.setdefault(name, []).append(kernel.name)
        return name


def _named(functions: Sequence[tuple[str, str]], name: str, parts: dict[str, str]) -> Iterator[str]:
    """The texts of a kernel of this name; of its parts those that no kernel before had (``parts``: text to name)."""
    *own, (_, kernel) = functions
    names: dict[str, str] = {}
    for part, text in own:
        text = _renamed(text, names)
        new = part.replace(_NAME, name)
        names[part] = parts.setdefault(text.replace(f"@{part}(", "@("), new)
        if names[part] == new:
            yield text.replace(f"@{part}(", f"@{new}(")
    yield internal(_renamed(kernel, names).replace(_NAME, name))


def _renamed(text: str, names: Mapping[str, str]) -> str:
    """A function's text, with new names of those that it calls."""
    for old, new in names.items():
        text = text.replace(f"@{old}(", f"@{new}(")
    return text


def _unit(kernel: Kernel, target: Target, outer: list[Index], facts: BufferFacts) -> KernelUnit:
    """Write one kernel: by the contraction generator where it fits, as a general nest elsewhere."""
    try:
        product = recognise(kernel)
        if product is None:
            return _general(kernel, target, outer)
        return _contraction(kernel, product, target, outer, facts)
    except CodegenError as error:
        raise CodegenError(f"kernel {kernel.name}: {error}") from error


def _general(kernel: Kernel, target: Target, outer: list[Index]) -> KernelUnit:
    operands = kernel.operands
    params = [*(("ptr noalias", f"p{k}") for k in range(len(operands))), ("ptr noalias", "workspace")]
    params += [(INDEX, f"t{k}") for k in range(len(outer))]
    f = LlvmFunction(_NAME, [*params, *PARAMS], linkage="internal", index_type=index_type(target))
    pointers = {buffer: pointer(f"%p{k}") for k, buffer in enumerate(operands)}
    nests = Nests(f, target, pointers, kernel.body, {t: f.index(f"%t{k}") for k, t in enumerate(outer)})
    work = nests.write_tasks(kernel.body)
    functions = (*nests.parts().items(), (_NAME, f.finish()))
    return KernelUnit(functions, [Argument(buffer) for buffer in operands], outer, work)


def _contraction(
    kernel: Kernel, product: ContractionProduct, target: Target, outer: list[Index], facts: BufferFacts
) -> KernelUnit:
    generated = contraction_text(kernel, product, _NAME, target, outer, facts)
    inner = product.indices
    accesses: tuple[Store | Load, ...] = (product.target, product.a, product.b)
    arguments = [Argument(access.buffer, outer_offset(access, inner)) for access in accesses]
    if generated.packed is not None:
        at, packing = generated.packed
        arguments[1 + at] = Argument(arguments[1 + at].buffer, packing=packing)
    functions = tuple(generated.functions.items())
    if product.plain:
        return KernelUnit(functions, arguments, [], generated.work, generated.workspace)
    arguments += [Argument(buffer) for buffer in further_operands(kernel, product)]
    arguments += [Argument(buffer) for buffer in FusedEpilogue(kernel, product, target, outer).again]
    return KernelUnit(functions, arguments, outer, generated.work, generated.workspace)
