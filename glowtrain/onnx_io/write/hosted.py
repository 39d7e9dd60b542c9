"""Put the parts of a model that run on the host around what was written of the part that is compiled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from onnx import GraphProto, ModelProto, NodeProto, helper

from glowtrain.errors import ModelError
from glowtrain.graph import HostedModel
from glowtrain.names import Names
from glowtrain.onnx_io.host import OnnxHostPart
from glowtrain.onnx_io.read.check import all_nodes, is_standard, schema_at


def protos_of(hosted: HostedModel) -> tuple[ModelProto, ModelProto]:
    """What runs before and after. Raises :class:`ModelError` for parts that are not nodes of ONNX."""
    if not (isinstance(hosted.before, OnnxHostPart) and isinstance(hosted.after, OnnxHostPart)):
        raise ModelError("cannot save: what runs on the host are not nodes of ONNX")
    return hosted.before.proto, hosted.after.proto


def names_on_host(hosted: HostedModel) -> set[str]:
    """The names that values of the host have, and none of the compiled part is to get."""
    graphs = [proto.graph for proto in protos_of(hosted)]
    found = {name for graph in graphs for node in graph.node for name in node.output}
    return found.union(each.name for graph in graphs for each in (*graph.input, *graph.initializer))


def opsets_for(hosted: HostedModel, choices: Iterable[int]) -> list[int]:
    """Those operator sets in which the host's nodes mean what they mean in their own. Raises :class:`ModelError`."""
    before, after = protos_of(hosted)
    nodes = [node for proto in (before, after) for node in all_nodes(proto.graph.node) if is_standard(node.domain)]
    own = next(entry.version for entry in before.opset_import if is_standard(entry.domain))
    fitting = [version for version in choices if all(_same(node, own, version) for node in nodes)]
    if not fitting:
        raise ModelError(f"cannot save: its nodes on the host are of opset {own}; give opset={own}")
    return fitting


def _same(node: NodeProto, version: int, other: int) -> bool:
    schemas = [schema_at(node.op_type, each, node.domain) for each in (version, other)]
    return len({schema and schema.since_version for schema in schemas}) == 1


def joined(hosted: HostedModel, model: ModelProto) -> ModelProto:
    """The whole model, in place of its compiled part. Raises :class:`ModelError` where it cannot be written."""
    before, after = protos_of(hosted)
    _import(model, before, [*all_nodes(before.graph.node), *all_nodes(after.graph.node)])
    graphs, names = (before.graph, model.graph, after.graph), Names(node.name for node in model.graph.node)
    infos = {each.name: each for graph in graphs for each in (*graph.input, *graph.output)}
    infos |= {each.name: each for each in (*model.graph.input, *model.graph.output)}
    initial = {tensor.name for tensor in model.graph.initializer}
    if lists := [name for name in (*hosted.inputs, *hosted.outputs) if name not in infos]:
        raise ModelError(f"cannot save: {', '.join(lists)}: a sequence, beside what runs on the host")
    whole = helper.make_graph(
        list(_nodes(graphs, names)),
        model.graph.name,
        [*(infos[name] for name in hosted.inputs), *(each for each in model.graph.input if each.name in initial)],
        [infos[name] for name in hosted.outputs],
        list({tensor.name: tensor for each in (before, after, model) for tensor in each.graph.initializer}.values()),
    )
    model.graph.CopyFrom(whole)
    return model


def _import(model: ModelProto, part: ModelProto, nodes: Sequence[NodeProto]) -> None:
    """Import the other domains of the host's nodes. Raises :class:`ModelError` for two versions of one."""
    imported = {entry.domain: entry for entry in model.opset_import}
    for entry in part.opset_import:
        if is_standard(entry.domain):
            continue
        if (own := imported.get(entry.domain)) is None:
            model.opset_import.append(entry)
        else:
            by_version = {own.version: list(all_nodes(model.graph.node)), entry.version: nodes}
            own.version = _version_for(entry.domain, by_version)


def _version_for(domain: str, nodes: Mapping[int, Sequence[NodeProto]]) -> int:
    """The version of a domain in which all of its nodes mean what they do in their own. Raises :class:`ModelError`."""
    for choice in nodes:
        own = ((node, version) for version, each in nodes.items() for node in each if node.domain == domain)
        if all(_same(node, version, choice) for node, version in own):
            return choice
    raise ModelError(f"cannot save: operators of {domain} are of its versions {' and '.join(map(str, nodes))}")


def _nodes(graphs: Iterable[GraphProto], names: Names) -> Iterator[NodeProto]:
    """The nodes of all parts, constants that several have once."""
    before, compiled, after = graphs
    seen: set[tuple[str, ...]] = set()
    for graph in (before, compiled, after):
        for node in graph.node:
            if (given := tuple(node.output)) in seen:
                continue
            seen.add(given)
            copy = NodeProto()
            copy.CopyFrom(node)
            if graph is not compiled and node.name:
                copy.name = names.fresh(node.name)
            yield copy
