"""Tree ensembles: TreeEnsemble, and the older TreeEnsembleRegressor and TreeEnsembleClassifier.

They compile to a walk down all trees at once (:class:`~glowtrain.ops.ml.walk.TreeWalk`), and a sum over the votes of
the leaves that are reached.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from glowtrain.errors import ShapeError
from glowtrain.graph import Draw, Operator, Sample, Value, constant, operator
from glowtrain.ops.elementwise.logic import Greater, IsInf, Where
from glowtrain.ops.indexing.gather import Gather
from glowtrain.ops.ml.common import (
    Floats,
    Ints,
    Strings,
    Tabular,
    as_floats,
    best_label,
    binary_label,
    check_labels,
    check_transform,
    compute_dtype,
    converted,
    label_numbers,
    label_type,
    result_dtype,
    row,
    transform,
    transformed,
)
from glowtrain.ops.ml.forest import LEAF, MEMBER, MODES, Branches, Forest, forest, leaves_reached
from glowtrain.ops.ml.linear import as_table
from glowtrain.ops.ml.walk import TreeWalk
from glowtrain.ops.reduce.reduction import ReduceMax, ReduceMin, ReduceSum, as_dtype
from glowtrain.ops.tensor.move import Concat, reshape
from glowtrain.types import Array, DType, TensorType, dtype_of, f32, f64

AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
"""How votes are combined, by TreeEnsemble's numbers."""
LEVELS = 16
"""Levels that one kernel walks down."""
LARGEST_VOTES = 1 << 28
"""Elements of the table of votes up to which an ensemble is compiled."""
STEPS = "its result is piecewise constant"
TENSORS = (
    "nodes_values_as_tensor",
    "nodes_hitrates_as_tensor",
    "base_values_as_tensor",
    "target_weights_as_tensor",
    "class_weights_as_tensor",
)
"""Attributes that are f64 tensors, in place of lists of f32."""


@dataclass(frozen=True, eq=False)
class Votes:
    """What the leaves vote: ``weights`` [leaves, columns]; columns without a vote of a leaf are neutral."""

    weights: Array
    aggregate: str

    @classmethod
    def of(cls, aggregate: str, shape: tuple[int, int], leaves: Array, columns: Array, weights: Array) -> Votes:
        """Enter votes one by one. Raises :class:`ShapeError` where they do not fit."""
        if not leaves.size == columns.size == weights.size:
            raise ShapeError("all attributes of votes must have one entry for each vote")
        if shape[0] * shape[1] > LARGEST_VOTES:
            raise ShapeError(f"{shape[0]} leaves with votes for {shape[1]} targets are more than fit a table")
        if columns.size and not 0 <= columns.min() <= columns.max() < shape[1]:
            wrong = columns.min() if columns.min() < 0 else columns.max()
            raise ShapeError(f"a vote is for target {wrong}, but there are {shape[1]}")
        neutral = {"MIN": np.inf, "MAX": -np.inf}.get(aggregate, 0.0)
        table = np.full(shape, neutral)
        combine = {"MIN": np.minimum, "MAX": np.maximum}.get(aggregate, np.add)
        combine.at(table, (leaves, columns), weights)
        return cls(table, aggregate)

    def array(self, leaves: Array) -> Array:
        """Scores [rows, columns] in f64 of the leaves reached, [trees, rows]."""
        found = self.weights[leaves]
        if self.aggregate in ("MIN", "MAX"):
            best = found.min(axis=0) if self.aggregate == "MIN" else found.max(axis=0)
            return np.where(np.isinf(best), 0.0, best)
        total: Array = found.sum(axis=0)
        return total / leaves.shape[0] if self.aggregate == "AVERAGE" else total

    def value(self, leaves: Value, dtype: DType) -> Value:
        """The same as graph code, in ``dtype``."""
        table = constant(self.weights, dtype)
        found: Value = Gather(axis=0)(table, leaves)
        if self.aggregate in ("MIN", "MAX"):
            reduction = ReduceMin if self.aggregate == "MIN" else ReduceMax
            best = reduction(axes=(0,), keepdims=False)(found)
            return Where()(IsInf()(best), 0.0, best)  # type: ignore[no-any-return]
        total: Value = ReduceSum(axes=(0,), keepdims=False)(found)
        return total * (1 / leaves.shape[0]) if self.aggregate == "AVERAGE" else total


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Trees with what their leaves vote: what every ensemble operator is read into."""

    branches: Branches
    roots: Array
    votes: Votes

    @property
    def leaves(self) -> int:
        return int(self.votes.weights.shape[0])

    def canonical(self, dtype: DType) -> Forest:
        return forest(self.branches, self.leaves, self.roots, dtype.numpy)

    def array(self, x: Array) -> Array:
        """Scores [rows, columns] in f64 for a table of floats."""
        return self.votes.array(leaves_reached(self.branches, self.leaves, self.roots, x))

    def value(self, x: Value) -> Value:
        """The same as graph code, in the element type of x."""
        tables = self.canonical(x.dtype)
        nodes: Value = constant(tables.roots[:, None])
        columns: list[Any] = [tables.features, tables.thresholds, tables.children]
        shared = [constant(array) for array in columns]
        if tables.missing is not None:
            shared.append(constant(tables.missing))
        for start in range(0, max(tables.depth, 1), LEVELS):
            nodes = TreeWalk(levels=min(tables.depth - start, LEVELS))(x, nodes, *shared)
        return self.votes.value(nodes, x.dtype)

    def check(self, x: TensorType) -> None:
        """Raises :class:`ShapeError` for broken tables and features that x does not have."""
        tables = self.canonical(compute_dtype(x.dtype))
        used = int(tables.features.max(initial=0))
        if self.branches.features.size and used >= x.shape[-1]:
            raise ShapeError(f"the trees read feature {used}, but there are {x.shape[-1]}")


@dataclass(frozen=True, kw_only=True)
class ListedTrees(Tabular):
    """Trees whose nodes are listed by the numbers of their tree and node: ai.onnx.ml before version 5."""

    nodes_treeids: Ints = ()
    nodes_nodeids: Ints = ()
    nodes_featureids: Ints = ()
    nodes_modes: Strings = ()
    nodes_values: Floats = ()
    nodes_values_as_tensor: Floats = ()
    nodes_truenodeids: Ints = ()
    nodes_falsenodeids: Ints = ()
    nodes_missing_value_tracks_true: Ints = ()
    nodes_hitrates: Floats = ()
    nodes_hitrates_as_tensor: Floats = ()
    base_values: Floats = ()
    base_values_as_tensor: Floats = ()
    post_transform: str = "NONE"
    result: DType = f32

    differentiable: ClassVar[bool] = False
    reason: ClassVar[str] = STEPS

    def __post_init__(self) -> None:
        for name in TENSORS:
            array = getattr(self, name, ())
            if isinstance(array, np.ndarray):
                object.__setattr__(self, name, tuple(array.reshape(-1).tolist()))

    def attributes(self) -> dict[str, Any]:
        """As in ONNX: tensors are arrays of f64."""
        values = super().attributes()
        return values | {name: np.array(values[name]) for name in TENSORS if values.get(name)}

    @property
    def base(self) -> Floats:
        return self.base_values or self.base_values_as_tensor

    def read(self, aggregate: str, columns: int, votes: Sequence[Sequence[float]]) -> Ensemble:
        """The ensemble; ``votes`` lists trees, nodes, columns and weights. Raises :class:`ShapeError`."""
        nodes = _Listed.of(self)
        trees, positions, targets, weights = votes
        at = nodes.find(np.array(trees, np.int64), np.array(positions, np.int64), "a vote")
        leaf = nodes.numbers[at]
        if leaf.size and leaf.max() >= nodes.leaves:
            raise ShapeError("a node that is not a leaf votes")
        entered = np.array(targets, np.int64), np.array(weights, np.float64)
        return Ensemble(nodes.branches, nodes.roots, Votes.of(aggregate, (nodes.leaves, columns), leaf, *entered))


@dataclass(frozen=True, eq=False)
class _Listed:
    """Listed nodes, numbered: leaves first. ``keys`` of trees and nodes increase along ``order``."""

    numbers: Array
    leaves: int
    trees: Array
    span: int
    keys: Array
    order: Array
    branches: Branches
    roots: Array

    @classmethod
    def of(cls, listed: ListedTrees) -> _Listed:
        ids = np.array(listed.nodes_treeids, np.int64)
        trees, first, which = np.unique(ids, return_index=True, return_inverse=True)
        ids, modes = np.array(listed.nodes_nodeids, np.int64), np.array([_mode(name) for name in listed.nodes_modes])
        if not 0 < which.size == ids.size == modes.size:
            raise ShapeError("there must be nodes, and all attributes of nodes must have one entry for each")
        if ids.min() < 0 or ids.max() >= 1 << 31:
            raise ShapeError("node ids must be between 0 and 2³¹ - 1")
        span = int(ids.max()) + 1
        keys = which * span + ids
        order = np.argsort(keys, kind="stable")
        leaf = modes == LEAF
        numbers = np.where(leaf, np.cumsum(leaf) - 1, np.count_nonzero(leaf) + np.cumsum(~leaf) - 1)
        none = np.zeros(0, np.int64)
        empty = Branches(none, none, none, none, none, none)
        part = cls(numbers, int(np.count_nonzero(leaf)), trees, span, keys[order], order, empty, numbers[first])
        if (np.diff(part.keys) == 0).any():
            raise ShapeError("a tree has two nodes with one id")
        branches = part.read(listed, np.flatnonzero(~leaf), which, modes)
        return cls(numbers, part.leaves, trees, span, part.keys, order, branches, part.roots)

    def read(self, listed: ListedTrees, positions: Array, which: Array, modes: Array) -> Branches:
        """The nodes at ``positions``, which are no leaves."""
        count = which.size

        def reordered(values: Sequence[float], dtype: Any) -> Array:
            if len(values) != count:
                raise ShapeError(f"all attributes of nodes must have one entry for each of the {count} nodes")
            return np.array(values, dtype)[positions]

        true, false = (
            self.numbers[self.find(self.trees[which[positions]], reordered(ids, np.int64), "a node")]
            for ids in (listed.nodes_truenodeids, listed.nodes_falsenodeids)
        )
        values = reordered(listed.nodes_values or listed.nodes_values_as_tensor, np.float64)
        missing = reordered(listed.nodes_missing_value_tracks_true or (0,) * count, np.int64)
        return Branches(reordered(listed.nodes_featureids, np.int64), values, modes[positions], true, false, missing)

    def find(self, trees: Array, ids: Array, what: str) -> Array:
        """Where nodes are listed. Raises :class:`ShapeError` for nodes that are not."""
        rank = np.minimum(np.searchsorted(self.trees, trees), self.trees.size - 1)
        wanted = rank * self.span + ids
        position = np.minimum(np.searchsorted(self.keys, wanted), self.keys.size - 1)
        wrong = (self.keys[position] != wanted) | (self.trees[rank] != trees) | (ids < 0) | (ids >= self.span)
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            raise ShapeError(f"{what} names node {ids[at]} of tree {trees[at]}, which does not exist")
        return self.order[position]


def _mode(name: str) -> int:
    if name not in MODES or name == MODES[MEMBER]:
        raise ShapeError(f"{name!r} is no mode of a node; modes are {', '.join(set(MODES) - {MODES[MEMBER]})}")
    return MODES.index(name)


@operator
@dataclass(frozen=True, kw_only=True)
class TreeEnsembleRegressor(ListedTrees):
    """Scores [rows, targets]: votes of the leaves combined, plus base values, then ``post_transform``."""

    n_targets: int
    aggregate_function: str = "SUM"
    target_treeids: Ints = ()
    target_nodeids: Ints = ()
    target_ids: Ints = ()
    target_weights: Floats = ()
    target_weights_as_tensor: Floats = ()

    @cached_property
    def ensemble(self) -> Ensemble:
        weights = self.target_weights or self.target_weights_as_tensor
        votes = (self.target_treeids, self.target_nodeids, self.target_ids, weights)
        return self.read(self.aggregate_function, self.n_targets, votes)

    def infer(self, *inputs: TensorType) -> TensorType:
        x = self.table(*inputs)
        check_transform(self, self.post_transform, x)
        if self.aggregate_function not in AGGREGATES or self.n_targets < 1:
            raise self.fail(f"aggregate_function must be one of {', '.join(AGGREGATES)}, n_targets positive", x)
        if len(self.base) not in (0, self.n_targets):
            raise self.fail(f"needs one base value for each target, not {len(self.base)}", x)
        checked(self, lambda: self.ensemble, x)
        return TensorType(result_dtype(self.result, x.dtype), (as_table(x.shape)[0], self.n_targets))

    def reference(self, x: Array) -> Array:
        table = np.atleast_2d(as_floats(x))
        scores = self.ensemble.array(table) + np.array(self.base or (0.0,))
        final = transform(self.post_transform, scores.astype(table.dtype))
        return final.astype(result_dtype(self.result, dtype_of(x.dtype)).numpy)

    def decompose(self, x: Value) -> Value:
        scores = self.ensemble.value(float_table(x))
        scores = scores + row(self.base, scores.dtype) if self.base else scores
        return converted(transformed(self.post_transform, scores), self.result, x.dtype)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        """Several targets only where votes are summed: every one has a score then, whatever runs the model."""
        aggregate = draw.choice(AGGREGATES)
        columns = draw.integer(1, 3) if aggregate in ("SUM", "AVERAGE") else 1
        nodes, leaves = draw_trees(draw)
        trees, ids = zip(*leaves, strict=True)
        targets = tuple(k % columns for k in range(len(leaves)))
        weights = tuple(draw.floats((len(leaves),)).tolist())
        base = tuple(draw.floats((columns,)).tolist()) if draw.boolean() else ()
        op = cls(**nodes, n_targets=columns, aggregate_function=aggregate, target_treeids=trees, target_nodeids=ids,
                 target_ids=targets, target_weights=weights, base_values=base, result=f64,
                 post_transform=draw.choice(("NONE", "LOGISTIC", "SOFTMAX")) if columns > 1 else "NONE")  # fmt: skip
        return Sample(op, (draw_features(draw),))


@operator
@dataclass(frozen=True, kw_only=True)
class TreeEnsembleClassifier(ListedTrees):
    """Labels (i64) and scores [rows, classes]: votes of the leaves summed, plus base values, then ``post_transform``.

    Where all votes are for the first of two classes they are the score s of the second: the label is the second if
    s > 0.5 (no vote is negative) or s > 0 (some are), the scores are 1 - s and s or -s and s, and LOGISTIC is the only
    transform. Labels that are strings are given by their positions in the list.
    """

    classlabels_int64s: Ints = ()
    classlabels_strings: Strings = ()
    class_treeids: Ints = ()
    class_nodeids: Ints = ()
    class_ids: Ints = ()
    class_weights: Floats = ()
    class_weights_as_tensor: Floats = ()

    @property
    def weights(self) -> Floats:
        return self.class_weights or self.class_weights_as_tensor

    @property
    def labels(self) -> Ints:
        return label_numbers(self.classlabels_int64s, self.classlabels_strings)

    @property
    def one_score(self) -> bool:
        """Whether all votes are for the first of two classes."""
        return len(self.labels) == 2 and set(self.class_ids) == {0}

    @property
    def threshold(self) -> float:
        return 0.5 if min(self.weights, default=0.0) >= 0 else 0.0

    @cached_property
    def ensemble(self) -> Ensemble:
        votes = (self.class_treeids, self.class_nodeids, self.class_ids, self.weights)
        return self.read("SUM", 1 if self.one_score else len(self.labels), votes)

    def infer(self, *inputs: TensorType) -> tuple[TensorType, TensorType]:
        x = self.table(*inputs)
        check_transform(self, self.post_transform, x)
        classes = check_labels(self, self.classlabels_int64s, self.classlabels_strings, x)
        if classes < 2:
            raise self.fail("needs at least two class labels", x)
        if len(self.base) not in ((0, 1, 2) if self.one_score else (0, classes)):
            raise self.fail(f"needs one base value for each class, not {len(self.base)}", x)
        checked(self, lambda: self.ensemble, x)
        return label_type(x), TensorType(result_dtype(self.result, x.dtype), (as_table(x.shape)[0], classes))

    def reference(self, x: Array) -> tuple[Array, Array]:
        table, labels = np.atleast_2d(as_floats(x)), np.array(self.labels, np.int64)
        scores = self.ensemble.array(table).astype(table.dtype)
        if self.one_score:
            score = scores + np.array(self.base[:1] or (0.0,), table.dtype)
            found = labels[(score[:, 0] > self.threshold).astype(int)]
            other = -score if self.post_transform == "LOGISTIC" or not self.threshold else 1 - score
            both = np.concatenate([other, score], axis=1)
            final = transform(self.post_transform, both) if self.post_transform in ("LOGISTIC", "PROBIT") else both
        else:
            scores = scores + np.array(self.base or (0.0,), table.dtype)
            found, final = labels[scores.argmax(axis=1)], transform(self.post_transform, scores)
        return found, final.astype(result_dtype(self.result, dtype_of(x.dtype)).numpy)

    def decompose(self, x: Value) -> Any:
        scores = self.ensemble.value(float_table(x))
        base = self.base[:1] if self.one_score else self.base
        scores = scores + row(base, scores.dtype) if base else scores
        if self.one_score:
            found = binary_label(Greater()(reshape(scores, (scores.shape[0],)), self.threshold), self.labels)
            other = -scores if self.post_transform == "LOGISTIC" or not self.threshold else 1.0 - scores
            both: Value = Concat(axis=1)(other, scores)
            final = transformed(self.post_transform, both) if self.post_transform in ("LOGISTIC", "PROBIT") else both
        else:
            found, final = best_label(scores, self.labels), transformed(self.post_transform, scores)
        return found, converted(final, self.result, x.dtype)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        classes = draw.integer(2, 4)
        nodes, leaves = draw_trees(draw)
        trees, ids = zip(*leaves, strict=True)
        single = classes == 2 and draw.boolean()
        voted = tuple(0 if single else k % classes for k in range(len(leaves)))
        weights = tuple(draw.floats((len(leaves),), 0.1 if draw.boolean() else -1.0, 1.0, avoid=(0.0,)).tolist())
        base = tuple(draw.floats((1 if single else classes,)).tolist()) if draw.boolean() else ()
        op = cls(**nodes, classlabels_int64s=tuple(range(5, 5 + classes)), class_treeids=trees, class_nodeids=ids,
                 class_ids=voted, class_weights=weights, base_values=base, result=f64,
                 post_transform=draw.choice(("NONE", "LOGISTIC", "SOFTMAX")))  # fmt: skip
        return Sample(op, (draw_features(draw),))


def checked(operator_: Operator, ensemble: Callable[[], Ensemble], x: TensorType) -> None:
    """Read an ensemble and check it against its operand. The error names the operator without its long tables."""
    try:
        ensemble().check(x)
    except ShapeError as error:
        raise ShapeError(f"{operator_.key()} on {x}: {error}") from None


def float_table(x: Value) -> Value:
    """The operand as a table of floats."""
    return reshape(as_dtype(x, compute_dtype(x.dtype)), as_table(x.shape))


def draw_features(draw: Draw) -> Array:
    """A table of three features, with a NaN now and then, and some elements that are thresholds."""
    x = np.round(draw.floats((draw.integer(1, 6), 3)) * 2) / 2
    return x if draw.boolean() else np.where(draw.integers(x.shape, 0, 4) == 0, np.nan, x)


def draw_trees(draw: Draw) -> tuple[dict[str, Any], list[tuple[int, int]]]:
    """Attributes of up to three random trees, one of which may be a single leaf; and the (tree, node) of every leaf."""
    rows: list[tuple[Any, ...]] = []
    leaves: list[tuple[int, int]] = []
    for tree in range(draw.integer(1, 3)):
        branches = draw.integer(0, 4)
        for node in range(2 * branches + 1):
            if node >= branches:
                leaves.append((tree, node))
            mode = MODES[draw.integer(0, 5)] if node < branches else "LEAF"
            children = (2 * node + 1, 2 * node + 2) if node < branches else (0, 0)
            rows.append((tree, node, draw.integer(0, 2), mode, draw.integer(-2, 2) / 2, *children, draw.integer(0, 1)))
    names = ("treeids", "nodeids", "featureids", "modes", "values", "truenodeids", "falsenodeids")
    columns = dict(zip((*names, "missing_value_tracks_true"), zip(*rows, strict=True), strict=True))
    return {f"nodes_{name}": column for name, column in columns.items()}, leaves
