"""Write the functions that pack an operand in panels (:mod:`glowtrain.backends.cpu.panels`)."""

from __future__ import annotations

from glowtrain.backends.cpu.contraction.dot import Dot
from glowtrain.backends.cpu.panels import Packing
from glowtrain.backends.llvm.formats import MEMORY, SIZE
from glowtrain.backends.llvm.text import LlvmFunction
from glowtrain.backends.llvm.values import LlvmType, LlvmValue, in_all_lanes, pointer, vector, zero


class PackingText:
    """Writes the function that packs when the code runs: ``void @name(ptr target, ptr source)``.

    Every loop must be one loop of the source.
    """

    def __init__(self, packing: Packing, name: str, index_type: LlvmType) -> None:
        self.packing, self.width, self.group = packing, packing.width, packing.group
        self.element = MEMORY[packing.source]
        params = [("ptr noalias", "target"), ("ptr noalias", "source")]
        self.f = LlvmFunction(name, params, linkage="internal", index_type=index_type)

    def text(self) -> str:
        """The whole function."""
        self._outer(0, self._at(pointer("%source"), self.packing.offset), pointer("%target"))
        return self.f.finish()

    def _at(self, address: LlvmValue, elements: int) -> LlvmValue:
        return self.f.shift(address, elements, self.element)

    def _outer(self, depth: int, source: LlvmValue, target: LlvmValue) -> None:
        if depth == len(self.packing.outer):
            self._panels(source, target)
            return
        ((count, step),) = self.packing.outer[depth]
        with self.f.loop(count, [source, target], hint="outer") as loop:
            self._outer(depth + 1, *loop.carried)
            loop.next = [
                self._at(loop.carried[0], step),
                self._at(loop.carried[1], self.packing.outer_strides[depth]),
            ]

    def _panels(self, source: LlvmValue, target: LlvmValue) -> None:
        ((columns, step),) = self.packing.columns
        whole, rest = divmod(columns, self.width)
        far, panel = self.width * step, self.packing.panel
        if whole:
            with self.f.loop(whole, [source, target], hint="panel") as loop:
                self._panel(loop.carried[0], loop.carried[1], self.width)
                loop.next = [self._at(loop.carried[0], far), self._at(loop.carried[1], panel)]
        if rest:
            self._panel(self._at(source, whole * far), self._at(target, whole * panel), rest)

    def _panel(self, source: LlvmValue, target: LlvmValue, lanes: int) -> None:
        """The words of one panel, and before them what its sums begin with."""
        body = self._at(target, self.packing.header)
        total = self._sums(0, source, body, lanes, zero(vector("i32", self.width)))
        if self.packing.correction:
            self.f.store(self.f.op("sub", zero(total.type), total), target, 4)

    def _sums(self, depth: int, source: LlvmValue, target: LlvmValue, lanes: int, total: LlvmValue) -> LlvmValue:
        ((count, step),) = self.packing.sums[depth]
        if depth < len(self.packing.sums) - 1:
            stride = self.packing.sum_strides[depth]
            with self.f.loop(count, [source, target, total], hint="sum") as loop:
                after = self._sums(depth + 1, loop.carried[0], loop.carried[1], lanes, loop.carried[2])
                loop.next = [self._at(loop.carried[0], step), self._at(loop.carried[1], stride), after]
            return loop.results[2]
        first, again = self.packing.regular, self.packing.zeros
        total = self._words(source, target, lanes, first, total)
        source, target = self._at(source, first * step), self._at(target, first * self.width)
        for at in range(0, again, self.group):
            zeros = min(self.group, again - at)
            some = min(self.group - zeros, count - first)
            here = self._at(target, at * self.width)
            total = self._word(source, here, lanes, some, total, zeros)
        done = min(-again % self.group, count - first)
        target = self._at(target, (again + -again % self.group) * self.width)
        return self._words(self._at(source, done * step), target, lanes, count - first - done, total)

    def _words(self, source: LlvmValue, target: LlvmValue, lanes: int, count: int, total: LlvmValue) -> LlvmValue:
        """Words of so many elements along the innermost sum."""
        ((_, step),) = self.packing.sums[-1]
        whole, rest = divmod(count, self.group)
        if whole:
            with self.f.loop(whole, [source, target, total], hint="word") as loop:
                after = self._word(loop.carried[0], loop.carried[1], lanes, self.group, loop.carried[2])
                moved = self._at(loop.carried[1], self.group * self.width)
                loop.next = [self._at(loop.carried[0], self.group * step), moved, after]
            total = loop.results[2]
        if rest:
            source = self._at(source, whole * self.group * step)
            total = self._word(source, self._at(target, whole * self.group * self.width), lanes, rest, total)
        return total

    def _word(
        self, source: LlvmValue, target: LlvmValue, lanes: int, count: int, total: LlvmValue, zeros: int = 0
    ) -> LlvmValue:
        """The words of all lanes at one place of the sum, of which ``count`` elements exist behind so many zeros; the
        total of them."""
        dot, rows = self.packing.dot, self.packing.columns[0][1] == 1
        value = self._rows(source, lanes, count, zeros) if rows else self._gather(source, lanes, count, zeros)
        if dot is not None and dot.chains > 1:
            value = self._chained(dot, value)
        self.f.store(value, target, self.packing.size)
        if dot is None or not dot.correction:
            return total
        return dot.product(self.f, in_all_lanes("-128", value.type), value, total)

    def _chained(self, dot: Dot, words: LlvmValue) -> LlvmValue:
        """The elements of words chain by chain: of each what one instruction takes."""
        order = [lane * self.group + at for chain in dot.orders for lane in range(self.width) for at in chain]
        return self.f.shuffle(words, None, order)

    def _rows(self, source: LlvmValue, lanes: int, count: int, zeros: int) -> LlvmValue:
        """Rows of neighbouring columns, interleaved."""
        ((_, step),), none = self.packing.sums[-1], zero(vector(self.element, self.width))
        rows = [none] * zeros + [self._row(self._at(source, at * step), lanes) for at in range(count)]
        rows += [none] * (self.group - zeros - count)
        while len(rows) > 1:
            half = len(rows) // 2
            rows = [self.f.interleaved(pair) for pair in zip(rows[:half], rows[half:], strict=True)]
        return rows[0]

    def _row(self, source: LlvmValue, lanes: int) -> LlvmValue:
        type_ = vector(self.element, self.width)
        if lanes == self.width:
            return self.f.load(type_, source, SIZE[self.packing.source])
        value = zero(type_)
        for lane in range(lanes):
            value = self.f.insert(value, self.f.load(type_.one, self._at(source, lane)), lane)
        return value

    def _gather(self, source: LlvmValue, lanes: int, count: int, zeros: int) -> LlvmValue:
        """Elements one by one, or whole words where neighbours along the sum are neighbours in memory."""
        ((_, step),), ((_, apart),) = self.packing.sums[-1], self.packing.columns
        size, words = SIZE[self.packing.source], vector(self.element, self.group * self.width)
        if step == 1 and count == self.group:
            value = zero(vector(f"i{8 * size * self.group}", self.width))
            for lane in range(lanes):
                one = self.f.load(value.type.one, self._at(source, lane * apart), size)
                value = self.f.insert(value, one, lane)
            return self.f.cast("bitcast", value, words)
        value = zero(words)
        for lane in range(lanes):
            for at in range(count):
                one = self.f.load(words.one, self._at(source, lane * apart + at * step))
                value = self.f.insert(value, one, lane * self.group + zeros + at)
        return value
