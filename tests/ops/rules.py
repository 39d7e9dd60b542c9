"""Results and gradients of operators: in the interpreter, by loop nests, on seeded draws."""

from __future__ import annotations

from typing import Any

import numpy as np

from glowtrain.backends.interpreter import evaluate
from glowtrain.grad.reverse import pullback
from glowtrain.graph import Graph, Input, Operator, Value, constant
from glowtrain.program.interpret.evaluate import evaluate as evaluate_program
from glowtrain.types import type_of
from tests.stages import lower


def run(outputs: list[Value], feeds: dict[Input, Any]) -> list[Any]:
    """The outputs of a graph in the interpreter."""
    graph = Graph(tuple(feeds), {f"out{i}": value for i, value in enumerate(outputs)})
    known = evaluate(graph, {value.name: array for value, array in feeds.items()})
    return [known[value] for value in outputs]


def reference(operator: Operator, *inputs: Any) -> Any:
    """The operator's own results, checked against the inferred types."""
    arrays = [None if x is None else np.asarray(x) for x in inputs]
    types = operator.infer(*(None if x is None else type_of(x) for x in arrays))
    with np.errstate(all="ignore"):
        results = operator.reference(*arrays)
    for type_, array in zip(as_tuple(types), map(np.asarray, as_tuple(results)), strict=True):
        assert type_.accepts(array), f"{operator}: {array.dtype}{array.shape}, not {type_}"
    return results if isinstance(results, tuple) else np.asarray(results)


def as_tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def gradients(operator: Operator, arrays: list[Any], wanted: int = 0, output: int = 0, g: Any = None) -> Any:
    """The gradient of an operand through one output, for the cotangent ``g`` (ones)."""
    inputs = [Input(type_of(np.asarray(array)), f"x{i}") for i, array in enumerate(arrays)]
    results = operator(*inputs)
    result = results[output] if isinstance(results, tuple) else results
    cotangent = Input(result.type, "g")
    ones = np.ones(result.shape, result.dtype.numpy) if g is None else np.asarray(g, result.dtype.numpy)
    (gradient,) = pullback([result], [cotangent], [inputs[wanted]])
    assert gradient is not None
    feeds = {value: np.asarray(array) for value, array in zip(inputs, arrays, strict=True)}
    return run([gradient], {**feeds, cotangent: ones})[0]


def all_gradients(operator: Operator, *arrays: Any) -> list[Any]:
    """Gradients of the sum of the operator's one result in f64, for each operand; None where no gradient flows."""
    inputs = [None if x is None else Input(type_of(np.asarray(x, np.float64)), f"x{i}") for i, x in enumerate(arrays)]
    result = operator(*inputs)
    present = [value for value in inputs if value is not None]
    found = dict(zip(present, pullback([result], [constant(np.ones(result.shape))], present), strict=True))
    feeds = {v: np.asarray(x, np.float64) for v, x in zip(inputs, arrays, strict=True) if v is not None}
    return [None if v is None or (g := found[v]) is None else run([g], feeds)[0] for v in inputs]


def lowered(operator: Operator, arrays: list[Any]) -> tuple[Any, ...]:
    """The operator's outputs by its loop nests (or those of its decomposition)."""
    inputs = [None if array is None else Input(type_of(array), f"x{i}") for i, array in enumerate(arrays)]
    results = operator(*inputs)
    outputs = {f"y{i}": value for i, value in enumerate(results if isinstance(results, tuple) else (results,))}
    graph = Graph(tuple(value for value in inputs if value is not None), outputs)
    found, _ = evaluate_program(lower(graph), {f"x{i}": a for i, a in enumerate(arrays) if a is not None})
    return tuple(found[name] for name in outputs)
