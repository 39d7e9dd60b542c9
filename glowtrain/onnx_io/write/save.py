"""Save graphs, training steps too, as standard ONNX models."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

from onnx import ModelProto, helper

from glowtrain.errors import BindingError, ModelError, ShapeError
from glowtrain.files import write_atomically
from glowtrain.graph import Graph, HostedModel, Node, Template, Value, Variable, no_model
from glowtrain.graph.specialise.binding import Trimmed
from glowtrain.graph.specialise.template import example_of
from glowtrain.modes.variables import unknown_variables
from glowtrain.names import Names
from glowtrain.onnx_io.read.parameters import state_variables
from glowtrain.onnx_io.read.upgrade.upgrade import NEWEST_OPSET
from glowtrain.onnx_io.schema.tensors import tensor_from_array
from glowtrain.onnx_io.write.downgrade import inlined
from glowtrain.onnx_io.write.encodings import Extents
from glowtrain.onnx_io.write.hosted import joined, names_on_host, opsets_for
from glowtrain.onnx_io.write.nodes import Functions, Writer, reserve, value_info
from glowtrain.onnx_io.write.symbols import Symbols, symbols_of
from glowtrain.types import Array

OLDEST_SAVED = 13
"""The first operator set with per-channel QuantizeLinear."""
OLDEST_CHOSEN = 17
"""The first operator set that is chosen without being asked for."""
_LARGEST_FILE = (1 << 31) - 1


def save(
    graph: Graph | Template | HostedModel,
    path: str | os.PathLike[str] | None = None,
    *,
    opset: int | None = None,
    ir_version: int | None = None,
    state: Mapping[str, Array] | None = None,
    domains: Collection[str] = (),
    standard: bool = False,
    metadata: Mapping[str, str] | None = None,
) -> ModelProto:
    """Write a graph or a template as an ONNX model, to ``path`` if one is given, and return the model.

    ``opset`` is the version of the standard operators, from 13 to the newest; without it, the first from 17 on that has
    all that the graph uses. Operators that it lacks become functions of the model. ``state`` gives variables' values by
    name (``trainer.variables()``); without it they have their initial ones. Variables are initializers, and the model's
    metadata say which of them are trainable; in a graph with updates (a training step) they are inputs as well, and
    each updated one has an output ``<name>.next``. Dimensions that the graph's template left symbolic are symbolic
    again, where the model is valid for all of them. Operators of the given ``domains`` (``com.microsoft``) are written
    as they are, for runtimes that have them, and not as functions. With ``standard`` there are only ONNX's own
    operators in the model: in place of functions stands what they consist of (so it does where only that leaves
    dimensions symbolic), and operators of other packages must have a decomposition. The tensors of a sequence are
    inputs or outputs of their own (``<name>.0``, ``<name>.1``). ``metadata``: further entries of the model's metadata,
    by name.

    A model of which parts run on the host is written with these, at an operator set in which they mean the same.

    The file appears whole or not at all. Raises :class:`ModelError` for operators that cannot be written, names that
    clash, values of unknown variables and files that cannot be written.
    """
    hosted = graph if isinstance(graph, HostedModel) else None
    if isinstance(graph, HostedModel):
        graph = graph.model
    if isinstance(graph, Template):
        graph = _bound(graph)
    if not isinstance(graph, Graph):
        raise ModelError(f"cannot save: it takes a graph or a template, {no_model(graph)}")
    if problem := unknown_variables(graph, state or ()):
        raise ModelError(f"cannot save: state is for other variables: {problem}")
    choices: Sequence[int] = range(OLDEST_CHOSEN, NEWEST_OPSET + 1) if opset is None else (opset,)
    if not OLDEST_SAVED <= choices[0] <= NEWEST_OPSET:
        raise ModelError(f"cannot save at opset {opset}: choose one from {OLDEST_SAVED} to {NEWEST_OPSET}")
    taken: set[str] = set()
    if hosted is not None:
        choices = opsets_for(hosted, choices)
        taken = names_on_host(hosted) - {v.name for v in (*graph.inputs, *graph.variables)} - {*graph.outputs}
    for version in choices:
        model, missing = _model(graph, version, state or {}, frozenset(domains), taken, standard=standard)
        if not missing:
            break
    else:
        raise ModelError(f"cannot save: {_explain(missing, choices[-1])}")
    if hosted is not None:
        model = joined(hosted, model)
    model.ir_version = ir_version or _ir_version(version)
    for name, text in (metadata or {}).items():
        model.metadata_props.add(key=name, value=text)
    if path is not None:
        _write(model, Path(path))
    return model


def _bound(template: Template) -> Graph:
    """A graph that becomes the template again when it is written."""
    try:
        return example_of(template)
    except (BindingError, ShapeError) as error:
        raise ModelError(f"cannot save the template {template.name}: bind its dimensions first ({error})") from None


def _write(model: ModelProto, path: Path) -> None:
    try:
        write_atomically(path, _serialized(model))
    except OSError as error:
        raise ModelError(f"cannot write {path}: {error.strerror}") from None


def _explain(missing: Mapping[str, Node], opset: int) -> str:
    listed = "".join(f"\n  - {node}" for node in missing.values())
    return f"opset {opset} lacks these operators on these types, and they have no decomposition:{listed}"


def _model(
    graph: Graph,
    opset: int,
    state: Mapping[str, Array],
    undecomposed: frozenset[str],
    taken: Collection[str],
    *,
    standard: bool,
) -> tuple[ModelProto, dict[str, Node]]:
    """The model, without the names that are ``taken``, and the operators that could not be written."""
    functions = Functions(opset, undecomposed=undecomposed, standard=standard)
    graph, symbols = _written(graph, functions)
    return _of_graph(graph, symbols, state, functions, Names(taken)), functions.missing


def _written(graph: Graph, functions: Functions) -> tuple[Graph, Symbols]:
    """The graph that is written, and the dimensions that stay symbolic: with operators that become functions, unless
    these are not wanted or keep dimensions from being symbolic."""
    symbols = Symbols() if functions.standard else symbols_of(graph, functions.opset)
    if symbols.sources or not (graph.dims or functions.standard):
        return graph, symbols
    plain = graph.map(partial(inlined, is_written=functions.writes))
    found = symbols_of(plain, functions.opset)
    return (plain, found) if found.sources or functions.standard else (graph, symbols)


def _of_graph(
    graph: Graph, symbols: Symbols, state: Mapping[str, Array], functions: Functions, names: Names
) -> ModelProto:
    writer = Writer(functions, names, symbols=symbols)
    outputs, cuts = _outputs(graph), graph.trimmed
    step = graph.with_(outputs={f"{name}.whole" if name in cuts else name: value for name, value in outputs.items()})
    writer.declare(step)
    for name in cuts:
        reserve(writer.names, name, "the output")
    writer.body(step)
    for name, cut in cuts.items():
        writer.trimmed(cut, f"{name}.whole")
    inputs = [value_info(value.name, value.type, symbols.inputs.get(value.name)) for value in graph.inputs]
    if graph.updates:
        inputs += [value_info(variable.name, variable.type) for variable in graph.variables]
    sizes = {cut.size for cut in cuts.values()}
    results = [
        value_info(name, value.type, _extents(value, symbols.outputs.get(name), cuts.get(name)))
        for name, value in outputs.items()
        if name not in sizes
    ]
    values = [tensor_from_array(_value(variable, state), variable.name) for variable in graph.variables]
    proto = helper.make_graph(writer.nodes, graph.name or "graph", inputs, results, [*values, *writer.initializers])
    imports, protos = functions.imports(functions=bool(functions.protos)), list(functions.protos.values())
    model = helper.make_model(proto, opset_imports=imports, functions=protos)
    model.producer_name = "glowtrain"
    state_variables(model, graph.variables)
    return model


def _outputs(graph: Graph) -> dict[str, Value]:
    """The graph's outputs, then the new value of each variable that is updated."""
    following = {f"{variable.name}.next": value for variable, value in graph.updates.items()}
    clash = sorted(set(following) & set(graph.outputs))
    if clash:
        raise ModelError(f"cannot save: an output has the name of a variable's new value: {', '.join(clash)}")
    return {**graph.outputs, **following}


def _extents(value: Value, symbolic: Extents | None, cut: Trimmed | None) -> Extents:
    """The declared extents of an output: one that is found at run time has a name of its own."""
    extents = symbolic or value.shape
    return extents if cut is None else (*extents[: cut.axis], cut.size, *extents[cut.axis + 1 :])


def _value(variable: Variable, state: Mapping[str, Array]) -> Array:
    array = variable.value_in(state)
    if not variable.type.accepts(array):
        given = f"{array.dtype}{list(array.shape)}"
        raise ModelError(f"cannot save: variable {variable.name!r} is {variable.type}, but its value is {given}")
    return array


def _ir_version(opset: int) -> int:
    """The IR version of the first release with an operator set, and at least 8, the first with functions."""
    return max(8, int(helper.OP_SET_ID_VERSION_MAP.get(("ai.onnx", opset), 8)))


def _serialized(model: ModelProto) -> bytes:
    if model.ByteSize() > _LARGEST_FILE:
        raise ModelError("cannot save: the model is larger than the 2 GiB that an ONNX file can hold")
    data: bytes = model.SerializeToString()
    return data
