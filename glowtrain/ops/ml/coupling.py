"""Probabilities of classes from those of their pairs.

T.-F. Wu, C.-J. Lin, R. C. Weng: Probability Estimates for Multi-class Classification by Pairwise Coupling (2004),
algorithm 2: minimize the sum over pairs of (r_ji p_i - r_ij p_j)² by coordinates, until the optimality condition holds
to 0.005 / classes. Other runtimes stop there too, so this is what they give.
"""

from __future__ import annotations

import itertools

import numpy as np

from glowtrain.graph import Graph, Input, Value, constant
from glowtrain.ops.contraction.products import MatMul
from glowtrain.ops.control.scan import Scan
from glowtrain.ops.elementwise.activation import Sigmoid
from glowtrain.ops.elementwise.arithmetic import Abs
from glowtrain.ops.elementwise.extrema import Clip
from glowtrain.ops.elementwise.logic import GreaterOrEqual, Where
from glowtrain.ops.reduce.reduction import ReduceMax, ReduceSum, filled
from glowtrain.ops.tensor.move import Slice, Transpose, Unsqueeze, reshape
from glowtrain.types import Array, TensorType

LEAST = 1e-7
"""Pairwise probabilities are kept this far from 0 and 1."""
STEPS = 100
TOLERANCE = 0.005


def coupled_array(scores: Array, slope: Array, offset: Array) -> Array:
    """Probabilities [rows, classes] from scores of pairs [rows, pairs], in NumPy."""
    count = round((1 + np.sqrt(1 + 8 * scores.shape[1])) / 2)
    likely = np.clip(0.5 - 0.5 * np.tanh(0.5 * (scores * slope + offset)), LEAST, 1 - LEAST)
    r = np.zeros((scores.shape[0], count, count), scores.dtype)
    for position, (i, j) in enumerate(itertools.combinations(range(count), 2)):
        r[:, i, j], r[:, j, i] = likely[:, position], 1 - likely[:, position]
    q = -r * r.transpose(0, 2, 1)
    q[:, range(count), range(count)] = (r * r).sum(axis=1)
    p = np.full((scores.shape[0], count), 1 / count, scores.dtype)
    for _ in range(max(STEPS, count)):
        p = _step_array(p, q)
    return p


def _step_array(p: Array, q: Array) -> Array:
    before, qp = p, np.einsum("nij,nj->ni", q, p)
    energy = (p * qp).sum(axis=1, keepdims=True)
    active = np.abs(qp - energy).max(axis=1, keepdims=True) >= TOLERANCE / p.shape[1]
    for t in range(p.shape[1]):
        own, slope = q[:, t, t, None], qp[:, t, None]
        change = (energy - slope) / own
        p = (p + change * np.eye(p.shape[1], dtype=p.dtype)[t]) / (1 + change)
        energy = (energy + change * (change * own + 2 * slope)) / (1 + change) ** 2
        qp = (qp + change * q[:, t]) / (1 + change)
    return np.where(active, p, before)


def coupled(scores: Value, slope: Value, offset: Value, count: int) -> Value:
    """The same as graph code: a Scan over the steps, in which rows that are done stay as they are."""
    likely: Value = Clip()(Sigmoid()(-(scores * slope + offset)), LEAST, 1 - LEAST)
    q = _quadratic(likely, count)
    start = filled(1 / count, TensorType(scores.dtype, (scores.shape[0], count)))
    p, matrix = Input(start.type, "p"), Input(q.type, "q")
    tick = Input(TensorType(scores.dtype, ()), "tick")
    body = Graph((p, tick, matrix), {"p.next": _step(p, matrix, count)}, name="coupling")
    ticks = filled(0.0, TensorType(scores.dtype, (max(STEPS, count),)))
    result: Value = Scan(body=body, num_scan_inputs=1, num_captured=1)(start, ticks, q)
    return result


def _quadratic(likely: Value, count: int) -> Value:
    """The matrix of the quadratic form, [rows, classes, classes]."""
    dtype = likely.dtype.numpy
    pairs = list(itertools.combinations(range(count), 2))
    positions = np.eye(count * count, dtype=dtype)
    upper, lower = positions[[i * count + j for i, j in pairs]], positions[[j * count + i for i, j in pairs]]
    flat: Value = MatMul()(likely, constant(upper)) + MatMul()(1.0 - likely, constant(lower))
    r = reshape(flat, (likely.shape[0], count, count))
    diagonal: Value = ReduceSum(axes=(1,), keepdims=True)(r * r) * constant(np.eye(count, dtype=dtype))
    result: Value = diagonal - r * Transpose(perm=(0, 2, 1))(r)
    return result


def _step(p: Value, q: Value, count: int) -> Value:
    qp: Value = ReduceSum(axes=(2,), keepdims=False)(q * Unsqueeze(axes=(1,))(p))
    energy: Value = ReduceSum(axes=(1,), keepdims=True)(p * qp)
    worst = ReduceMax(axes=(1,), keepdims=True)(Abs()(qp - energy))
    active, before = GreaterOrEqual()(worst, TOLERANCE / count), p
    for t in range(count):
        line = reshape(Slice(starts=(t,), ends=(t + 1,), axes=(1,))(q), (q.shape[0], count))
        own, slope = _column(line, t), _column(qp, t)
        change = (energy - slope) / own
        scale = change + 1.0
        p = (p + change * constant(np.eye(count, dtype=p.dtype.numpy)[t])) / scale
        energy = (energy + change * (change * own + slope * 2.0)) / (scale * scale)
        qp = (qp + change * line) / scale
    result: Value = Where()(active, p, before)
    return result


def _column(x: Value, position: int) -> Value:
    result: Value = Slice(starts=(position,), ends=(position + 1,), axes=(1,))(x)
    return result
