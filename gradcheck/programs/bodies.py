"""Parts of random programs: loops with drawn bodies, branches, and stretches in a narrower type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from glowtrain.gradcheck.programs.generator import NARROW, Composer, Rule
from glowtrain.graph import Constant, Graph, Input, Value, constant
from glowtrain.ops.control.scan import Scan
from glowtrain.ops.elementwise.logic import And, Cast, Where
from glowtrain.ops.elementwise.transcendental import Tanh
from glowtrain.types import Array, Shape, f64, type_of

DEEPEST = 2
"""How many parts may be within each other."""


def rules(composer: Composer) -> tuple[Rule, ...]:
    """All rules for a composer; with no further parts where it is within enough of them."""
    plain = (*composer.plain_rules, composer.selection, composer.integers, composer.stepwise)
    if composer.depth >= DEEPEST:
        return plain
    parts = (branches, scan, loop) if composer.dtype != f64 else (branches, stretch, scan, loop)
    return (*plain, *(lambda part=part: part(composer) for part in parts))


def stretch(composer: Composer) -> None:
    """Some operations in a narrower type, parameters too."""
    dtype = composer.draw.choice(NARROW)
    inner = Composer(composer.draw, dtype, composer, numbers=composer.numbers)
    inner.pool = [Cast(to=dtype)(composer.pick()) for _ in range(composer.draw.integer(1, 2))]
    if composer.draw.boolean():
        inner.leaf(inner.floats((composer.draw.integer(1, 9),), -1.5, 1.5))
    inner.grow(composer.draw.integer(1, 3), rules(inner))
    composer.keep(inner.pool[-1])


def branches(composer: Composer) -> None:
    """Two branches of operations, and the result of one of them: what an If becomes when it is loaded."""
    condition, first = _condition(composer), branch(composer)
    composer.keep(Where()(condition, first, composer.shaped(branch(composer), first.shape)))


def branch(composer: Composer) -> Value:
    """Some operations on what is there, of which the composer keeps nothing."""
    inner = Composer(composer.draw, composer.dtype, composer, numbers=composer.numbers, pool=list(composer.pool))
    inner.grow(composer.draw.integer(1, 2), inner.plain_rules)
    return inner.pool[-1]


def _condition(composer: Composer) -> Value:
    """A single bool: given, or what an element of a value says."""
    if composer.draw.boolean():
        return composer.entered(np.asarray(composer.draw.boolean()))
    return composer.above(composer.shaped(composer.pick(), ()))


@dataclass
class DrawnBody(Composer):
    """Composes the body of a loop at the numbers of its first step. What it reads from outside is captured."""

    arguments: list[Input] = field(default_factory=list)
    captured: dict[Value, Input] = field(default_factory=dict)

    def argument(self, number: Array) -> Input:
        """A new state or slice."""
        value = Input(type_of(number), f"a{len(self.arguments)}")
        self.arguments.append(value)
        self.numbers[value] = number
        return value

    def capture(self, value: Value) -> Input:
        """A value of the program around the loop, which every step reads."""
        assert self.outer is not None
        if value not in self.captured:
            self.captured[value] = Input(value.type, f"c{len(self.captured)}")
            self.numbers[self.captured[value]] = self.outer.number(value)
        return self.captured[value]

    def entered(self, array: Array) -> Value:
        return self.capture(super().entered(array))

    def graph(self, results: Sequence[Value]) -> Graph:
        """The body, with its results."""
        outputs = {f"y{k}": value for k, value in enumerate(results)}
        return Graph((*self.arguments, *self.captured.values()), outputs, name="body")


def scan(composer: Composer) -> None:
    """A Scan: states, slices of values along drawn axes in drawn directions, captured values, all in a drawn body."""
    draw, steps = composer.draw, composer.draw.integer(0, 5)
    states = [_shaped(composer) for _ in range(draw.integer(0, 2))]
    shapes = [_small(composer) for _ in range(draw.integer(1, 2))]
    axes = tuple(draw.integer(0, len(shape)) for shape in shapes)
    wholes = [(*s[:axis], steps, *s[axis:]) for s, axis in zip(shapes, axes, strict=True)]
    scanned = [composer.shaped(composer.pick(), whole) for whole in wholes]
    directions = tuple(draw.integer(0, 1) for _ in scanned)
    body = DrawnBody(draw, composer.dtype, composer)
    body.pool += [body.argument(composer.number(state)) for state in states]
    for value, axis, direction in zip(scanned, axes, directions, strict=True):
        first = np.take(composer.number(value), -direction, axis) if steps else _nothing(value, axis)
        body.pool.append(body.argument(first))
    body.pool += [body.capture(composer.pick()) for _ in range(draw.integer(0, 1))]
    body.grow(draw.integer(1, 4), rules(body))
    stacked = [body.pick() for _ in range(draw.integer(0 if states else 1, 2))]
    graph = body.graph([*_following(body, states), *stacked])
    output_axes = tuple(draw.integer(0, value.rank) for value in stacked)
    output_directions = tuple(draw.integer(0, 1) for _ in stacked)
    whole = Scan(graph, len(scanned), axes, output_axes, directions, output_directions, len(body.captured))
    composer.keep(whole(*states, *scanned, *body.captured))


def _nothing(value: Value, axis: int) -> Array:
    """What stands for a slice of a value that has none."""
    return np.zeros((*value.shape[:axis], *value.shape[axis + 1 :]), value.dtype.numpy)


def loop(composer: Composer) -> None:
    """A Loop as it is loaded: a Scan over the numbers of its steps, which keeps its state once a condition fails."""
    draw, steps = composer.draw, composer.draw.integer(0, 5)
    state = _shaped(composer)
    body, (kept, after, piece) = loop_body(composer, state, composer.entered(np.asarray(draw.integer(0, steps))))
    going, before, _ = body.arguments
    graph = body.graph([And()(going, kept), Where()(going, after, before), piece])
    first = composer.entered(np.asarray(draw.boolean())) if draw.integer(0, 3) == 0 else constant(np.asarray(True))
    ticks = constant(np.arange(steps, dtype=np.int64))
    results = Scan(graph, 1, num_captured=len(body.captured))(first, state, ticks, *body.captured)
    composer.keep(results[1:])


def loop_body(composer: Composer, state: Value, limit: Value) -> tuple[DrawnBody, tuple[Value, Value, Value]]:
    """The body of a loop that goes on for ``limit`` steps, with three results: whether it goes on, the new state, and
    a value of each step. Its arguments: whether the loop goes on, the state, the number of the step."""
    draw, body = composer.draw, DrawnBody(composer.draw, composer.dtype, composer)
    body.argument(np.asarray(True))
    body.pool.append(body.argument(composer.number(state)))
    step = body.argument(np.asarray(0))
    ordinal: Value = Cast(to=body.dtype)(step)
    body.keep(ordinal * 0.25)
    body.grow(draw.integer(1, 3), rules(body))
    kept: Value = step + 1 < (limit if isinstance(limit, Constant) else body.capture(limit))
    (after,) = _following(body, [state])
    return body, (kept, after, body.pick())


def _following(body: DrawnBody, states: Sequence[Value]) -> list[Value]:
    """New states: in (-1, 1), or now and then the old ones in turn."""
    old = [value for value in body.arguments if value.dtype == body.dtype][: len(states)]
    if len(old) > 1 and old[0].type == old[1].type and body.draw.boolean():
        return [*old[1:], old[0]]
    return [Tanh()(body.shaped(body.pick(), state.shape)) for state in states]


def _small(composer: Composer) -> Shape:
    return composer.draw.shape(max_rank=2, max_extent=4)


def _shaped(composer: Composer) -> Value:
    return composer.shaped(composer.pick(), _small(composer))
