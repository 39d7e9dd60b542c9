"""Reductions, indexing, softmax, normalizations and losses against ONNX's reference implementation; loop nests."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from glowtrain.gradcheck.draw import ChoiceDraw
from glowtrain.graph import Operator, registered
from glowtrain.ops.indexing.gather import GatherElements
from glowtrain.ops.normalize.group import LpNormalization
from glowtrain.ops.objective.loss import NegativeLogLikelihoodLoss
from glowtrain.ops.reduce.reduction import ReduceLogSumExp
from glowtrain.types import DType, f16, f32, type_of
from tests.ops.one_node import onnx_model
from tests.ops.rules import as_tuple, lowered

MODULES = ("reduction", "along_axis", "index", "onehot", "softmax", "normalization", "group_normalization", "loss")
OWN = ("RandomBits", "ScatterAdd", "TrainingDropout", "UnbiasedBatchNormalization")

pytestmark = pytest.mark.usefixtures("quiet")


def _conforms(cls: type[Operator]) -> bool:
    return cls.__module__.rpartition(".")[2] in MODULES and not cls.domain and onnx.defs.has(cls.onnx)


def conforming() -> list[str]:
    """ONNX's operators of these families."""
    return [cls.onnx for cls in registered(_conforms)]


def evaluator_is_wrong(operator: Operator, arrays: list[Any]) -> bool:
    """Where onnx.reference leaves its own specification (ONNX Runtime gives what is expected here in each case)."""
    match operator:
        case LpNormalization(p=1):
            return True  # sums x, not |x|
        case NegativeLogLikelihoodLoss(ignore_index=-1):
            return True  # divides by the number of all samples
        case ReduceLogSumExp():
            return operator.infer(type_of(arrays[0])).rank == 0  # returns something that is no array
        case GatherElements(axis=axis):
            data, indices = (list(array.shape) for array in arrays)
            del data[axis], indices[axis]
            return axis < 0 or data != indices  # refuses indices smaller than data; wrong at axis -1
    return False


@pytest.mark.parametrize("name", conforming())
def test_reference_agrees_with_onnx(name: str) -> None:
    (cls,) = registered(lambda cls: cls.key() == name)
    compared = 0
    for seed in range(80):
        sample = cls.sample(ChoiceDraw(seed))
        arrays = [a.astype(np.float32) if a is not None and a.dtype == np.float64 else a for a in sample.inputs]
        while arrays[-1] is None:
            arrays.pop()
        if compared == 12 or evaluator_is_wrong(sample.operator, arrays):
            continue
        model, feeds = onnx_model(sample.operator, arrays)
        expected = ReferenceEvaluator(model).run(None, feeds)
        results = sample.operator.reference(*arrays)
        for result, other in zip(as_tuple(results), expected, strict=True):
            np.testing.assert_allclose(result, other, rtol=2e-5, atol=2e-5, err_msg=f"{sample.operator} seed {seed}")
        compared += 1
    assert compared >= 5


@pytest.mark.parametrize("dtype", [f32, f16])
@pytest.mark.parametrize("name", [*conforming(), *(f"glowtrain.{name}" for name in OWN)])
def test_lowering_agrees_with_reference(name: str, dtype: DType) -> None:
    (cls,) = registered(lambda cls: cls.key() == name)
    tolerance = 2e-5 if dtype == f32 else 2e-2
    for seed in range(6):
        sample = cls.sample(ChoiceDraw(seed))
        arrays = [a.astype(dtype.numpy) if a is not None and a.dtype == np.float64 else a for a in sample.inputs]
        expected = sample.operator.reference(*arrays)
        for result, other in zip(lowered(sample.operator, arrays), as_tuple(expected), strict=True):
            assert result.dtype == other.dtype
            np.testing.assert_allclose(
                result, other, rtol=tolerance, atol=tolerance, err_msg=f"{sample.operator} {seed}"
            )
