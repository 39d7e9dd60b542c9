"""When a loop stops, where counters decide that and no data: what exporters make of ``while i < n``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from glowtrain.graph import Constant, Input, Value, topological
from glowtrain.ops.core.evaluate import run_nodes
from glowtrain.types import Array

_MOST_STEPS = 1 << 15
_LARGEST = 1024
"""Elements of the values up to which steps are computed while loading."""


def static_steps(
    count: int | None,
    condition: Value,
    step: Input,
    states: Sequence[Input],
    first: Sequence[Value],
    after: Sequence[Value],
) -> int | None:
    """How many steps a loop runs, of ``count`` at most; ``None`` where that depends on more than known numbers.

    ``condition`` is the condition after a step, a function of ``step`` and ``states``; these are ``first`` before the
    first step, and ``after`` after one.
    """
    if isinstance(condition, Constant):
        return count if condition.array.reshape(()).item() else 1
    following = dict(zip(states, after, strict=False))
    begin = {state: value.array for state, value in zip(states, first, strict=True) if isinstance(value, Constant)}
    counters = _counters(condition, step, following)
    if counters is None or any(counter not in begin for counter in counters):
        return None
    results = [condition, *(following[counter] for counter in counters)]
    nodes = list(topological(results))
    if any(node.operator.random or sum(value.type.size for value in node.outputs) > _LARGEST for node in nodes):
        return None
    now: dict[Value, Array] = {counter: begin[counter] for counter in counters}
    limit = _MOST_STEPS if count is None else min(count, _MOST_STEPS)
    for number in range(limit):
        environment = {**now, step: np.array(number, np.int64)}
        run_nodes(nodes, environment)
        goes_on, *new = (_array(value, environment) for value in results)
        if not goes_on.reshape(()).item():
            return number + 1
        now = dict(zip(counters, new, strict=True))
    return count if limit == count else None


def _counters(condition: Value, step: Input, following: Mapping[Input, Value]) -> list[Input] | None:
    """The states that the condition depends on, through steps too; ``None`` if it depends on anything else."""
    found: list[Input] = []
    waiting = [condition]
    while waiting:
        for leaf in _leaves(waiting.pop()):
            if isinstance(leaf, Constant) or leaf is step or leaf in found:
                continue
            if not isinstance(leaf, Input) or leaf not in following:
                return None
            found.append(leaf)
            waiting.append(following[leaf])
    return found


def _leaves(value: Value) -> list[Value]:
    operands = (operand for node in topological([value]) for operand in node.inputs)
    return [leaf for leaf in (*operands, value) if leaf is not None and leaf.node is None]


def _array(value: Value, environment: Mapping[Value, Array]) -> Array:
    return value.array if isinstance(value, Constant) else np.asarray(environment[value])
