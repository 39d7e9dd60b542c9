"""The verifier of the Graph IR."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from glowtrain.errors import GraphError, InputError, ShapeError
from glowtrain.graph.graph import Graph, bodies_of
from glowtrain.graph.registry import lookup
from glowtrain.graph.specialise.binding import Trimmed, parts_of
from glowtrain.graph.specialise.template import no_graph
from glowtrain.graph.value import Constant, Input, Node, Value, Variable
from glowtrain.types import Array, LazyArray, TensorType


def verify(graph: Graph) -> None:
    """Check every invariant of a graph and raise :class:`GraphError` with all that are broken; :class:`InputError` for
    what is no graph.

    - Every leaf that is used is a declared input, a constant or a variable.
    - Inputs and variables have names, all different; outputs have names; inputs are declared once.
    - Every operator is the registered one of its name.
    - Every output of a node has the type that ``infer`` gives for the operands' types.
    - Every operand that is not a leaf is an output of the node it names, and no node depends on itself.
    - Constants and variables hold arrays of their type.
    - Updates go to variables, with values of the variable's type.
    - Results are made of outputs; the size of a trimmed one is an integer scalar, its axis one of the output's.
    - Graphs that are attributes obey the same rules except those on names, and have no variables and no updates.
    """
    if not isinstance(graph, Graph):
        raise InputError(f"verify takes a graph, {no_graph(graph)}")
    problems = [*_names(graph), *_problems(graph), *_results(graph)]
    if problems:
        raise GraphError(f"graph {graph.name} is not well formed:", problems)


def _problems(graph: Graph) -> Iterator[str]:
    yield from _leaves(graph)
    yield from _order(graph)
    for node in graph.nodes:
        yield from _node(node)
    yield from _updates(graph)


def _names(graph: Graph) -> Iterator[str]:
    named = [*dict.fromkeys(graph.inputs), *graph.variables]
    for value in named:
        if not value.name:
            yield f"{_kind(value)} of type {value.type} has no name"
    for name, count in Counter(value.name for value in named if value.name).items():
        if count > 1:
            kinds = " and ".join(_kind(value) for value in named if value.name == name)
            yield f"name {name!r} is used {count} times ({kinds})"
    if "" in graph.outputs:
        yield "an output has no name"


def _leaves(graph: Graph) -> Iterator[str]:
    declared: dict[Value, None] = dict.fromkeys(graph.inputs)
    for value in declared:
        if not isinstance(value, Input):
            yield f"{value!r} is declared as an input but is a {_kind(value)}"
    for value, count in Counter(graph.inputs).items():
        if count > 1:
            yield f"input {value.name!r} is declared {count} times"
    for leaf in graph.leaves:
        if isinstance(leaf, Constant):
            yield from _array(leaf, leaf.array)
        elif isinstance(leaf, Variable):
            yield from _array(leaf, leaf.source)
        elif not isinstance(leaf, Input):
            yield f"{leaf!r} is neither an input, a constant, a variable nor a node's output"
        elif leaf not in declared:
            yield f"input {leaf.name!r} ({leaf.type}) is used but not declared"


def _array(leaf: Value, array: Array | LazyArray) -> Iterator[str]:
    if not leaf.type.accepts(array):
        yield f"{_kind(leaf)} {leaf.name!r} has type {leaf.type} but holds {array.dtype}{list(array.shape)}"


def _order(graph: Graph) -> Iterator[str]:
    position = {node: index for index, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        for value in node.inputs:
            if value is not None and value.node is not None and position[value.node] >= position[node]:
                yield f"{_describe(node)}: depends on itself through {_describe(value.node)}"
    for name, root in [*graph.outputs.items(), *((variable.name, value) for variable, value in graph.updates.items())]:
        if not _belongs(root):
            yield f"{name}: its value {root!r} is not an output of its node"


def _node(node: Node) -> Iterator[str]:
    if lookup(node.operator.key()) is not type(node.operator):
        yield f"{_describe(node)}: operator {node.operator.key()} is not registered"
    for index, value in enumerate(node.inputs):
        if value is not None and not _belongs(value):
            yield f"{_describe(node)}: operand {index} ({value!r}) is not an output of its node"
    yield from _types(node)
    for name, body in bodies_of(node.operator).items():
        yield from (f"{_describe(node)}.{name}: {problem}" for problem in _body_problems(body))


def _types(node: Node) -> Iterator[str]:
    try:
        inferred = node.operator.infer(*(None if value is None else value.type for value in node.inputs))
    except ShapeError as error:
        yield f"{_describe(node)}: {error}"
        return
    except TypeError:
        yield f"{_describe(node)}: does not take {len(node.inputs)} operands"
        return
    expected = (inferred,) if isinstance(inferred, TensorType) else tuple(inferred)
    if len(expected) != len(node.outputs):
        yield f"{_describe(node)}: has {len(node.outputs)} outputs, not {len(expected)}"
    for output, type_ in zip(node.outputs, expected, strict=False):
        if output.type != type_:
            yield f"{_describe(node)}: output {output.index} has type {output.type} but the operator gives {type_}"


def _body_problems(body: Graph) -> Iterator[str]:
    yield from _problems(body)
    if body.variables or body.updates:
        yield "a graph that is an attribute cannot have variables or updates"


def _updates(graph: Graph) -> Iterator[str]:
    targets: list[tuple[Value, Value]] = list(graph.updates.items())
    for variable, value in targets:
        if not isinstance(variable, Variable):
            yield f"{variable!r} is updated but is not a variable"
        elif value.type != variable.type:
            yield f"variable {variable.name!r} has type {variable.type} but its update has type {value.type}"


def _results(graph: Graph) -> Iterator[str]:
    for part in parts_of((graph.results or {}).values()):
        names = (part.output, part.size) if isinstance(part, Trimmed) else (part,)
        missing = [name for name in names if name not in graph.outputs]
        yield from (f"a result is made of {name!r}, which is not an output" for name in missing)
        if isinstance(part, Trimmed) and not missing:
            whole, size = graph.outputs[part.output], graph.outputs[part.size]
            if not size.dtype.is_integer or size.type.size != 1 or not 0 <= part.axis < whole.rank:
                yield f"output {part.output!r} ({whole.type}) cannot be trimmed on axis {part.axis} to {size.type}"


def _belongs(value: Value) -> bool:
    node = value.node
    return node is None or (value.index < len(node.outputs) and node.outputs[value.index] is value)


def _kind(value: Value) -> str:
    return type(value).__name__.lower()


def _describe(node: Node) -> str:
    return f"{node.operator.key()} {node.name!r}" if node.name else node.operator.key()
