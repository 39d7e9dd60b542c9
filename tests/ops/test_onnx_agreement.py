"""Every operator of ONNX beside ONNX: values of ONNX Runtime or of its own evaluator, attributes of its schema."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import product
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from glowtrain.gradcheck.draw import ChoiceDraw
from glowtrain.graph import Operator, lookup, registered
from glowtrain.onnx_io.schema.tensors import dtype_to_onnx
from glowtrain.types import Array, DType
from tests.ops.one_node import onnx_model
from tests.ops.rules import as_tuple, reference

pytestmark = pytest.mark.usefixtures("quiet")

EXAMPLES, COMPARED = 24, 8
"""Samples of each operator, and how many of them another implementation must give the same for."""
OPSETS = (onnx.defs.onnx_opset_version(), 21)
"""ONNX Runtime lacks the newest versions of operators that it has in the second one."""
DIFFERENT = {
    "AffineGrid": "extents of one element with aligned corners",
    "BlackmanWindow": "one element: ONNX divides by zero",
    "ConvInteger": "the evaluator leaves zero points and groups out, in three dimensions",
    "DequantizeLinear": "the evaluator rounds scales of narrow types",
    "Dropout": "its masks are drawn",
    "GRU": "the evaluator has neither clip nor activations, and one direction",
    "GridSample": "the evaluator's cubic borders",
    "GroupNormalization": "the evaluator rounds statistics to f16 and bf16",
    "HammingWindow": "one element: ONNX divides by zero",
    "HannWindow": "one element: ONNX divides by zero",
    "LSTM": "the evaluator has neither clip nor activations, and one direction",
    "QLinearConv": "the evaluator pads SAME_LOWER otherwise",
    "RNN": "the evaluator has neither clip nor activations, and one direction",
    "Resize": "ONNX Runtime's antialiasing",
}
"""Operators for some of whose samples the others give something else."""
UNKNOWN = {"DeformConv": 7, "LRN": 6}
"""Operators that the others compute fewer samples of."""


def operator_of(key: str) -> type[Operator]:
    cls = lookup(key)
    assert cls is not None
    return cls


def comparable(cls: type[Operator]) -> bool:
    return not (cls.domain or cls.random or cls.control) and onnx.defs.has(cls.onnx)


STANDARD = [cls.key() for cls in registered(comparable)]


@pytest.mark.parametrize("key", STANDARD)
def test_reference_agrees_with_onnx(key: str) -> None:
    tally = Counter(agrees(operator, arrays) for operator, arrays in drawn(key))
    assert tally[True] >= UNKNOWN.get(key, COMPARED)
    assert bool(tally[False]) == (key in DIFFERENT)


def drawn(key: str) -> Iterator[tuple[Operator, list[Any]]]:
    """Samples, their f64 as f32, which all implementations compute in."""
    for seed in range(EXAMPLES):
        sample = operator_of(key).sample(ChoiceDraw(seed))
        arrays = [None if x is None else np.asarray(x) for x in sample.inputs]
        yield sample.operator, [x.astype(np.float32) if x is not None and x.dtype == np.float64 else x for x in arrays]


def agrees(operator: Operator, arrays: Sequence[Array | None]) -> bool | None:
    """Whether an implementation gives what the reference gives; None where none takes the operator."""
    ours = as_tuple(reference(operator, *arrays))
    found = [all(map(close, ours, theirs)) for theirs in results_of_others(operator, arrays)]
    return any(found) if found else None


def results_of_others(operator: Operator, arrays: Sequence[Array | None]) -> Iterator[list[Any]]:
    """What ONNX Runtime and ONNX's evaluator compute; each raises errors of its own for what it does not take."""
    for opset, run in product(OPSETS, (by_runtime, by_evaluator)):
        model, feeds = onnx_model(operator, arrays, opset)
        with suppress(Exception):
            yield run(model, feeds)


def by_runtime(model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    return list(onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds))


def by_evaluator(model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Any]:
    return list(ReferenceEvaluator(model).run(None, feeds))


def close(ours: Any, theirs: Any) -> bool:
    one, other = (np.asarray(x) for x in (ours, theirs))
    if one.dtype.kind == "V":  # narrow floats are no numbers of NumPy's
        one, other = one.astype(np.float64), other.astype(np.float64)
    return one.shape == other.shape and np.allclose(one, other, rtol=1e-4, atol=2e-5, equal_nan=True)


TYPED = {"Range": {"dtype"}, "ConstantOfShape": {"dtype"}, "TfIdfVectorizer": {"pool_strings"}}
"""Differences: an element type that ONNX reads off a tensor, and strings, which no tensor here has."""


@pytest.mark.parametrize("key", STANDARD)
def test_attributes_are_those_of_onnx(key: str) -> None:
    """Every field is an attribute or input of the newest schema, and every attribute a field, with its default."""
    schema = onnx.defs.get_schema(operator_of(key).onnx)
    fields = {field.name: field for field in dataclasses.fields(operator_of(key))}  # type: ignore[arg-type]
    inputs = {name: field.metadata["input"] for name, field in fields.items() if "input" in field.metadata}
    assert (set(fields) - set(inputs)) ^ set(schema.attributes) == TYPED.get(key, set())
    for name, number in inputs.items():
        assert schema.inputs[number].name.lower() in (name, "input")
    for name in set(schema.attributes) & set(fields) - {"value"}:
        declared, default = schema.attributes[name], fields[name].default
        assert default is not dataclasses.MISSING or declared.required or key == "TfIdfVectorizer"
        if default not in (dataclasses.MISSING, None, ()):
            assert stated(default) == stated(helper.get_attribute_value(declared.default_value)), name


def stated(default: Any) -> Any:
    """A default as ONNX states it."""
    if isinstance(default, DType):
        return dtype_to_onnx(default)
    if isinstance(default, bytes):
        return default.decode()
    if isinstance(default, float):
        return pytest.approx(default)
    return tuple(default) if isinstance(default, list) else default
