"""Random training steps: whole graphs with fan-out, shared parameters, loops and branches, several types and losses,
unused results and updated state.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from glowtrain.errors import ShapeError
from glowtrain.gradcheck.draw import ChoiceDraw
from glowtrain.gradcheck.programs.bodies import rules
from glowtrain.gradcheck.programs.case import Case
from glowtrain.gradcheck.programs.generator import Composer
from glowtrain.graph import Draw, Graph, Input, Value, constant
from glowtrain.ops.indexing.scatter import ScatterND
from glowtrain.ops.reduce.reduction import ReduceMean
from glowtrain.ops.tensor.move import Concat, Slice, Transpose
from glowtrain.types import Array, f32


def drawn_case(seed: int, example: int) -> Case:
    """A case that depends on seed and example only."""
    return draw_case(ChoiceDraw(seed, "program", example))


def draw_case(draw: Draw) -> Case:
    """A random case, in f64 or in f32 beside other types; every choice is made by ``draw``."""
    case = _Program(draw).case()
    if draw.boolean():
        return case
    try:
        return case.in_type(f32)
    except ShapeError:  # an operator that takes f64 only
        return case


@dataclass
class _Program:
    draw: Draw
    states: list[tuple[Input, Value]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.composer = Composer(self.draw)

    def case(self) -> Case:
        draw, composer = self.draw, self.composer
        extents = (draw.integer(1, 5), draw.integer(1, 9), draw.choice((1, 2, 17)))
        for _ in range(draw.integer(2, 4)):
            shape = tuple(draw.choice(extents) for _ in range(draw.integer(0, 3)))
            composer.leaf(composer.floats(shape, -1.5, 1.5))
        composer.grow(draw.choice((1, 2, 2, 3, 3, 4, 6)), rules(composer))
        losses = tuple(self._loss() for _ in range(draw.choice((1, 1, 2, 3))))
        for _ in range(draw.choice((0, 1, 1, 2))):
            draw.choice((self._exchanged, self._turned, self._queue, self._written, self._gathered))()
        used = _reached(*losses, *(value for pair in self.states for value in pair))
        further = tuple(value for value in composer.pool[-2:] if draw.boolean() and _reached(value) <= used)
        return self._case(losses, further, [value for value in composer.leaves if value in used])

    def _case(self, losses: tuple[Value, ...], further: tuple[Value, ...], inputs: list[Input]) -> Case:
        held = [value for value, _ in self.states]
        free = [k for k, value in enumerate(inputs) if value.dtype.is_float and value not in held]
        parameters = tuple(k for number, k in enumerate(free) if number == 0 or self.draw.boolean())
        arrays = tuple(self.composer.leaves[value] for value in inputs)
        states = tuple((inputs.index(value), new) for value, new in self.states)
        return Case(tuple(inputs), arrays, parameters, losses, further, states, len(losses) > 1 and self.draw.boolean())

    def _loss(self) -> Value:
        """A weighted mean of some values, each weighted so that no sum is constant by construction."""
        composer, draw = self.composer, self.draw
        terms = [composer.pool[-1], *(composer.pick() for _ in range(draw.integer(0, 2)))]
        if not any(_reached(value) for value in terms):
            terms.append(composer.pool[0])
        total: Value | None = None
        for value in terms:
            weights = constant(draw.floats(value.shape, 0.5, 2.0))
            term: Value = ReduceMean(axes=None, keepdims=False)(value * weights)
            total = term if total is None else total + term
        assert total is not None
        return total

    # ---- state that is not trained: updates which tempt a compiler to write what is still to be read

    def _held(self, array: Array) -> Input:
        value = self.composer.entered(array)
        assert isinstance(value, Input)
        return value

    def _exchanged(self) -> None:
        """Two variables that exchange their values."""
        first, second = self._held(np.arange(3.0)), self._held(-np.arange(3.0))
        self.states += [(first, second), (second, first)]

    def _turned(self) -> None:
        """A matrix that is transposed or reversed, or both."""
        matrix = self._held(self.draw.floats((3, 3)))
        turned: Value = Transpose(perm=(1, 0))(matrix) if self.draw.boolean() else matrix
        far = -(1 << 31)
        if turned is matrix or self.draw.boolean():
            turned = Slice(starts=(-1,), ends=(far,), axes=(self.draw.integer(0, 1),), steps=(-1,))(turned)
        self.states.append((matrix, turned))

    def _queue(self) -> None:
        """The last values of something, the newest at one of the ends."""
        queue, value = self._held(self.draw.floats((4, 2))), self.composer.shaped(self.composer.pick(), (1, 2))
        newest_first = self.draw.boolean()
        start = 0 if newest_first else 1
        kept: Value = Slice(starts=(start,), ends=(start + 3,), axes=(0,))(queue)
        self.states.append((queue, Concat(axis=0)(*((value, kept) if newest_first else (kept, value)))))

    def _written(self) -> None:
        """A table with some rows replaced, or added to."""
        table, first = self._held(self.draw.floats((5, 2))), self.draw.integer(0, 3)
        reduction = self.draw.choice(("none", "add"))
        second = first if reduction == "add" and self.draw.boolean() else first + 1
        values = self.composer.shaped(self.composer.pick(), (2, 2))
        written: Value = ScatterND(reduction=reduction)(table, np.array([[first], [second]]), values)
        self.states.append((table, written))

    def _gathered(self) -> None:
        """A running sum, with what was there before as a further value."""
        value = self.composer.pick()
        total = self._held(self.draw.floats(value.shape))
        self.composer.pool.append(total * 0.5)
        self.states.append((total, total * 0.75 + value * 0.25))


def _reached(*values: Value) -> set[Value]:
    """The inputs that values depend on."""
    named = {f"value{k}": value for k, value in enumerate(values)}
    return {leaf for leaf in Graph((), named).leaves if isinstance(leaf, Input)}
