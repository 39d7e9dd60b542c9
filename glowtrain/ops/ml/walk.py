"""TreeWalk: down all trees at once, through tables of nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Draw, Operator, Sample, Value, operator
from glowtrain.loops import Const, Expr, For, Let, Ref, Statement, Tensor, call, cast, indices_of, select
from glowtrain.ops.elementwise.logic import And, IsNaN, LessOrEqual, Not, Or
from glowtrain.ops.indexing.gather import Gather, GatherElements
from glowtrain.ops.reduce.reduction import as_dtype
from glowtrain.ops.tensor.move import Expand, Transpose, reshape
from glowtrain.types import Array, TensorType, i32, i64


@operator
@dataclass(frozen=True)
class TreeWalk(Operator):
    """Walk ``levels`` steps down from nodes: [trees, rows], i32.

    Operands: the table x [rows, features], start nodes that broadcast to [trees, rows], and of all nodes their
    features, thresholds, children [nodes, 2], and optionally whether NaN goes to the first child. The first child
    follows where x <= threshold.
    """

    levels: int

    domain: ClassVar[str] = "glowtrain"
    differentiable: ClassVar[bool] = False
    reason: ClassVar[str] = "node numbers are integers"

    def infer(self, *inputs: TensorType | None) -> TensorType:
        if len(inputs) not in (5, 6) or any(type_ is None for type_ in inputs[:5]):
            raise self.fail("takes a table, start nodes, features, thresholds, children, and where NaN goes", *inputs)
        x, start, features, thresholds, children = (type_ for type_ in inputs[:5] if type_ is not None)
        nodes = features.shape
        tables = {type_.shape[:1] for type_ in inputs[2:] if type_ is not None}
        if tables != {nodes} or children.shape != (*nodes, 2) or thresholds.dtype != x.dtype:
            raise self.fail("the tables of nodes do not fit each other, or the element type of x", *inputs)
        numbers = {start.dtype, features.dtype, children.dtype}
        if not x.dtype.is_float or numbers != {i32} or x.rank != 2 or start.rank != 2:
            raise self.fail("x (floats) and the start nodes must have rank 2; nodes and features are i32", *inputs)
        if start.shape[1] not in (1, x.shape[0]):
            raise self.fail("there must be one start node for each row of x, or one for all", *inputs)
        return TensorType(i32, (start.shape[0], x.shape[0]))

    def reference(self, *inputs: Any) -> Array:
        x, start, features, thresholds, children = inputs[:5]
        missing = inputs[5] if len(inputs) > 5 else None
        rows = np.arange(x.shape[0])
        nodes = np.broadcast_to(start, (start.shape[0], x.shape[0]))
        for _ in range(self.levels):
            values = x[rows, features[nodes]]
            first = values <= thresholds[nodes]
            if missing is not None:
                first |= np.isnan(values) & missing[nodes]
            nodes = children[nodes, np.where(first, 0, 1)]
        return np.ascontiguousarray(nodes, np.int32)

    def decompose(self, *inputs: Any) -> Value:
        x, start, features, thresholds, children = inputs[:5]
        missing = inputs[5] if len(inputs) > 5 else None
        nodes: Value = Expand(shape=(start.shape[0], x.shape[0]))(start)
        columns, following = Transpose(perm=(1, 0))(x), reshape(children, (children.type.size,))
        for _ in range(self.levels):
            value = GatherElements(axis=0)(columns, Gather()(features, nodes))
            first = LessOrEqual()(value, Gather()(thresholds, nodes))
            if missing is not None:
                first = Or()(first, And()(IsNaN()(value), Gather()(missing, nodes)))
            nodes = Gather()(following, nodes * 2 + as_dtype(Not()(first), i32))
        return nodes

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Any) -> list[Statement]:
        x, start, features, thresholds, children = inputs[:5]
        missing = inputs[5] if len(inputs) > 5 else None
        (y,) = outputs
        tree, sample = at = indices_of(y.shape)
        body: list[Statement] = []
        node: Expr = cast(start.broadcast(at), i64)
        for level in range(self.levels):
            value = x[sample, cast(features[(node,)], i64)]
            first = value <= thresholds[(node,)]
            if missing is not None:
                first = first | (call("isnan", value) & missing[(node,)])
            ref = Ref(i64, f"node{level}")
            body.append(Let(ref, cast(children[(node, select(first, Const(0, i64), Const(1, i64)))], i64)))
            node = ref
        return [For((tree, sample), (*body, y.store(at, node)))]

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        """Tables of three leaves and two branches, with a NaN now and then."""
        rows, trees = draw.integer(1, 5), draw.choice((1, 3))
        x = draw.floats((rows, 3), avoid=(0.0, 0.5))
        children = np.array([[0, 0], [1, 1], [2, 2], [4, 0], [1, 2]], np.int32)
        thresholds = np.array([0.0, 0, 0, 0.0, 0.5])
        start = np.array(draw.integers((trees, draw.choice((1, rows))), 0, 4), np.int32)
        features = np.array([0, 0, 0, 2, 1], np.int32)
        tables: tuple[Array | None, ...] = (x, start, features, thresholds, children)
        if draw.boolean():
            tables = (np.where(draw.booleans(x.shape), x, np.nan), *tables[1:], np.array([0, 0, 0, 1, 0], np.bool_))
        return Sample(cls(draw.integer(0, 3)), tables)
