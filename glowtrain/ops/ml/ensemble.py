"""TreeEnsemble, which takes the place of the two older operators since version 5 of ai.onnx.ml."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from glowtrain.errors import ShapeError
from glowtrain.graph import Draw, Sample, Value, operator
from glowtrain.ops.ml.common import TRANSFORMS, Floats, Ints, Tabular, transform, transformed
from glowtrain.ops.ml.forest import LEAF, MEMBER, Branches
from glowtrain.ops.ml.trees import AGGREGATES, STEPS, Ensemble, Votes, checked, draw_features, float_table
from glowtrain.ops.reduce.reduction import as_dtype
from glowtrain.types import Array, DType, TensorType, dtype_of, f16, f32, f64


@operator
@dataclass(frozen=True)
class TreeEnsemble(Tabular):
    """Scores [rows, targets]: votes of the leaves combined, then ``post_transform``; each leaf votes for one target.

    Only nodes that branch are listed; ``nodes_trueleafs`` and ``nodes_falseleafs`` say which of their children are
    leaves. The sets of BRANCH_MEMBER nodes stand in ``membership_values`` one after another, each ended by NaN.
    Tensors may be given as arrays; ``dtype`` is the element type of the weights.
    """

    nodes_featureids: Ints
    nodes_modes: Any
    nodes_splits: Any
    nodes_truenodeids: Ints
    nodes_trueleafs: Ints
    nodes_falsenodeids: Ints
    nodes_falseleafs: Ints
    leaf_targetids: Ints
    leaf_weights: Any
    tree_roots: Ints
    n_targets: int
    aggregate_function: int = 1
    post_transform: int = 0
    membership_values: Any = ()
    nodes_missing_value_tracks_true: Ints = ()
    nodes_hitrates: Any = ()
    dtype: DType = f32

    differentiable: ClassVar[bool] = False
    reason: ClassVar[str] = STEPS

    def __post_init__(self) -> None:
        if isinstance(self.leaf_weights, np.ndarray):
            object.__setattr__(self, "dtype", dtype_of(self.leaf_weights.dtype))
        for name in ("nodes_modes", "nodes_splits", "leaf_weights", "membership_values", "nodes_hitrates"):
            array = getattr(self, name)
            if isinstance(array, np.ndarray):
                object.__setattr__(self, name, tuple(array.reshape(-1).tolist()))

    def attributes(self) -> dict[str, Any]:
        """As in ONNX: tensors are arrays of the weights' element type, modes of u8."""
        values = {name: value for name, value in super().attributes().items() if name != "dtype"}
        values["nodes_modes"] = np.array(self.nodes_modes, np.uint8)
        for name in ("nodes_splits", "leaf_weights", "membership_values", "nodes_hitrates"):
            values[name] = np.array(values[name], self.dtype.numpy) if values[name] else ()
        return values

    @cached_property
    def ensemble(self) -> Ensemble:
        """Raises :class:`ShapeError` for tables that do not fit each other."""
        leaves = len(self.leaf_weights)
        columns = (self.nodes_truenodeids, self.nodes_trueleafs, self.nodes_falsenodeids, self.nodes_falseleafs)
        if len({len(column) for column in columns}) > 1:
            raise ShapeError("all attributes of nodes must have one entry for each node")
        branches = Branches(
            np.array(self.nodes_featureids, np.int64),
            np.array(self.nodes_splits, np.float64),
            np.array(self.nodes_modes, np.int64),
            _children(self.nodes_truenodeids, self.nodes_trueleafs, leaves, len(self.nodes_featureids)),
            _children(self.nodes_falsenodeids, self.nodes_falseleafs, leaves, len(self.nodes_featureids)),
            np.array(self.nodes_missing_value_tracks_true or (0,) * len(self.nodes_featureids), np.int64),
            self._members(),
        )
        positions = np.arange(leaves), np.array(self.leaf_targetids, np.int64), np.array(self.leaf_weights, np.float64)
        votes = Votes.of(AGGREGATES[self.aggregate_function], (leaves, self.n_targets), *positions)
        roots = np.array(self.tree_roots, np.int64)
        if roots.size == 0 or roots.min() < 0:
            raise ShapeError("tree_roots must name the first node of each tree")
        return Ensemble(branches, roots + leaves, votes)

    def _members(self) -> tuple[Floats, ...]:
        sets: list[list[float]] = [[]]
        for value in self.membership_values:
            if value == value:
                sets[-1].append(value)
            else:
                sets.append([])
        return tuple(map(tuple, sets))[: sum(1 for mode in self.nodes_modes if mode == MEMBER)]

    def infer(self, *inputs: TensorType) -> TensorType:
        if len(inputs) != 1 or inputs[0].dtype not in (f16, f32, f64) or inputs[0].rank != 2:
            raise self.fail("takes 1 table [rows, features] of f16, f32 or f64", *inputs)
        (x,) = inputs
        if not 0 <= self.aggregate_function < len(AGGREGATES) or not 0 <= self.post_transform < len(TRANSFORMS):
            raise self.fail("aggregate_function is 0 to 3, post_transform 0 to 4", x)
        if self.n_targets < 1:
            raise self.fail("n_targets must be positive", x)
        checked(self, lambda: self.ensemble, x)
        return x.with_shape((x.shape[0], self.n_targets))

    def reference(self, x: Array) -> Array:
        wide = x.astype(np.float32) if x.dtype == np.float16 else x
        scores = self.ensemble.array(wide).astype(wide.dtype)
        return transform(TRANSFORMS[self.post_transform], scores).astype(x.dtype)

    def decompose(self, x: Value) -> Value:
        scores = self.ensemble.value(float_table(x))
        return as_dtype(transformed(TRANSFORMS[self.post_transform], scores), x.dtype)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        """One to three trees of one or three nodes, all comparisons; one target where votes are not summed."""
        count, aggregate = draw.choice((1, 3)), draw.integer(0, 3)
        targets = draw.integer(1, 2) if aggregate < 2 else 1
        modes = [draw.integer(0, LEAF - 1) for _ in range(count)]
        sets = [[*draw.integers((draw.integer(0, 4),), -3, 3) / 2, np.nan] for mode in modes if mode == MEMBER]
        small = count == 1
        op = cls(
            nodes_featureids=tuple(draw.integer(0, 2) for _ in modes),
            nodes_modes=np.array(modes, np.uint8),
            nodes_splits=draw.integers((count,), -2, 2) / 2,
            nodes_truenodeids=(0,) if small else (1, 0, 2),
            nodes_trueleafs=(1,) if small else (0, 1, 1),
            nodes_falsenodeids=(1,) if small else (2, 1, 3),
            nodes_falseleafs=(1,) if small else (0, 1, 1),
            leaf_targetids=tuple(draw.integer(0, targets - 1) for _ in range(2 if small else 4)),
            leaf_weights=draw.floats((2 if small else 4,)),
            tree_roots=(0, 0) if small else (0, 1, 2),
            n_targets=targets,
            aggregate_function=aggregate,
            post_transform=draw.integer(0, 2) if targets > 1 else 0,
            membership_values=np.array([value for values in sets for value in values]),
            nodes_missing_value_tracks_true=tuple(draw.integer(0, 1) for _ in modes),
        )
        return Sample(op, (draw_features(draw).astype(f64.numpy),))


def _children(ids: Ints, leaf: Ints, leaves: int, branches: int) -> Array:
    """Numbers of children: leaves first. Raises :class:`ShapeError` for one that does not exist."""
    numbers, is_leaf = np.array(ids, np.int64), np.array(leaf, np.int64) != 0
    limit = np.where(is_leaf, leaves, branches)
    if ((numbers < 0) | (numbers >= limit)).any():
        raise ShapeError("a node has a child that does not exist")
    return np.where(is_leaf, numbers, numbers + leaves)
