"""Every operator on types that are only stored: it refuses them, or moves them without changing a bit."""

from __future__ import annotations

import numpy as np
import pytest

import glowtrain as gt
import glowtrain.ops
from glowtrain.errors import ShapeError
from glowtrain.gradcheck.operators.oracles import drawn
from glowtrain.graph import Graph, Input, Node, lookup, registered
from glowtrain.ops.elementwise.cast import convert
from glowtrain.types import Array, DType, f8e4m3fn, i4, type_of


def stored(key: str, dtype: DType) -> tuple[Node, dict[str, Array]] | None:
    """A use of the operator with stored elements in place of floats; ``None`` if it takes no floats, or refuses."""
    cls = lookup(key)
    assert cls is not None
    sample = drawn(cls, 0, 0)
    if not any(array is not None and array.dtype == np.float64 for array in sample.inputs):
        return None
    arrays = [
        array if array is None or array.dtype != np.float64 else convert(np.abs(array), dtype)
        for array in sample.inputs
    ]
    values = [None if a is None else Input(type_of(np.asarray(a)), f"x{k}") for k, a in enumerate(arrays)]
    try:
        node = Node(sample.operator, values)
    except ShapeError:
        return None
    return node, {value.name: np.asarray(a) for value, a in zip(values, arrays, strict=True) if value is not None}


@pytest.mark.spread(175)
@pytest.mark.parametrize("dtype", [f8e4m3fn, i4], ids=str)
@pytest.mark.parametrize("key", [cls.key() for cls in registered(lambda cls: not cls.random)])
def test_refused_or_moved(key: str, dtype: DType) -> None:
    use = stored(key, dtype)
    if use is None:
        return
    node, feeds = use
    inputs = tuple(value for value in node.inputs if isinstance(value, Input))
    graph = Graph(inputs, {f"y{value.index}": value for value in node.outputs})
    found, wanted = (gt.compile(graph, backend=backend)(feeds) for backend in ("cpu", "interpreter"))
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype
        if type_of(array).dtype.is_float:
            np.testing.assert_allclose(found[name], array, rtol=1e-6)
        else:
            assert found[name].tobytes() == np.ascontiguousarray(array).tobytes()


def test_moves_take_stored_types() -> None:
    taken = {cls.key() for cls in registered() if stored(cls.key(), i4) is not None}
    assert {"Concat", "Gather", "Identity", "Pad", "Reshape", "Slice", "Split", "Transpose", "Where"} <= taken
    assert taken.isdisjoint({"Add", "Clip", "CumSum", "Equal", "Gemm", "MatMul", "Max", "ReduceSum", "Softmax", "TopK"})
