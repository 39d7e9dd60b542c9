"""Tree ensembles as tables: every way that ONNX writes them becomes one canonical form.

In the canonical form node k has two children, reached with ``x[features[k]] <= thresholds[k]`` and otherwise; a leaf is
its own child, and the leaves come first, so that a leaf's number is the row of its votes. Other comparisons are
rewritten: x < t is x <= (the largest number below t), x > t is x <= t with its children exchanged, x = t takes two
nodes, membership in a set a balanced search tree (with two nodes for each member).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from glowtrain.errors import ShapeError
from glowtrain.types import Array

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER", "LEAF")
"""The comparisons, by TreeEnsemble's numbers; LEAF is for the older operators."""
DEEPEST = 4096
"""Levels of a tree up to which it is compiled."""
LEQ, LT, GTE, GT, EQ, NEQ, MEMBER, LEAF = range(len(MODES))


@dataclass(frozen=True)
class Branches:
    """The nodes that branch, as ONNX gives them: all arrays have one entry for each.

    ``true`` and ``false`` number leaves from 0 to ``leaves`` - 1 and branches after them. ``missing``: NaN goes to
    ``true``. ``members``: the sets of the nodes with mode MEMBER, in order.
    """

    features: Array
    values: Array
    modes: Array
    true: Array
    false: Array
    missing: Array
    members: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, eq=False)
class Forest:
    """An ensemble in canonical form; ``children`` is [nodes, 2], ``roots`` has one node for each tree.

    ``missing`` says for each node whether NaN goes to the first child; ``None`` if it never does. ``depth`` is how many
    steps the longest way to a leaf takes.
    """

    features: Array
    thresholds: Array
    children: Array
    missing: Array | None
    roots: Array
    depth: int


def forest(branches: Branches, leaves: int, roots: Array, dtype: np.dtype[Any]) -> Forest:
    """The canonical form, with thresholds for operands of ``dtype``. Raises :class:`ShapeError` for broken tables."""
    _check(branches, leaves, roots)
    table = _Table.of(branches, leaves, dtype)
    children = np.stack([table.first, table.second], axis=1)
    missing = table.missing if table.missing.any() else None
    depth = _depth(children, leaves, roots)
    return Forest(table.features, table.thresholds, children.astype(np.int32), missing, roots.astype(np.int32), depth)


def _check(branches: Branches, leaves: int, roots: Array) -> None:
    lengths = {array.size for array in (branches.features, branches.values, branches.modes, branches.true)}
    if len(lengths | {branches.false.size, branches.missing.size}) > 1:
        raise ShapeError("all attributes of nodes must have one entry for each node")
    nodes = leaves + branches.features.size
    for array in (branches.true, branches.false, roots):
        if array.size and not 0 <= array.min() <= array.max() < nodes:
            raise ShapeError("a node has a child that does not exist")
    if branches.features.size and not 0 <= branches.features.min() <= branches.features.max() < 1 << 31:
        raise ShapeError(f"a node reads feature {branches.features.min()} or {branches.features.max()}")
    if not np.isin(branches.modes, np.arange(LEAF)).all():
        raise ShapeError(f"a node has an unknown mode; modes are {', '.join(MODES)}")
    if np.count_nonzero(branches.modes == MEMBER) != len(branches.members):
        raise ShapeError("there must be one set of members for each node with mode BRANCH_MEMBER")


def _depth(children: Array, leaves: int, roots: Array) -> int:
    """Steps from the roots until only leaves are left. Raises :class:`ShapeError` for a cycle."""
    frontier, depth = np.unique(roots), 0
    while frontier.size and frontier[-1] >= leaves:
        frontier = np.unique(children[frontier[frontier >= leaves]])
        depth += 1
        if depth > DEEPEST:
            raise ShapeError(f"a tree is deeper than {DEEPEST} levels, or a node is below itself")
    return depth


def at_most(values: Array, dtype: np.dtype[Any]) -> Array:
    """The largest numbers of ``dtype`` that are not above ``values``."""
    with np.errstate(over="ignore"):
        near = values.astype(dtype)
    wide = near.astype(np.float64)
    return np.where(wide > values, np.nextafter(near, dtype.type(-np.inf)), near)


def below(values: Array, dtype: np.dtype[Any]) -> Array:
    """The largest numbers of ``dtype`` that are less than ``values``."""
    near = at_most(values, dtype)
    return np.where(near.astype(np.float64) >= values, np.nextafter(near, dtype.type(-np.inf)), near)


@dataclass
class _Table:
    """Canonical nodes; those of comparisons that need several are appended at the end."""

    features: Array
    thresholds: Array
    first: Array
    second: Array
    missing: Array
    dtype: np.dtype[Any]
    extra: list[tuple[int, float, int, int, bool]] = field(default_factory=list)

    @classmethod
    def of(cls, branches: Branches, leaves: int, dtype: np.dtype[Any]) -> _Table:
        modes, values = branches.modes, branches.values.astype(np.float64)
        swapped = np.isin(modes, (GTE, GT, NEQ))
        thresholds = np.where(np.isin(modes, (LT, GTE)), below(values, dtype), at_most(values, dtype))
        itself = np.arange(leaves)
        table = cls(
            np.concatenate([np.zeros(leaves, np.int32), branches.features.astype(np.int32)]),
            np.concatenate([np.zeros(leaves, dtype), thresholds.astype(dtype)]),
            np.concatenate([itself, np.where(swapped, branches.false, branches.true)]),
            np.concatenate([itself, np.where(swapped, branches.true, branches.false)]),
            np.concatenate([np.zeros(leaves, np.bool_), branches.missing.astype(np.bool_) != swapped]),
            dtype,
        )
        table.expand(branches, leaves)
        return table

    def expand(self, branches: Branches, leaves: int) -> None:
        """Rewrite the nodes that test for equality."""
        members = iter(branches.members)
        for position in np.flatnonzero(np.isin(branches.modes, (EQ, NEQ, MEMBER))):
            mode, node = int(branches.modes[position]), leaves + int(position)
            values = next(members) if mode == MEMBER else (float(branches.values[position]),)
            found = self._search(node, sorted(values), int(self.first[node]), int(self.second[node]))
            self.thresholds[node], self.missing[node] = found[1], found[4]
            self.first[node], self.second[node] = found[2], found[3]
        if self.extra:
            self._append()

    def _search(self, node: int, values: Sequence[float], yes: int, no: int) -> tuple[int, float, int, int, bool]:
        """A node from which ``yes`` is reached if x is one of ``values``, else ``no``; NaN goes as at ``node``."""
        feature, nan = int(self.features[node]), bool(self.missing[node])
        if len(values) > 1:
            half = len(values) // 2
            limit = float(at_most(np.array(values[half - 1]), self.dtype))
            left = self._added(self._search(node, values[:half], yes, no))
            return feature, limit, left, self._added(self._search(node, values[half:], yes, no)), False
        value = np.array(values[0]) if values else np.array(np.nan)
        lower = self._added((feature, float(below(value, self.dtype)), no, yes, False))
        return feature, float(at_most(value, self.dtype)), lower, no, nan

    def _added(self, node: tuple[int, float, int, int, bool]) -> int:
        self.extra.append(node)
        return self.features.size + len(self.extra) - 1

    def _append(self) -> None:
        features, thresholds, first, second, missing = zip(*self.extra, strict=True)
        self.features = np.concatenate([self.features, np.array(features, np.int32)])
        self.thresholds = np.concatenate([self.thresholds, np.array(thresholds, self.dtype)])
        self.first, self.second = np.concatenate([self.first, first]), np.concatenate([self.second, second])
        self.missing = np.concatenate([self.missing, np.array(missing, np.bool_)])


def leaves_reached(branches: Branches, leaves: int, roots: Array, x: Array) -> Array:
    """The leaf that each row of x [rows, features] reaches in each tree, [trees, rows]: ONNX's definition in NumPy."""
    nodes = np.repeat(roots.astype(np.int64)[:, None], x.shape[0], axis=1)
    rows = np.broadcast_to(np.arange(x.shape[0]), nodes.shape)
    sets = dict(zip(np.flatnonzero(branches.modes == MEMBER).tolist(), branches.members, strict=True))
    while (nodes >= leaves).any():
        active = nodes >= leaves
        at = nodes[active] - leaves
        values = x[rows[active], branches.features[at]]
        chosen = np.where(np.isnan(values), branches.missing[at] != 0, _holds(branches, at, values, sets))
        nodes[active] = np.where(chosen, branches.true[at], branches.false[at])
    return nodes


def _holds(branches: Branches, at: Array, values: Array, sets: dict[int, tuple[float, ...]]) -> Array:
    """Whether each value passes the comparison of its node."""
    limits, modes = branches.values[at].astype(np.float64), branches.modes[at]
    wide = values.astype(np.float64)
    member = np.array([value in sets.get(node, ()) for value, node in zip(wide.tolist(), at.tolist(), strict=True)])
    comparisons = (wide <= limits, wide < limits, wide >= limits, wide > limits, wide == limits, wide != limits)
    return np.select([modes == mode for mode in range(MEMBER)], comparisons, member)
