"""DynamicQuantizeLSTM: products in integers, whatever its weights are and wherever they come from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.graph import Constant, Graph, Input, Operator, constant
from glowtrain.lower.expand import expand
from glowtrain.ops.contraction.products import MatMul
from glowtrain.ops.control.scan import Scan
from glowtrain.ops.microsoft.lstm import DynamicQuantizeLSTM, StateQuantizedLSTM
from glowtrain.ops.quantized.integer_products import MatMulInteger
from glowtrain.types import Array, DType, i8, type_of, u8

STEPS, BATCH, WIDTH, HIDDEN = 4, 3, 21, 24
FORWARD = DynamicQuantizeLSTM(hidden_size=HIDDEN)
BOTH = DynamicQuantizeLSTM(direction="bidirectional", hidden_size=HIDDEN, clip=0.75)
BACKWARD = DynamicQuantizeLSTM(direction="reverse", input_forget=1, clip=2.0)


def operands(lstm: DynamicQuantizeLSTM, dtype: DType, *, columns: bool) -> list[Array]:
    """All twelve: rows of several lengths, initial states and peepholes are among them."""
    random = np.random.default_rng(0)
    count, low, high = 2 if lstm.direction == "bidirectional" else 1, *((-128, 127) if dtype == i8 else (0, 255))

    def real(*shape: int) -> Array:
        return random.uniform(-0.9, 0.9, shape).astype(np.float32)

    def weight(rows: int) -> list[Any]:
        scales = (count, 4 * HIDDEN) if columns else (count,)
        numbers, zeros = (random.integers(low, high + 1, s) for s in ((count, rows, 4 * HIDDEN), scales))
        scale = random.uniform(0.002, 0.004, scales)
        return [numbers.astype(dtype.numpy), scale.astype(np.float32), zeros.astype(dtype.numpy)]

    (w, *ws), (r, *rs) = weight(WIDTH), weight(HIDDEN)
    lengths, states = np.array([4, 1, 2], np.int32), [real(count, BATCH, HIDDEN) for _ in range(2)]
    bias, peepholes = real(count, 8 * HIDDEN), real(count, 3 * HIDDEN)
    return [real(STEPS, BATCH, WIDTH), w, r, bias, lengths, *states, peepholes, *ws, *rs]


def graph_of(operator: Operator, arrays: list[Array], fixed: tuple[int, ...]) -> Graph:
    values = [constant(a) if k in fixed else Input(type_of(a), f"x{k}") for k, a in enumerate(arrays)]
    results = operator(*values)
    inputs = tuple(v for v in values if not isinstance(v, Constant))
    return Graph(inputs, {f"y{k}": v for k, v in enumerate(results)})


WEIGHTS = (1, 2, 8, 9, 10, 11)


@pytest.mark.spread(2)
@pytest.mark.parametrize("fixed", [(), WEIGHTS], ids=["inputs", "constants"])
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("dtype", [i8, u8])
@pytest.mark.parametrize("lstm", [FORWARD, BOTH, BACKWARD], ids=["forward", "both", "backward"])
def test_compiled_is_the_reference(
    lstm: DynamicQuantizeLSTM, dtype: DType, columns: bool, fixed: tuple[int, ...]
) -> None:
    """But for a state that lies next to a tie: that is one step of the range away, and changes sums by 1e-3."""
    arrays = operands(lstm, dtype, columns=columns)
    graph = graph_of(lstm, arrays, fixed)
    found = gt.compile(graph)({v.name: arrays[int(v.name[1:])] for v in graph.inputs})
    for result, wanted in zip(found.values(), lstm.reference(*arrays), strict=True):
        np.testing.assert_allclose(result, wanted, rtol=0, atol=4e-3)


@pytest.mark.parametrize("fixed", [(), WEIGHTS], ids=["inputs", "constants"])
def test_products_are_those_of_integers(fixed: tuple[int, ...]) -> None:
    graph = expand(graph_of(BOTH, operands(BOTH, i8, columns=True), fixed))
    bodies = [node.operator.body for node in graph.nodes if isinstance(node.operator, Scan)]
    products = [n.operator for g in (graph, *bodies) for n in g.nodes if isinstance(n.operator, MatMul | MatMulInteger)]
    assert len(bodies) == 2
    assert len(products) == 4
    assert all(isinstance(product, MatMulInteger) for product in products)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_an_infinite_scale_of_a_weight_makes_no_nan_of_zeros() -> None:
    """Sums are exact before they are scaled, so a zero in the input meets no infinity."""
    x, weight, nothing = np.array([[[0.0, 2.0]]]), np.full((1, 2, 4), 3, np.int8), np.zeros((1, 1, 4), np.int8)
    infinite, one = (np.array([np.inf]), np.zeros(1, np.int8)), (np.ones(1), np.zeros(1, np.int8))
    y, *_ = StateQuantizedLSTM(hidden_size=1).reference(x, weight, nothing, *[None] * 5, *infinite, *one)
    assert y.item() == np.tanh(1.0)
