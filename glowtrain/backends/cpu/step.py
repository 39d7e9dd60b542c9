"""A planned program as one LLVM module: a function for every kernel structure, and the step that calls them.

``void @PREFIXstep(ptr table)`` takes a table of pointers: the arena, the workspaces, the pool of threads (or null),
then every buffer that lives outside of the arena. Kernels with the same text are emitted once. A kernel is a function
over a range of its tasks (see :mod:`glowtrain.backends.cpu.tasks`); how a step has them run is its :class:`Runner`'s
choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import singledispatchmethod
from itertools import pairwise

import numpy as np

from glowtrain.backends.cpu.artifact import part_of
from glowtrain.backends.cpu.events.log import STEP, CountedCall
from glowtrain.backends.cpu.events.text import append_event, append_event_text, ticks
from glowtrain.backends.cpu.kernels import Argument, KernelFunctions, KernelUnit
from glowtrain.backends.cpu.loop_nest.expressions import LlvmExpressions
from glowtrain.backends.cpu.panels import Packing
from glowtrain.backends.cpu.recognise import BufferFacts
from glowtrain.backends.cpu.tasks import Arguments, Invocation, Runner, Whole, Work
from glowtrain.backends.llvm.text import CALLER, LlvmFunction, index_type, internal
from glowtrain.backends.llvm.toolchain import assembly, module_text
from glowtrain.backends.llvm.values import POINTER, LlvmValue, pointer
from glowtrain.backends.table import ARENA, FIRST_SLOT, POOL, WORKSPACES
from glowtrain.backends.target import Target
from glowtrain.errors import CodegenError
from glowtrain.loops import Buffer, Index
from glowtrain.native import NativeFunction
from glowtrain.presentation.messages import plural
from glowtrain.program.analysis.flushed import flushed_buffers
from glowtrain.program.memory.plan import ALIGNMENT, Plan
from glowtrain.program.program import Call, Instruction, Kernel, Repeat
from glowtrain.stages import DEFAULT, Options
from glowtrain.types import TensorType, f32, f64, u8

ENTRY = "step"
"""The function that runs everything; ``Options.prefix`` stands before it."""
PART = 40
"""Instructions of a function of the step. LLVM's time for a long function grows faster than its length, and in a step
everything is used from its beginning to its end."""
SEGMENT = 4
"""Instructions of a segment at most: whoever sends what is complete has to look after its messages, too."""


@dataclass(frozen=True)
class Code:
    """The text of a module, and the plan that it carries out; ``externals`` are the buffers in the table after arena
    and workspace, ``profile`` whether a table of cycle counters is the last entry. ``workspace`` is the bytes that each
    worker needs."""

    plan: Plan
    target: Target
    entry: str
    text: str
    externals: tuple[Buffer, ...]
    workspace: int
    functions: dict[str, str] = field(default_factory=dict)
    """Function name -> the kernels that use it, for listings."""
    calls: tuple[Invocation, ...] = ()
    """The calls in the step, in order."""
    natives: tuple[NativeFunction, ...] = ()
    """Functions that operators bring along: in the table after ``externals``."""
    counted: tuple[CountedCall, ...] = ()
    """What ``calls`` note their times as, if they do."""
    panels: Mapping[Buffer, tuple[Buffer, Packing]] = field(default_factory=dict)
    """Those of ``externals`` that are variables in another encoding: the variable, and the encoding."""
    segments: tuple[tuple[str, ...], ...] = ()
    """The outputs that are complete after each segment, if the step has any."""

    def __str__(self) -> str:
        return module_text(self.text, self.target)

    @property
    def assembly(self) -> str:
        """The assembler text of the module."""
        return assembly(self.text, self.target)

    @property
    def in_numbers(self) -> str:
        """The module in a few words."""
        lines = plural(len(self.text.splitlines()), "line")
        return f"{plural(len(self.functions), 'function')}, {lines} of LLVM text"


def generate(
    plan: Plan,
    target: Target,
    options: Options = DEFAULT,
    runner: Runner | None = None,
    wrote: Callable[[str], None] | None = None,
) -> Code:
    """The module of a planned program. Raises :class:`CodegenError` naming the kernel that cannot be written.

    ``runner``: how calls are run, by default by the thread that runs the step. ``wrote`` is called with the text of
    each function as soon as it stands, in the order in which the module has them. With ``options.profile`` the times of
    calls are noted in a log (see :mod:`glowtrain.backends.cpu.events.log`), whose address is the table's last entry.
    """
    (code,) = generate_together({options.prefix: plan}, target, options, runner, wrote=wrote).values()
    return code


def generate_together(
    plans: Mapping[str, Plan],
    target: Target,
    options: Options = DEFAULT,
    runner: Runner | None = None,
    *,
    exported: bool = True,
    wrote: Callable[[str], None] | None = None,
) -> dict[str, Code]:
    """Planned programs as one module, by the prefixes of their steps; kernels that they share are there once.

    The text of the whole module is that of each; more text may stand behind it, which alone sees the steps unless they
    are ``exported``. Raises :class:`CodegenError` as :func:`generate` does.
    """
    runner, texts = runner or Whole(), _Texts(wrote)
    kernels = KernelFunctions(target, texts.add)
    steps = {prefix: _Step(plan, kernels, replace(options, prefix=prefix), runner) for prefix, plan in plans.items()}
    written = [text for step in steps.values() for text in step.text()]
    workspace = max(step.workspace for step in steps.values())
    events = [append_event_text(target)] if options.profile else []
    for text in (*events, *runner.functions(workspace), *(written if exported else map(internal, written))):
        texts.add(text)
    text = "\n".join(texts.all)
    return {prefix: step.code(text, workspace) for prefix, step in steps.items()}


class _Texts:
    """The functions of a module; whoever wants to know is told of each."""

    def __init__(self, wrote: Callable[[str], None] | None) -> None:
        self.all: list[str] = []
        self._wrote = wrote

    def add(self, text: str) -> None:
        self.all.append(text)
        if self._wrote is not None:
            self._wrote(text)


class _Step:
    """One planned program: the functions that call its kernels."""

    def __init__(self, plan: Plan, functions: KernelFunctions, options: Options, runner: Runner) -> None:
        self.plan = plan
        self.functions = functions
        self.target = functions.target
        _within_reach(plan, self.target)
        self.runner = runner
        self.profile = options.profile
        self.segmented = options.segmented
        self.entry = f"{options.prefix}{ENTRY}"
        self.calls: list[Invocation] = []
        self.counted: list[CountedCall] = []
        self.kernels: dict[tuple[Kernel, tuple[Index, ...]], KernelUnit] = {}
        self.workspace = 0
        self.lasting = _lasting(plan) if options.pack_variables else frozenset[Buffer]()
        self.flushed = flushed_buffers(plan.program)
        self.held = dict(_held(plan.program.instructions, frozenset()))
        self.packed: dict[tuple[Buffer, Packing], Buffer] = {}
        called = (leaf.native for leaf in plan.program.leaves)
        self.natives = list(dict.fromkeys(function for function in called if function is not None))
        self.externals = self._externals()
        self.slots = {buffer: number for number, buffer in enumerate(self.externals)}

    def _externals(self) -> list[Buffer]:
        """The buffers outside of the arena; constants in the forms in which they are read."""
        arguments = [each for unit in self._all_units(self.plan.program.instructions, []) for each in unit.arguments]
        for each in arguments:
            if each.packing is not None and (each.buffer, each.packing) not in self.packed:
                self.packed[each.buffer, each.packing] = packed(each.buffer, each.packing)
        plain = {each.buffer for each in arguments if each.packing is None}
        plain.update(*(leaf.touched for leaf in self.plan.program.leaves if leaf.native is not None))
        unread = {buffer for buffer, _ in self.packed} - plain
        own = [b for b in self.plan.program.buffers if b not in self.plan.offsets and b not in unread]
        return [*own, *self.packed.values()]

    def _all_units(self, instructions: Sequence[Instruction], outer: list[Index]) -> Iterator[KernelUnit]:
        for instruction in instructions:
            if instruction.kernel is not None:
                yield self._unit(instruction.kernel, outer)
            elif instruction.trips:
                yield from self._all_units(instruction.children, [*outer, *instruction.indices])

    def code(self, text: str, workspace: int) -> Code:
        """What a module of this text, whose threads need so many bytes each, is for this program."""
        functions = {name: ", ".join(dict.fromkeys(users)) for name, users in self.functions.users.items()}
        own = self.plan, self.target, self.entry, text, tuple(self.externals), workspace
        panels = {made: source for source, made in self.packed.items() if made.constant_array is None}
        calls = tuple(self.calls), tuple(self.natives), tuple(self.counted)
        return Code(*own, functions, *calls, panels, tuple(names for _, names in self._segments()))

    def text(self) -> list[str]:
        """The functions of the step; the entry is the last."""
        instructions = self.plan.program.instructions
        parts: dict[str, str] = {}
        for part in self._parts():
            f = self._begin(part_of(self.entry, len(parts)), "" if self.segmented else "internal")
            self._instructions(instructions[part], [])
            parts[f.name] = f.finish()
        f = self._begin(self.entry)
        began = self._ticks()
        for name in parts:
            f.line(f"call void @{name}(ptr %table)")
        if not parts:
            self._instructions(instructions, [])
        self._log(began, 0)
        return [*parts.values(), f.finish()]

    def _parts(self) -> list[slice]:
        """The instructions of each function below the entry."""
        count = len(self.plan.program.instructions)
        if self.segmented:
            ends = [0, *(end for end, _ in self._segments())]
            return [slice(begin, end) for begin, end in pairwise(ends)]
        return [slice(at, at + PART) for at in range(0, count, PART)] if count > PART else []

    def _segments(self) -> list[tuple[int, tuple[str, ...]]]:
        """Behind which instruction each segment ends, and the outputs that nothing touches any more there."""
        if not self.segmented:
            return []
        program = self.plan.program
        touched = {b: at for at, instruction in enumerate(program.instructions, 1) for b in instruction.touched}
        complete: dict[int, list[str]] = {len(program.instructions): []}
        for name, buffer in program.outputs.items():
            complete.setdefault(touched.get(buffer, len(program.instructions)), []).append(name)
        ends = sorted({*complete, *range(SEGMENT, len(program.instructions), SEGMENT)})
        return [(end, tuple(complete.get(end, ()))) for end in ends]

    def _begin(self, name: str, linkage: str = "") -> LlvmFunction:
        """Begin a function that takes the table and carries out instructions."""
        width = index_type(self.target)
        f = LlvmFunction(name, [("ptr", "table")], linkage=linkage, index_type=width, attributes=CALLER)
        self.step = LlvmExpressions(f, self.target, {}, ())
        self.arena, self.own, self.pool = (self._slot(number) for number in (ARENA, WORKSPACES, POOL))
        return f

    def _instructions(self, instructions: Sequence[Instruction], outer: list[Index]) -> None:
        for instruction in instructions:
            self._instruction(instruction, outer)

    @singledispatchmethod
    def _instruction(self, instruction: Instruction, outer: list[Index]) -> None:
        """Append an instruction to the step; each kind has a method."""
        raise CodegenError(f"{instruction.kind} {instruction.name} cannot be compiled")

    @_instruction.register
    def _repeat(self, repeat: Repeat, outer: list[Index]) -> None:
        if repeat.index.extent:
            with self.step.f.loop(repeat.index.extent) as loop, self.step.scopes.inner():
                self.step.bind(repeat.index, loop.index)
                self._instructions(repeat.body, [*outer, repeat.index])

    @_instruction.register
    def _kernel(self, kernel: Kernel, outer: list[Index]) -> None:
        unit = self._unit(kernel, outer)
        name = self.functions.function(unit, kernel)
        self.workspace = max(self.workspace, -(-unit.workspace // ALIGNMENT) * ALIGNMENT)
        pointers = tuple(self._pointer(argument) for argument in unit.arguments)
        indices = tuple(self.step.trip(index) for index in unit.outer)
        call = Invocation(kernel.name, name, unit.work)
        began = self._ticks()
        log = () if began is None else self._log_arguments()
        ranges = self.runner.run(self.step.f, call, Arguments(pointers, self.own, indices, self.pool, log))
        self._log(began, unit.work.tasks)
        self._add(call, outer, ranges)

    @_instruction.register
    def _native(self, call: Call, outer: list[Index]) -> None:
        if not self.target.runs_here:
            raise CodegenError(
                f"call {call.name} is of native function {call.function.name!r} of this process, which code for "
                f"{self.target.name} cannot call; give the operator a lower or a decompose instead of its native"
            )
        pointers = [self._pointer(Argument(buffer)) for buffer in (*call.inputs, *call.outputs)]
        words = [] if call.function.word is None else [f"i64 {call.function.word}"]
        function = self._slot(FIRST_SLOT + len(self.externals) + self.natives.index(call.function))
        began = self._ticks()
        self.step.f.line(f"call void {function}({', '.join([*(f'ptr {p}' for p in pointers), *words])})")
        self._log(began, 1)
        self._add(Invocation(call.name, call.function.name, Work()), outer, 0)

    def _unit(self, kernel: Kernel, outer: list[Index]) -> KernelUnit:
        """A kernel's code, written once for all kernels of one structure."""
        if (kernel, tuple(outer)) not in self.kernels:
            facts = BufferFacts(self.lasting, self.held[kernel], self.flushed)
            self.kernels[kernel, tuple(outer)] = self.functions.unit(kernel, outer, facts)
        return self.kernels[kernel, tuple(outer)]

    def _add(self, call: Invocation, outer: list[Index], ranges: int) -> None:
        self.calls.append(call)
        if self.profile:
            self.counted.append(CountedCall(call.name, math.prod(index.extent for index in outer), ranges))

    def _ticks(self) -> LlvmValue | None:
        return ticks(self.step.f, self.target) if self.profile else None

    def _log_arguments(self) -> tuple[LlvmValue, ...]:
        """The log, and the number of the call that is being written; or of the step, after the last one."""
        return self._slot(FIRST_SLOT + len(self.externals) + len(self.natives)), self.step.f.index(len(self.calls))

    def _log(self, began: LlvmValue | None, tasks: int) -> None:
        """Note what began then, with so many tasks, and ends here."""
        if began is not None:
            append_event(self.step.f, self._log_arguments(), STEP, began, *map(self.step.f.index, (0, tasks)))

    def _pointer(self, argument: Argument) -> LlvmValue:
        buffer, f = argument.buffer, self.step.f
        if argument.packing is not None:
            buffer = self.packed[buffer, argument.packing]
        if buffer in self.plan.offsets:
            offset = f.index(self.plan.offsets[buffer])
            base = f.value(f"getelementptr inbounds i8, ptr {self.arena}, {offset.typed}", POINTER)
        else:
            base = self._slot(FIRST_SLOT + self.slots[buffer])
        return f.address(base, self.step.scalar_sum(argument.offset), buffer.dtype.size)

    def _slot(self, number: int) -> LlvmValue:
        f, size = self.step.f, self.target.pointer_bits // 8
        at = f.address(pointer("%table"), number, size)
        return f.load(POINTER, at, size)


def _within_reach(plan: Plan, target: Target) -> None:
    """Raises :class:`CodegenError` for memory that indices of the target's width do not reach."""
    sizes = {"the arena": plan.arena, **{f"{b.kind} {b.name}": b.type.nbytes for b in plan.program.buffers}}
    largest, reach = max(sizes, key=sizes.__getitem__), 1 << (target.pointer_bits - 1)
    if sizes[largest] >= reach:
        raise CodegenError(
            f"{largest} has {sizes[largest]:,} bytes; code for {target.name} reaches {reach:,}: a smaller batch may do"
        )


def _lasting(plan: Plan) -> frozenset[Buffer]:
    """Variables of floats that the program only reads."""
    written = {buffer for leaf in plan.program.leaves for buffer in leaf.writes}
    return frozenset(b for b in plan.program.variables.values() if b.dtype in (f32, f64)) - written


def packed(buffer: Buffer, packing: Packing) -> Buffer:
    """A constant in another encoding, as bytes; or a variable, of whose elements nothing is known."""
    if buffer.constant_array is None:
        return Buffer(f"{buffer.name}.packed", TensorType(u8, (packing.nbytes,)), "variable")
    memory = np.ascontiguousarray(np.transpose(buffer.constant_array, buffer.layout)).reshape(-1)
    data = packing.apply(memory)
    return Buffer(f"{buffer.name}.packed", TensorType(u8, data.shape), "constant", initial=data)


def _held(instructions: Sequence[Instruction], around: frozenset[Buffer]) -> Iterator[tuple[Kernel, frozenset[Buffer]]]:
    """Each kernel, and the buffers that the innermost loop around it reads and does not change."""
    for instruction in instructions:
        if instruction.kernel is not None:
            yield instruction.kernel, around
        else:
            yield from _held(instruction.children, frozenset(instruction.reads) - frozenset(instruction.writes))
