"""Products whose rows are quantized while the model runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import glowtrain as gt
from glowtrain.backends.cpu.backend import Cpu
from glowtrain.errors import QuantizationError
from glowtrain.graph import Constant, Graph, Input, Value, Variable, constant
from glowtrain.onnx_io.checks.other_runtimes import outside_run
from glowtrain.ops.contraction.products import Gemm, MatMul
from glowtrain.ops.elementwise.cast import Cast
from glowtrain.ops.quantized.convert import DequantizeLinear
from glowtrain.ops.quantized.integer_products import MatMulInteger
from glowtrain.ops.reduce.reduction import ReduceMax
from glowtrain.quantization import dynamic
from glowtrain.types import Array, TensorType, f32, i8
from tests.cpu.cpu_kernels import runnable

TARGETS = [None, *(target.name for target in runnable("avx512vnni", "avx2", "sse4", "scalar"))]
INNER, COLUMNS = 24, 10


def real(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def numbers(*shape: int) -> Array:
    return np.random.default_rng(3).integers(-127, 128, shape, np.int8)


def model(operator: MatMul | Gemm, weight: Value, *more: Value, rows: tuple[int, ...] = (7,)) -> Graph:
    x = Input(TensorType(f32, (*rows, INNER)), "x")
    return Graph((x,), {"y": operator(x, weight, *more)})


def count(graph: Graph, operator: type[Any]) -> int:
    return sum(isinstance(node.operator, operator) for node in graph.nodes)


def by_definition(x: Array, w: Array) -> Array:
    """The product with rows and columns of 127 steps to each side."""
    rows, columns = np.abs(x).max(-1, keepdims=True) * np.float32(1 / 127), np.abs(w).max(0) / np.float32(127)
    rows, columns = (np.where(scale > 0, scale, np.float32(1)) for scale in (rows, columns))
    total = np.rint(x / rows).astype(np.int64) @ np.rint(w / columns).astype(np.int64)
    return np.asarray(total * columns.astype(np.float64) * rows)


@given(
    m=st.integers(1, 40), n=st.integers(1, 40), k=st.integers(1, 90), target=st.sampled_from(TARGETS),
    seed=st.integers(0, 99), zeros=st.booleans(),
)  # fmt: skip
def test_matrices_of_any_size(m: int, n: int, k: int, target: str | None, seed: int, zeros: bool) -> None:
    """On every target the same bits, those of the definition but for the last product's rounding."""
    x, w = real(m, k, seed=seed), real(k, n, seed=seed + 1)
    x[0] *= 0 if zeros else 1e4
    w[:, 0] *= 0 if zeros else 1e-4
    graph = dynamic(Graph((given := Input(TensorType(f32, (m, k)), "x"),), {"y": given @ constant(w)}))
    found, host = (gt.compile(graph, Cpu(name) if name else Cpu())({"x": x})["y"] for name in (target, None))
    assert found.tobytes() == host.tobytes()
    np.testing.assert_allclose(found, by_definition(x, w), rtol=1e-6, atol=0)


@pytest.mark.parametrize("rows", [(), (5,), (2, 3)], ids=str)
def test_rows_of_any_rank_are_near_the_float_model(rows: tuple[int, ...]) -> None:
    graph = model(MatMul(), constant(real(INNER, COLUMNS)), rows=rows)
    x = real(*rows, INNER, seed=1)
    found = gt.compile(dynamic(graph))({"x": x})["y"]
    np.testing.assert_allclose(found, x @ real(INNER, COLUMNS), atol=0.15)


def test_gemm_with_its_factors() -> None:
    w, c = real(COLUMNS, INNER), real(7, COLUMNS, seed=2)
    graph = dynamic(model(Gemm(transB=True, alpha=0.5, beta=2.0), constant(w), constant(c)))
    assert count(graph, Gemm) == 0
    x = real(7, INNER, seed=1)
    found = gt.compile(graph)({"x": x})["y"]
    np.testing.assert_allclose(found, 0.5 * by_definition(x, w.T) + 2 * c, rtol=1e-5, atol=1e-6)


def scaled(scale: Array, *, turned: bool = False) -> Value:
    return Cast(f32)(constant(numbers(COLUMNS, INNER) if turned else numbers(INNER, COLUMNS))) * Variable("s", scale)


INTEGERS = {
    "columns": (MatMul(), scaled(real(1, COLUMNS))),
    "one": (MatMul(), scaled(real())),
    "turned": (Gemm(transB=True), scaled(real(COLUMNS, 1), turned=True)),
    "dequantized": (
        MatMul(), DequantizeLinear(axis=1)(constant(numbers(INNER, COLUMNS)), constant(abs(real(COLUMNS)))),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", INTEGERS)
def test_weights_of_integers_stay_what_they_are(name: str) -> None:
    operator, weight = INTEGERS[name]
    graph = dynamic(model(operator, weight))
    known = [value.array for value in graph.leaves if isinstance(value, Constant) and value.dtype == i8]
    wanted = numbers(COLUMNS, INNER).T if name == "turned" else numbers(INNER, COLUMNS)
    (array,) = known
    np.testing.assert_array_equal(array, wanted)
    x = real(7, INNER, seed=1)
    found, floats = (gt.compile(each)({"x": x})["y"] for each in (graph, model(operator, weight)))
    np.testing.assert_allclose(found, floats, atol=0.02 * np.abs(floats).max())


def test_scales_of_rows_of_a_weight_are_rounded_anew() -> None:
    """They cannot multiply the sums."""
    graph = dynamic(model(MatMul(), scaled(abs(real(INNER, 1)))))
    x = real(7, INNER, seed=1)
    weight = numbers(INNER, COLUMNS) * abs(real(INNER, 1))
    np.testing.assert_allclose(gt.compile(graph)({"x": x})["y"], by_definition(x, weight), rtol=1e-5, atol=1e-4)


def test_rows_that_several_products_read_are_quantized_once() -> None:
    x = Input(TensorType(f32, (7, INNER)), "x")
    outputs = {f"y{i}": x @ constant(real(INNER, COLUMNS, seed=i)) for i in range(3)}
    graph = dynamic(Graph((x,), outputs))
    assert (count(graph, MatMulInteger), count(graph, ReduceMax)) == (3, 1)


def test_what_is_kept_and_what_is_not_known_stays() -> None:
    x, other = (Input(TensorType(f32, (7, 7)), name) for name in ("x", "other"))
    first, second = (Variable(f"{name}.weight", real(7, 7)) for name in ("first", "second"))
    graph = Graph((x, other), {"a": x @ first, "b": x @ second, "c": x @ other})
    assert count(dynamic(graph), MatMulInteger) == 2
    assert count(dynamic(graph, keep=["first"]), MatMulInteger) == 1


def test_templates_and_files(tmp_path: Path) -> None:
    """Other runtimes give the same numbers: all operators are ONNX's own."""

    @gt.model(x=gt.f32["batch", 16])
    def mlp(x: Any) -> Any:
        return gt.nn.linear(gt.nn.relu(gt.nn.linear(x, 32, name="hidden")), 5, name="head")

    small = dynamic(mlp)
    for batch in (1, 6):
        graph = small.bind({"batch": batch})
        gt.save(graph, tmp_path / "small.onnx")
        x = real(batch, 16)
        _, theirs = outside_run(tmp_path / "small.onnx", {"x": x})
        np.testing.assert_allclose(gt.compile(small)({"x": x})["output"], theirs["output"], rtol=1e-5, atol=1e-6)


class TestBadInput:
    GRAPH = model(MatMul(), Variable("head.weight", real(INNER, COLUMNS)))

    def test_no_model(self) -> None:
        with pytest.raises(QuantizationError, match="a model is a graph or a template"):
            dynamic("model.onnx")  # type: ignore[type-var]

    def test_a_pattern_that_fits_nothing(self) -> None:
        with pytest.raises(QuantizationError, match="is called 'tail'"):
            dynamic(self.GRAPH, keep=["tail"])

    @pytest.mark.parametrize("keep", [3, [3], "head"])
    def test_no_patterns(self, keep: Any) -> None:
        with pytest.raises(QuantizationError, match="keep is a list of names"):
            dynamic(self.GRAPH, keep=keep)

    @pytest.mark.parametrize("keep", [["head"], ["MatMul"]])
    def test_nothing_to_do(self, keep: list[str]) -> None:
        with pytest.raises(QuantizationError, match="there is nothing to do"):
            dynamic(self.GRAPH, keep=keep)

    def test_twice(self) -> None:
        with pytest.raises(QuantizationError, match="there is nothing to do"):
            dynamic(dynamic(self.GRAPH))
