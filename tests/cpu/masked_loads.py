"""Do the masked loads of LLVM text come out of the code generator with their masks?

A copy of the text is compiled in which their pointers are in an address space of x86's segments: a mark that stays on
the memory operand, whatever instruction it ends up in. The vector instructions that read memory must be those of the
text itself. By hand, over the models that come with Glowtrain and those in files, forward and in training:

    python tests/cpu/masked_loads.py [FILE.onnx ...]
"""

from __future__ import annotations

import functools
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import llvmlite.binding as llvm

import glowtrain as gt
from glowtrain import models
from glowtrain.backends.cpu.backend import Cpu
from glowtrain.backends.cpu.step import generate
from glowtrain.backends.llvm import toolchain
from glowtrain.backends.target import Target, target_names
from glowtrain.compiler.walk import arrive
from glowtrain.graph import Graph, Template
from glowtrain.stages import Options

X86 = tuple(name for name in target_names() if Target.named(name).architecture == "x86")

_CALL = re.compile(
    r"^(?P<result> *%[\w.]+ = call <(?P<lanes>\d+) x \w+>) @llvm\.masked\.load\.(?P<type>v\d+[if](?P<bits>\d+))\.p0"
    r"\(ptr align (?P<align>\d+) (?P<pointer>[%@][\w.]+), (?P<mask><\d+ x i1> (?P<lane>%?).*)$"
)
_OPERAND = r"splat \(i\d+ -?\w+\)|<[^>]*>|%[\w.]+"
_ELEMENTWISE = re.compile(
    rf"^ *(?P<result>%[\w.]+) = (?P<operation>add|and|icmp ult|icmp slt) "
    rf"<(?P<lanes>\d+) x i(?P<bits>\d+)> (?P<a>{_OPERAND}), (?P<b>{_OPERAND})$"
)
_SPACES = {"gs": 256, "fs": 257}
"""Segments for masks that are known at run time and for constant ones, as LLVM's address spaces."""
_MARK = re.compile(r"(\w+) ptr (gs|fs):")
_BYTES = {"byte": 1, "word": 2, "dword": 4, "qword": 8, "xmmword": 16, "ymmword": 32, "zmmword": 64}
_MOVES = ("vmovup", "vmovap", "vmovdq", "vpmovzx", "vpmovsx", "vmaskmov", "vpmaskmov")
"""Instructions that read nothing where their mask is off and leave lanes where they are, as far as they have a mask."""


@dataclass(frozen=True)
class MaskedLoad:
    """A masked load of a text: bytes of an element, and which lanes it reads if that is known."""

    lanes: int
    size: int
    read: tuple[bool, ...] | None

    def alone(self, target: Target) -> int:
        """Bytes that may be read at once where nothing has a mask: an element, or, of elements that the target cannot
        mask and that are read one by one, as many neighbours as are read in any case."""
        if target.vector_bits == 512 or (target.masked and self.size >= 4) or self.read is None:
            return self.size
        return self.size * [*self.read, False].index(False)

    def whole(self, target: Target) -> Iterator[int]:
        """Bytes of each register's worth of lanes that are all read: these may be loaded without a mask."""
        read, piece = self.read or (), min(target.vector_bits // 8 // self.size, self.lanes)
        for start in range(0, len(read), piece):
            if all(read[start : start + piece]):
                yield piece * self.size


def lost_masks(text: str, target: Target) -> list[str]:
    """The instructions, each with its function, that do a masked load's work and may read more than its lanes, or that
    only the text itself gives, without marks. Empty if all is well. Where no instruction has a mask, loads of single
    lanes are merged and scheduled in other ways with marks and without, so only the marks are looked at."""
    text = _masking(text)
    copy, loads = marked(text)
    if not loads:
        return []
    plain, found = (_functions(_listing(each, target)) for each in (text, copy))
    return [
        f"{name}: {line}"
        for name in loads
        for line in (
            *(unmarked(plain[name], found[name]) if target.masked else ()),
            *unmasked(found[name], loads[name], target),
        )
    ]


def text_of(graph: Graph, target: Target) -> str:
    """The kernels of a graph for a target."""
    return generate(arrive(graph, Options(facts=Cpu(target).facts)), target).text


def _masking(text: str) -> str:
    """The functions with masked loads, visible so that none is left out, and declarations of the others."""
    functions = re.split(r"^(?=define )", text.replace("define internal ", "define "), flags=re.MULTILINE)
    return "\n".join(f if "@llvm.masked.load" in f or not f.startswith("define") else _declared(f) for f in functions)


def _declared(function: str) -> str:
    head = re.match(r"define (.*) #[01] \{", function)
    assert head, f"a function that is not understood: {function.splitlines()[0]}"
    return "declare " + re.sub(r" %[\w.]+", "", head[1])


def marked(text: str) -> tuple[str, dict[str, list[MaskedLoad]]]:
    """The text with marks, and the masked loads of each function that has some."""
    lines: list[str] = []
    loads: dict[str, list[MaskedLoad]] = {}
    name, constants = "", _Constants()
    for line in text.splitlines():
        call, function = _CALL.match(line), re.match(r'define [^@]*@"?([\w.$\-]+)', line)
        if function:
            name, constants = function[1], _Constants()
        constants.note(line)
        assert call or "@llvm.masked.load" not in line, f"a masked load that is not understood: {line}"
        if call:
            known = constants.mask(call["mask"].split(">", 1)[1]) if call["lane"] else _lanes_of(call["mask"])
            space, mark = _SPACES["gs" if known is None else "fs"], f"%mark{len(lines)}"
            lines.append(f"  {mark} = addrspacecast ptr {call['pointer']} to ptr addrspace({space})")
            pointer = f"ptr addrspace({space}) align {call['align']} {mark}"
            line = f"{call['result']} @llvm.masked.load.{call['type']}.p{space}({pointer}, {call['mask']}"
            loads.setdefault(name, []).append(MaskedLoad(int(call["lanes"]), int(call["bits"]) // 8, known))
        lines.append(line)
    return "\n".join(lines), loads


def _lanes_of(mask: str) -> tuple[bool, ...]:
    return tuple(each == "true" for each in re.findall(r"i1 (\w+)", mask))


class _Constants:
    """What a function computes of constants alone, lane by lane: LLVM knows these masks as if they were written so."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, ...]] = {}

    def note(self, line: str) -> None:
        """Compute a line, if it is of constants alone."""
        found = _ELEMENTWISE.match(line)
        if found is None:
            return
        a, b = (self._lanes(found[each], int(found["lanes"])) for each in "ab")
        if a is not None and b is not None:
            bits = int(found["bits"])
            of_two = {
                "add": lambda x, y: x + y,
                "and": lambda x, y: x & y,
                "icmp ult": lambda x, y: int(x % 2**bits < y % 2**bits),
                "icmp slt": lambda x, y: int(x < y),
            }[found["operation"]]
            self._known[found["result"]] = tuple(of_two(x, y) for x, y in zip(a, b, strict=True))

    def mask(self, text: str) -> tuple[bool, ...] | None:
        """The lanes of a mask's name, if they are known."""
        known = self._known.get(text.split(",")[0].strip())
        return None if known is None else tuple(map(bool, known))

    def _lanes(self, operand: str, lanes: int) -> tuple[int, ...] | None:
        if operand.startswith("%"):
            return self._known.get(operand)
        values = re.findall(r"i\d+ (-?\d+|true|false)", operand)
        numbers = tuple(int(each == "true") if each in ("true", "false") else int(each) for each in values)
        return numbers * lanes if operand.startswith("splat") else numbers if len(numbers) == lanes else None


@functools.cache
def _machine(target: Target) -> llvm.TargetMachine:
    """The code generator that compiles for a target, with a listing that names the size of each memory operand."""
    llvm.set_option("", "-x86-asm-syntax=intel")
    try:
        return toolchain.machine(target)
    finally:
        llvm.set_option("", "-x86-asm-syntax=att")


def _listing(text: str, target: Target) -> str:
    machine = _machine(target)
    return machine.emit_assembly(llvm.parse_assembly(toolchain.module_text(text, target), llvm.create_context()))


def _functions(listing: str) -> dict[str, list[str]]:
    """The lines of each function; Mach-O puts an underscore before its name."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in listing.splitlines():
        label = re.match(r'^"?([\w.$\-]+)"?:', line)
        if label and not label[1].startswith(".L"):
            lines = found.setdefault(label[1].removeprefix("_"), [])
        else:
            lines.append(line.strip())
    return found


def unmarked(plain: Sequence[str], found: Sequence[str]) -> Iterator[str]:
    """The instructions of the first listing that the second, with marks, lacks."""
    for line, number in (_reading(plain) - _reading(found)).items():
        yield f"{line} ({number} more without marks)"


def _reading(lines: Sequence[str]) -> Counter[str]:
    """The instructions that read vectors from memory which is no constant and no spill, without addresses and the
    numbers of registers."""
    plain = (_MARK.sub(r"\1 ptr ", line) for line in lines)
    reading = (line for line in plain if re.search(r"mm\d+.*[xyz]mmword ptr \[(?!rip|rsp)", line))
    return Counter(re.sub(r"\[.*?\]", "[]", re.sub(r"(mm|k)\d+", r"\1", line)) for line in reading)


def unmasked(found: Sequence[str], loads: Sequence[MaskedLoad], target: Target) -> Iterator[str]:
    """The instructions of a listing with marks that may read what the masked loads do not."""
    alone = max(load.alone(target) for load in loads)
    whole = Counter(size for load in loads for size in load.whole(target))
    for line in found:
        mark = _MARK.search(line)
        if mark is None:
            continue
        size, masked = _BYTES[mark[1]], "{k" in line or "maskmov" in line
        if size > alone and not (masked and line.startswith(_MOVES)):
            if mark[2] == "gs" or not whole[size]:
                yield line
            whole[size] -= 1


def graphs_of(model: Graph | Template, **dims: int) -> Iterator[tuple[str, Graph]]:
    """A model that classifies, forward and as a training step."""
    graph = model.bind(dims) if isinstance(model, Template) else model
    yield "forward", graph
    yield "training", gt.Trainer(graph, gt.losses.softmax_cross_entropy("labels"), gt.optim.Adam(lr=1e-2)).graph


def main(files: Sequence[str]) -> int:
    """Check all models for all x86 targets; the exit status."""
    lost = 0
    named = [(name, models.build(name)) for name in models.MODELS] + [(file, gt.load(file)) for file in files]
    for name, model in named:
        for kind, graph in graphs_of(model, batch=5):
            for target in map(Target.named, X86):
                text = text_of(graph, target)
                lines = lost_masks(text, target)
                print(f"{name} {kind} {target.name}: {text.count('@llvm.masked.load.')} loads, {len(lines)} lost")
                print("".join(f"    {line}\n" for line in lines), end="", flush=True)
                lost += len(lines)
    return int(lost > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
