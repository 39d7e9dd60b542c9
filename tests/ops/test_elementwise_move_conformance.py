"""Elementwise, logical and moving operators against ONNX: its evaluator's values, its schemas' attributes."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from glowtrain.gradcheck.draw import ChoiceDraw
from glowtrain.graph import Operator, registered
from glowtrain.ops.tensor.pad import Pad
from glowtrain.ops.tensor.shape import ConstantOfShape, Range
from glowtrain.types import Array
from tests.ops.one_node import onnx_model
from tests.ops.rules import as_tuple, reference

FAMILIES = (
    *("activation", "arithmetic", "blocks", "extrema", "logic", "move", "pad", "shape", "split", "stop_gradient"),
    "transcendental",
)


def mine() -> list[type[Operator]]:
    return list(registered(lambda cls: cls.__module__.split(".")[-1] in FAMILIES))


class TestOnnxConformance:
    @pytest.mark.parametrize("cls", [cls for cls in mine() if not cls.domain], ids=lambda cls: cls.key())
    def test_reference_equals_onnx(self, cls: type[Operator]) -> None:
        """On ten drawn uses each, the values of ONNX's own evaluator."""
        for seed in range(10):
            sample = cls.sample(ChoiceDraw(seed))
            inputs = tuple(None if x is None else np.asarray(x) for x in sample.inputs)
            if outside_of_onnx(sample.operator, inputs):
                continue
            model, feeds = onnx_model(sample.operator, inputs)
            with np.errstate(all="ignore"):
                expected = ReferenceEvaluator(model).run(None, feeds)
            results = as_tuple(reference(sample.operator, *inputs))
            for result, value in zip(results, expected, strict=True):
                np.testing.assert_allclose(result, value, rtol=1e-6, atol=1e-7, err_msg=str(sample.operator))

    @pytest.mark.parametrize("cls", [cls for cls in mine() if not cls.domain], ids=lambda cls: cls.key())
    def test_attributes_are_those_of_onnx(self, cls: type[Operator]) -> None:
        """Every field is an attribute or input of the newest schema, and every attribute a field, with its default."""
        schema = onnx.defs.get_schema(cls.onnx)
        fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
        inputs = {name: field.metadata["input"] for name, field in fields.items() if "input" in field.metadata}
        typed = {"dtype"} if cls in (Range, ConstantOfShape) else set()  # the element type that ONNX reads off a tensor
        assert set(fields) - set(inputs) - typed == set(schema.attributes)
        for name, place in inputs.items():
            assert schema.inputs[place].name in (name, "input")
        for name in set(schema.attributes) - {"value"}:
            declared = schema.attributes[name].default_value
            default = helper.get_attribute_value(declared) if declared.type else None
            default = default.decode() if isinstance(default, bytes) else default
            if fields[name].default is dataclasses.MISSING:
                assert schema.attributes[name].required
            else:
                assert fields[name].default == (default if not isinstance(default, float) else pytest.approx(default))


def outside_of_onnx(operator: Operator, inputs: tuple[Array | None, ...]) -> bool:
    """Samples beyond what ONNX's evaluator can run."""
    if isinstance(operator, Pad):
        return min(operator.pads, default=-1) < 0 or any(x is not None and x.shape == (1,) for x in inputs[1:])
    return False
