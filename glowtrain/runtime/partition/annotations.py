"""What a person says about stages: where they begin, and which layers are of which."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from glowtrain.errors import PartitionError
from glowtrain.graph import Node
from glowtrain.names import matches
from glowtrain.presentation.messages import listed
from glowtrain.runtime.partition.positions import Positions


def begun_at(cuts: Sequence[str], positions: Positions) -> list[int]:
    """The positions at which stages begin: those of the first nodes of layers, or that make values, of these names (or
    patterns of names), in order.

    Raises :class:`PartitionError` for a name that nothing has, for one at which everything begins, and for several that
    mean the same place.
    """
    found = [_first(name, positions, f"cuts: nothing is called {name!r}") for name in cuts]
    for name, position in zip(cuts, found, strict=True):
        if position == 0:
            raise PartitionError(f"cuts: {name!r} is where the network begins; name layers after it")
        if found.count(position) > 1:
            twice = [name for name, other in zip(cuts, found, strict=True) if other == position]
            raise PartitionError(f"cuts: {listed(twice)} begin at the same place; name one of them")
    return sorted(found)


def stages_of(stages: Mapping[str, int], homes: Mapping[str, int], positions: Positions) -> dict[int, int]:
    """The stage of each position that one of the patterns of layers' names says something about, or where a variable is
    whose stage is in ``homes``, by name.

    Raises :class:`PartitionError` for a pattern that fits no layer, for what is no stage, and for layers that have
    another stage after a later one.
    """
    for pattern, stage in stages.items():
        _first(pattern, positions, f"stages: nothing is called {pattern!r}")
        if stage < 0:
            raise PartitionError(f"stages: {pattern!r} is given stage {stage!r}; stages are counted from 0")
    found = _with_variables(homes, positions)
    for position, node in enumerate(positions.forward):
        for pattern, stage in stages.items():
            if _is_called(node, pattern) and found.setdefault(position, stage) != stage:
                raise PartitionError(f"stages: {node.layer} is of stage {found[position]} and of stage {stage}")
    for before, after in pairwise(sorted(found)):
        if found[before] > found[after]:
            first, second = (positions.forward[position].layer for position in (before, after))
            raise PartitionError(
                f"stages: {second} is of stage {found[after]}, but comes after {first} of stage {found[before]}: "
                "stages follow one another as the layers do"
            )
    return found


def _with_variables(homes: Mapping[str, int], positions: Positions) -> dict[int, int]:
    found: dict[int, int] = {}
    for variable, position in positions.of_variable.items():
        stage = homes.get(variable.name)
        if stage is not None and found.setdefault(position, stage) != stage:
            raise PartitionError(f"like: variable {variable.name} is of stage {stage}, others beside it of another one")
    return found


def _first(name: str, positions: Positions, what: str) -> int:
    for position, node in enumerate(positions.forward):
        if _is_called(node, name):
            return position
    layers = dict.fromkeys(node.layer for node in positions.forward if node.layer)
    raise PartitionError(f"{what}; the layers are {listed(list(layers))}")


def _is_called(node: Node, name: str) -> bool:
    return any(matches(own, (name, f"{name}.*")) for own in _names(node))


def _names(node: Node) -> Iterator[str]:
    """The names of a node: its layer's, its own and those of its results."""
    yield from (name for name in (node.layer, node.name, *(value.name for value in node.outputs)) if name)
