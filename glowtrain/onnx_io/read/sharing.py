"""Which nodes share an initializer, and which only read the same one because an exporter merged equal ones.

Nodes that read one initializer train it together: so a layer that is used twice stays one layer. Exporters for
inference also merge parameters that happen to have equal values (all LayerNormalization scales of 1, a layer and its
deep copy). Where PyTorch's say which parameters there were (:mod:`glowtrain.onnx_io.read.exported`), each gets its own
again:

- the TorchScript exporter leaves an Identity with the name of each parameter that it left out;
- the dynamo exporter leaves for each node which parameters it was made from.

What an operator declares as a running statistic is never shared with parameters or with another statistic. Everything
else stays as it is in the file; :class:`Sharing` says where the file leaves it open.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from onnx import GraphProto, NodeProto

from glowtrain.errors import InputError
from glowtrain.names import matches
from glowtrain.onnx_io.read.exported import PARAMETER, Exported
from glowtrain.onnx_io.read.parameters import class_of, is_running, is_weight
from glowtrain.onnx_io.read.source import set_nodes
from glowtrain.onnx_io.read.upgrade.opset_7_up import UpgradeScope
from glowtrain.onnx_io.schema.attributes import static_inputs
from glowtrain.presentation.messages import listed
from glowtrain.types import Array


@dataclass(frozen=True, eq=False)
class Use:
    """An operand that a node computes with as a parameter, or as a running statistic: ``source`` is its initializer."""

    node: NodeProto
    operand: int
    source: str

    @property
    def statistic(self) -> int:
        """The operand's index if it is a running statistic, else -1."""
        return self.operand if is_running(self.node, self.operand) else -1


@dataclass(frozen=True)
class Sharing:
    """What was found: initializers that are constants, and nodes that share one without the file saying why."""

    constants: frozenset[str]
    unexplained: dict[str, list[NodeProto]]


def separate(
    graph: GraphProto, arrays: dict[str, Array], record: Exported, stated: Collection[str], untie: Sequence[str] = ()
) -> Sharing:
    """Part what exporters merged, and what matches the patterns ``untie``, in place.

    ``stated`` are initializers of which the file itself says that they are variables: they stay as they are. Raises
    :class:`InputError` for a pattern that matches nothing that several nodes read.
    """
    _restore_names(graph, arrays, record)
    uses = [use for use in _uses(graph, arrays) if use.source not in stated]
    parting = _Parting(arrays, record, UpgradeScope(graph), _owners(uses, record))
    for source, members in _grouped(uses).items():
        parting.part(source, members)
    parting.untie(untie)
    unexplained = {name: _nodes(members) for name, members in parting.readers.items()}
    return Sharing(
        record.constants | parting.constants,
        {name: nodes for name, nodes in unexplained.items() if len(nodes) > 1 and not parting.explained(name)},
    )


def _restore_names(graph: GraphProto, arrays: dict[str, Array], record: Exported) -> None:
    """Make initializers of the nodes that stand for parameters which had the value of another."""
    for node in graph.node:
        if node.input and node.input[0] in arrays and record.passes_on(node):
            arrays[node.output[0]] = arrays[node.input[0]]
    kept = [node for node in graph.node if not (node.op_type == "Identity" and node.output[0] in arrays)]
    if len(kept) < len(graph.node):
        set_nodes(graph, kept)


def _uses(graph: GraphProto, arrays: dict[str, Array]) -> Iterator[Use]:
    sources = {name: name for name in arrays}
    for node in graph.node:
        if node.op_type == "Identity" and node.input[0] in sources:
            sources[node.output[0]] = sources[node.input[0]]
        for operand, name in enumerate(node.input):
            source = sources.get(name)
            if source is not None and _computes_with(node, operand) and is_weight(arrays[source]):
                yield Use(node, operand, source)


def _computes_with(node: NodeProto, operand: int) -> bool:
    """Whether an operand is computed with, rather than moved, measured or joined."""
    cls = class_of(node)
    if cls is None or cls.copies or not cls.differentiable:
        return False
    return operand not in static_inputs(cls) and operand not in cls.setting_inputs


def _grouped(uses: Iterable[Use]) -> dict[str, list[Use]]:
    grouped: dict[str, list[Use]] = defaultdict(list)
    for use in uses:
        grouped[use.source].append(use)
    return grouped


def _nodes(uses: Iterable[Use]) -> list[NodeProto]:
    return list({id(use.node): use.node for use in uses}.values())


def _owners(uses: Iterable[Use], record: Exported) -> dict[Use, str]:
    """The parameter or buffer of the exported program that each use is of, as far as the file says it."""
    together: dict[str, list[Use]] = defaultdict(list)
    for use in uses:
        if not record.sources_of(use.source).isdisjoint(record.inputs.values()):
            together[record.program_node(use.node)].append(use)
    return {use: name for text, members in together.items() for use, name in _matched(members, text, record)}


def _matched(uses: Sequence[Use], text: str, record: Exported) -> Iterator[tuple[Use, str]]:
    """The uses in what was made from one node of the program, with the arguments that they are of.

    One by one in their order where that contradicts nothing; else those whose own parameter is an argument, and the
    rest by the ends of names.
    """
    arguments = record.arguments(text)
    if len(uses) == len(arguments) and all(_fits(use, name, record) for use, name in zip(uses, arguments, strict=True)):
        yield from zip(uses, arguments, strict=True)
        return
    rest: list[Use] = []
    for use in uses:
        own = next((name for name in arguments if name in record.sources_of(use.source)), None)
        if own is None:
            rest.append(use)
        else:
            yield use, own
    yield from _alike(rest, [name for name in dict.fromkeys(arguments) if not _is_stored(name, record)], record)


def _alike(uses: Sequence[Use], lacking: Sequence[str], record: Exported) -> Iterator[tuple[Use, str]]:
    """Uses with the parameters that the file lacks, where only one of each has a name that ends alike (``weight``)."""
    for use in uses:
        endings = _endings(use, record)
        names = [name for name in lacking if _ending(name) in endings]
        rivals = [other for other in uses if not _endings(other, record).isdisjoint(endings)]
        if len(names) == len(rivals) == 1:
            yield use, names[0]


def _fits(use: Use, name: str, record: Exported) -> bool:
    """Whether a use may be of a parameter: the file lacks it, or it is what the use's initializer was made of."""
    return name in record.sources_of(use.source) or not _is_stored(name, record)


def _is_stored(name: str, record: Exported) -> bool:
    return any(name in record.sources_of(stored) for stored in record.stored)


def _endings(use: Use, record: Exported) -> set[str]:
    return {_ending(name) for name in record.sources_of(use.source).intersection(record.inputs.values())}


def _ending(name: str) -> str:
    return name.rpartition(".")[2]


@dataclass
class _Parting:
    """Gives uses names of their own; ``readers`` are the uses of each name then."""

    arrays: dict[str, Array]
    record: Exported
    scope: UpgradeScope
    owners: dict[Use, str]
    readers: dict[str, list[Use]] = field(default_factory=dict)
    constants: set[str] = field(default_factory=set)

    def part(self, source: str, uses: Iterable[Use]) -> None:
        """Part the uses of an initializer by owner, and its statistics from each other and from parameters."""
        groups: dict[tuple[int, str], list[Use]] = defaultdict(list)
        for use in uses:
            groups[use.statistic, self._owner(use)].append(use)
        for (statistic, owner), members in sorted(groups.items(), key=lambda item: item[0][0]):
            name = self._name(source, owner)
            self.rename(name, source, members)
            if owner != source and statistic < 0 and self.record.kinds[owner] != PARAMETER:
                self.constants.add(name)

    def _owner(self, use: Use) -> str:
        """Whose a use is: the initializer's, unless it is known to be another's."""
        owner = self.owners.get(use, use.source)
        return use.source if owner in self.record.sources_of(use.source) else owner

    def _name(self, source: str, owner: str) -> str:
        """A name that is not in use: ``source`` for its own first group; the owner's, unless its value was changed."""
        if owner == source and source not in self.readers:
            return source
        return self.scope.fresh(source if source not in self.record.inputs.values() else owner)

    def rename(self, name: str, source: str, uses: list[Use]) -> None:
        """Have uses read a name, which stands for the elements of ``source``."""
        self.arrays[name], self.readers[name] = self.arrays[source], uses
        for use in uses:
            use.node.input[use.operand] = name

    def untie(self, patterns: Sequence[str]) -> None:
        """Give each node its own copy of what matches a pattern."""
        shared = {name: _nodes(uses) for name, uses in self.readers.items() if len(_nodes(uses)) > 1}
        for pattern in patterns:
            if not any(matches(name, [pattern]) for name in shared):
                several = f"what several nodes read: {listed(shared)}"
                raise InputError(f"untie: nothing matches {pattern!r} among {several}")
        for name, nodes in shared.items():
            if matches(name, patterns):
                uses = self.readers[name]
                for position, node in enumerate(nodes):
                    own = [use for use in uses if use.node is node]
                    self.rename(self.scope.fresh(name) if position else name, name, own)

    def explained(self, name: str) -> bool:
        """Whether the file says of all uses of an initializer that they are of the same parameter."""
        return all(use in self.owners or self.record.is_in_module_of(use.node, name) for use in self.readers[name])
