"""Every registered operator: complete, and right by every oracle on samples of its own domain."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glowtrain.gradcheck.operators.oracles import GRADIENT, applied, check_sample, described, drawn
from glowtrain.gradcheck.strategies import samples
from glowtrain.graph import Operator, Sample, lookup, plugins, registered
from glowtrain.ops.core.family import Elementwise

EVERY = pytest.mark.parametrize("key", [cls.key() for cls in registered()])

SAMPLES = 3
"""Samples for the gradient rules; hypothesis chooses and shrinks them."""


def operator_of(key: str) -> type[Operator]:
    cls = lookup(key)
    assert cls is not None
    return cls


def check(sample: Sample, oracles: tuple[str, ...]) -> None:
    """No failures, and no kinks: a domain must keep away from them."""
    wrong = [each for each in check_sample(sample, oracles) if each.status in ("failed", "kink")]
    if wrong:
        raise AssertionError("\n".join([described(sample), *(f"{each.oracle}: {each.detail}" for each in wrong)]))


FIRST = {
    "lookup": "lookup('Tan') and lookup('glowtrain.ScatterAdd')",
    "the registry": "OPERATORS['Tan']",
    "its length": "len(OPERATORS) > 200",
    "the package": "glowtrain.ops.Tan",
    "all": "any(cls.onnx == 'Tan' for cls in registered())",
}


@pytest.mark.parametrize("way", FIRST)
def test_the_registry_is_full_for_who_asks_first(way: str) -> None:
    """In a process that has imported no operator."""
    script = f"""
import sys, glowtrain.ops
from glowtrain.graph import OPERATORS, lookup, registered
assert "glowtrain.ops.elementwise.transcendental" not in sys.modules
assert {FIRST[way]}
assert lookup("NoSuchOperator") is None
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@EVERY
def test_is_complete(key: str) -> None:
    cls = operator_of(key)
    runs = cls.has("lower") or cls.has("decompose") or cls.from_type or cls.control
    missing = [method for method in ("infer", "reference", "sample") if not cls.has(method)]
    assert not missing
    assert cls.__doc__
    assert not cls.__doc__.startswith(f"{cls.__name__}("), "no docstring but the one that dataclass makes"
    assert runs, "nothing says how it is compiled"
    assert cls.has("vjp") or cls.has("decompose") or (not cls.differentiable and cls.reason), "no gradient, no reason"
    assert not (cls.domain and not (cls.has("decompose") or cls.has("lower"))), "ONNX cannot express it"


@EVERY
@settings(max_examples=SAMPLES)
@given(data=st.data())
def test_gradient_rule(key: str, data: st.DataObject) -> None:
    """Types, the whole Jacobian, second order, and the operator's own decomposition."""
    sample = data.draw(samples(operator_of(key)))
    check(sample, GRADIENT)


@EVERY
def test_compiled(key: str) -> None:
    """Results and gradients in the evaluator, planned, and as native code in f32; the second sample may be long."""
    for example in range(2):
        sample = drawn(operator_of(key), 0, example)
        oracles = ("evaluator", "planned", "compiled")
        check(sample, oracles)


@pytest.mark.spread(16)
@EVERY
def test_the_same_bits_on_every_kind_of_processor(key: str) -> None:
    sample = drawn(operator_of(key), 2, 1)
    check(sample, ("targets",))


@pytest.mark.spread(16)
@EVERY
def test_compiled_in_other_types(key: str) -> None:
    sample = drawn(operator_of(key), 1, 1)
    oracles = ("compiled f64", "compiled f16", "compiled bf16")
    check(sample, oracles)


def binary(cls: type[Operator]) -> bool:
    return issubclass(cls, Elementwise) and cls.arity in (2, -1) and cls.broadcasts and cls.differentiable


@pytest.mark.parametrize("key", [cls.key() for cls in registered(binary)])
def test_broadcast_operand_without_elements(key: str) -> None:
    """The sum that undoes a broadcast keeps extents of 0."""
    cls = operator_of(key)
    operator = drawn(cls, 0, 0).operator
    check(Sample(operator, (np.zeros((2, 1, 2, 0)), np.zeros((2, 0)))), ("types", "jacobian", "planned", "compiled"))


@EVERY
def test_samples_vary(key: str) -> None:
    """A domain that always draws the same types tests nothing but them."""
    uses = {described(drawn(operator_of(key), 0, example)) for example in range(12)}
    assert len(uses) > 1


@pytest.mark.parametrize("key", [cls.key() for cls in registered(lambda cls: cls.differentiable)])
def test_differentiable_says_what_the_graph_does(key: str) -> None:
    """Where a gradient is promised, some sample has a float operand from which it flows."""
    cls = operator_of(key)
    probes = (applied(drawn(cls, 0, example)).probe for example in range(12))
    assert any(probe.wanted and probe.results for probe in probes)


def test_packages_are_not_asked_for_operators_that_come_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """To look through what is installed takes long where much is; and what is not there is sought once."""

    def entry_points(**named: object) -> None:
        raise AssertionError(f"asked for {named}")

    monkeypatch.setattr(plugins.metadata, "entry_points", entry_points)
    for _ in range(2):
        assert lookup("glowtrain.NoSuchOperator") is None
        assert lookup("NoSuchOperator") is None
    with pytest.raises(AssertionError, match="org.nobody"):
        lookup("org.nobody.Operator")
