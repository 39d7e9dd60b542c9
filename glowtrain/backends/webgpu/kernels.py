"""Kernels as WGSL modules: each structure once, a dispatch for each of its nests.

A point of a nest's parallel loops is a task, and an invocation runs one. What must keep an order (serial loops, what
accumulates into shared elements, statements outside of loops) is run by one invocation, as far as it does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import prod

from glowtrain.backends.cpu.loop_nest.collapse import collapse
from glowtrain.backends.cpu.order.analysis import Free
from glowtrain.backends.cpu.order.nest import reference_lane
from glowtrain.backends.cpu.recognise import recognise
from glowtrain.backends.webgpu.elementary import elementary_text
from glowtrain.backends.webgpu.memory import KernelMemory, memory_of
from glowtrain.backends.webgpu.nest import NestWriter
from glowtrain.backends.webgpu.sums import loops_of_contraction
from glowtrain.errors import CodegenError
from glowtrain.loops import (
    Accumulate,
    Buffer,
    Expr,
    For,
    Index,
    Let,
    Statement,
    affine,
    loads,
    statements,
    writes,
)
from glowtrain.program.analysis.kernel_key import Key, structure
from glowtrain.program.program import Kernel

GROUP = 64
"""Invocations of a workgroup."""
HELPER = re.compile(r"\b(?:f64|f32|f16|bf16|i32|u32|i64|u64|u96)_\w+")


@dataclass(frozen=True)
class WgslModule:
    """A module with one entry point, of so many tasks for each of its invocations' groups."""

    entry: str
    text: str
    tasks: int
    group: int


@dataclass(frozen=True)
class WgslUnit:
    """A kernel's modules, which run one after the other, and the operands whose offsets all of them are given, after
    the outer indices."""

    modules: tuple[WgslModule, ...]
    operands: tuple[Buffer, ...]


class KernelModules:
    """The modules of a program's kernels: each structure is written once."""

    def __init__(self) -> None:
        self.modules: dict[WgslModule, int] = {}
        """All modules, with their numbers."""
        self._units: dict[tuple[Key, tuple[str, ...]], WgslUnit] = {}

    def unit(self, kernel: Kernel, outer: Sequence[Index]) -> WgslUnit:
        """The modules of a kernel inside of repeats over ``outer``, over its own buffers. Raises :class:`CodegenError`
        naming the kernel that cannot be written."""
        operands = tuple(kernel.operands)
        key = structure(kernel, outer), tuple(map(memory_of, operands))
        unit = self._units.get(key)
        if unit is None:
            name = f"k{len(self._units)}_{re.sub(r'[^0-9A-Za-z]+', '_', kernel.name)[:40].strip('_')}"
            try:
                modules = tuple(_modules(kernel, operands, outer, name))
            except CodegenError as error:
                raise CodegenError(f"kernel {kernel.name}: {error}") from error
            unit = self._units[key] = WgslUnit(modules, operands)
            for module in modules:
                self.modules.setdefault(module, len(self.modules))
        return WgslUnit(unit.modules, operands)


@dataclass(frozen=True)
class DispatchPart:
    """Statements that one dispatch runs: at every point of a box of parallel loops."""

    indices: tuple[Index, ...]
    body: tuple[Statement, ...]
    lane: Index | None = None


def _modules(kernel: Kernel, operands: Sequence[Buffer], outer: Sequence[Index], name: str) -> Iterator[WgslModule]:
    memory = KernelMemory.of(operands, kernel.writes)
    product = recognise(kernel)
    sums = {} if product is None else loops_of_contraction(product)
    body = kernel.body if product is None else (product.loop,)
    free = Free(lets={s.ref: s.value for s in statements(body) if isinstance(s, Let)})
    for number, part in enumerate(parts(body, free)):
        writer = NestWriter(memory, writes(body), _bound(outer), free, sums)
        yield _module(f"{name}_{number}" if number else name, part, writer, len(outer))


def _bound(outer: Sequence[Index]) -> dict[Index, str]:
    return {index: f"t{k}" for k, index in enumerate(outer)}


def _module(name: str, part: DispatchPart, writer: NestWriter, outer: int) -> WgslModule:
    tasks = prod(index.extent for index in part.indices)
    group = GROUP if tasks > 1 else 1
    writer.lane = part.lane
    for index, text in _subscripts(part.indices):
        local = writer.let(text, "i32")
        writer.set(index, local)
    writer.statements(part.body)
    bases = writer.memory.bases.values()
    names = [*(f"t{k}" for k in range(outer)), *bases]
    arguments = [f"  let {each} = {_argument(at, each)};" for at, each in enumerate(names)]
    head = [
        *writer.memory.declarations(),
        f"@group(1) @binding(0) var<uniform> arguments: array<vec4<u32>, {-(-len(names) // 4)}>;",
        "",
        f"@compute @workgroup_size({group})",
        f"fn {name}(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {{",
        f"  let task = i32(id.y * groups.x * {group}u + id.x);",
        f"  if (task >= {tasks}) {{ return; }}",
    ]
    text = "\n".join([*head, *arguments, *writer.lines, "}"])
    return WgslModule(name, "\n\n".join([text, *helpers(text)]) + "\n", tasks, group)


def _argument(at: int, name: str) -> str:
    """A number that the dispatch is given; those of repeats are signed, as indices are."""
    text = f"arguments[{at // 4}].{'xyzw'[at % 4]}"
    return f"i32({text})" if name.startswith("t") else text


def _subscripts(indices: Sequence[Index]) -> Iterator[tuple[Index, str]]:
    """What each index is for a task: the last one runs fastest."""
    step = prod(index.extent for index in indices)
    for at, index in enumerate(indices):
        step //= index.extent
        text = "task" if step == 1 else f"(task / {step})"
        yield index, f"{text} % {index.extent}" if at and index.extent > 1 else "0" if index.extent == 1 else text


# ---- what one dispatch runs


def parts(body: Sequence[Statement], free: Free) -> list[DispatchPart]:
    """A kernel's statements in parts that run one after the other: loops are parts of their own, if what they read of
    names stands in them or can be computed again; else everything is one part."""
    if len(body) == 1:
        return [_parallel(body[0], free)] if _has_points(body[0]) else []
    found: list[DispatchPart] = []
    lets: list[Statement] = []
    written: set[Buffer] = set()
    for statement in body:
        names = [let for let in lets if isinstance(let, Let) and _mentions(statement, let.ref, free)]
        if any(load.buffer in written for load in loads(names)):
            return [DispatchPart((), tuple(body))]
        if isinstance(statement, Let):
            lets.append(statement)
        elif _has_points(statement):
            part = _parallel(statement, free)
            found.append(DispatchPart(part.indices, (*names, *part.body), part.lane))
            written.update(writes([statement]))
    return found


def _has_points(statement: Statement) -> bool:
    return not isinstance(statement, For) or all(index.extent for index in statement.indices)


def _mentions(statement: Statement, ref: Expr, free: Free) -> bool:
    return any(
        ref in free.of(expr) for each in statements([statement]) if not isinstance(each, For) for expr in each.operands
    )


def _parallel(statement: Statement, free: Free) -> DispatchPart:
    """A statement with the loops around it that may run in any order as a part's."""
    if not isinstance(statement, For) or statement.serial:
        return DispatchPart((), (statement,))
    loop = statement if any(isinstance(each, For) for each in statement.body) else collapse(statement, free)
    lane = None if any(isinstance(each, For) for each in loop.body) else reference_lane(loop, free)
    parallel = tuple(index for index in loop.indices if _is_parallel(index, loop))
    rest = tuple(index for index in loop.indices if index not in parallel)
    return DispatchPart(parallel, (For(rest, loop.body),) if rest else loop.body, lane)


def _is_parallel(index: Index, loop: For) -> bool:
    """Whether points that differ in an index accumulate into different elements, if any: a subscript tells it."""
    targets = [each for each in statements(loop.body) if isinstance(each, Accumulate)]
    read = {load.buffer for load in loads(loop.body)}
    return all(
        each.buffer not in read and any(_tells(subscript, index) for subscript in each.index) for each in targets
    )


def _tells(subscript: Expr, index: Index) -> bool:
    return [atom for atom, _ in affine(subscript).terms] == [index]


# ---- functions that modules call


@cache
def _prelude() -> Mapping[str, str]:
    """The functions of the prelude, by name."""
    text = files("glowtrain.backends.webgpu").joinpath("prelude.wgsl").read_text(encoding="utf-8")
    found = {}
    for block in text.split("\n\n"):
        name = re.search(r"^fn (\w+)", block, re.MULTILINE)
        if name is not None:
            found[name[1]] = block.strip()
    return found


def helpers(text: str) -> list[str]:
    """The functions that a text calls, and those that they call."""
    found: dict[str, str] = {}
    stack = sorted(set(HELPER.findall(text)), reverse=True)
    while stack:
        name = stack.pop()
        if name not in found:
            found[name] = _prelude().get(name) or elementary_text(name.partition("_")[2])
            stack += sorted(set(HELPER.findall(found[name])), reverse=True)
    return list(found.values())
