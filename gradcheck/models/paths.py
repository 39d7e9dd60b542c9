"""Before training: which operators of a model pass gradients on, what cuts the way, and which parameters get none.

Nothing is computed: this asks operators and their rules (:mod:`glowtrain.grad.flow`). Whether a rule is right is for
:func:`glowtrain.gradcheck.check`; that of an operator which comes along is checked by every run over the registry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from glowtrain.errors import InputError
from glowtrain.grad.flow import CutKind, Flow, FlowStep, GradientCut, Reach
from glowtrain.gradcheck.operators.registry import verified
from glowtrain.gradcheck.report.paths import CutOnPath, GradientPaths, LeafOnPath, OperatorOnPath, Role, Verdict
from glowtrain.graph import Graph, Node, Template, Value, no_model
from glowtrain.graph.specialise.template import example_of
from glowtrain.losses import Loss, LossFunction, as_loss
from glowtrain.losses.base import output_of
from glowtrain.modes.training_and_inference import make_trainable
from glowtrain.names import matches
from glowtrain.onnx_io.read.load import load_numeric
from glowtrain.onnx_io.read.parameters import is_weight
from glowtrain.ops.quantized.convert import STEPS
from glowtrain.presentation.messages import page, unknown

ADVICE: dict[CutKind, str] = {
    "stopped": "leave it if that is meant; to train what is behind it, take it out of the model",
    "type": "only the shape is used; what is to be trained needs another way to the results",
    "integer": "pass on a float in its place (Softmax for ArgMax, Sigmoid for a comparison), or a straight-through "
    "estimator: soft + gt.stop_gradient(hard - soft)",
    "constant": "a straight-through estimator keeps the results: x + gt.stop_gradient(f(x) - x)",
    "operand": "the rule has none for this operand: compute it from others, or leave it out by trainable=",
    "no rule": f"give its class a vjp or a decompose, see {page('operators.md')}",
}
"""What to do about a cut."""
QUANTIZED = f"train it before it is quantized, or in floats with rounding, see {page('quantizing.md')}"
UNREACHED = "name other outputs or another loss, or leave it out by trainable="
INTEGER = "make it trainable=False, or a float that the model casts"


def paths(
    model: Graph | Template | str | Path,
    loss: str | Loss | LossFunction | None = None,
    *,
    of: Sequence[str] = (),
    by: Sequence[str] = (),
    dims: Mapping[str, int] | None = None,
) -> GradientPaths:
    """The ways that gradients take through the training form of a model, and what cuts them.

    ``model``: a graph, a template, or the path of an ONNX file. The gradient is that of ``loss``, as a trainer takes
    it, or of the outputs named by ``of``, by default of all floats. ``by``: names of parameters and inputs, or patterns
    of them, that must get a gradient; without, that is every trainable parameter, and each constant of a file that
    looks like one (finite floats of rank 1 or more, from which all ways are cut); inputs may have one.
    Raises :class:`InputError` for names that are not there, for integers in ``by``, for both a loss and outputs, and
    where no output is a float; :class:`DifferentiationError` for a loss that is no scalar.
    """
    if loss is not None and of:
        raise InputError("give a loss or outputs, not both")
    trained = make_trainable(_example(model, dims))
    names, roots = _roots(trained, loss, of)
    return _Survey(trained, names, Flow(roots), tuple(by)).report()


def _example(model: Graph | Template | str | Path, dims: Mapping[str, int] | None) -> Graph:
    """A graph of the model: which extents its dimensions have does not matter for its ways."""
    if isinstance(model, (str, Path)):
        model, dims = load_numeric(model, dims), None
    if isinstance(model, Graph):
        return model
    if not isinstance(model, Template):
        raise InputError(f"paths takes a graph, a template or a path, {no_model(model)}")
    return example_of(model, dims)


def _roots(
    model: Graph, loss: str | Loss | LossFunction | None, of: Sequence[str]
) -> tuple[tuple[str, ...], tuple[Value, ...]]:
    """What is differentiated, and its names."""
    if loss is not None:
        return ("the loss",), (as_loss(loss).attach(model).value,)
    problem = unknown(of, model.outputs, "output")
    if problem:
        raise InputError(f"{model.name} has {problem}")
    wrong = [f"{name!r} ({model.outputs[name].type})" for name in of if not model.outputs[name].dtype.is_float]
    if wrong:
        raise InputError(f"{model.name}: {', '.join(wrong)} is not of a float type: it has no gradient")
    chosen = tuple(of) or tuple(name for name, value in model.outputs.items() if value.dtype.is_float)
    if not chosen:
        raise InputError(f"{model.name} has no float output; give a loss")
    return chosen, tuple(output_of(model, name) for name in chosen)


@dataclass(frozen=True)
class _Leaf:
    """What a gradient may be wanted for."""

    name: str
    value: Value
    role: Role


class _Survey:
    """The ways of the gradients of a model's training form."""

    def __init__(self, model: Graph, of: tuple[str, ...], flow: Flow, by: tuple[str, ...]) -> None:
        self.model = model
        self.of = of
        self.flow = flow
        self.by = by

    def report(self) -> GradientPaths:
        self._check_wanted()
        reach = {leaf: self.flow.of(leaf.value) for leaf in self.leaves}
        leaves = [leaf for leaf in self.leaves if leaf.role != "constant" or _is_lost(reach[leaf])]
        wanted = [leaf.value for leaf in leaves if leaf.value.dtype.is_float]
        frozen = tuple(v.name for v in self.model.variables if not v.trainable)
        return GradientPaths(
            self.model.name,
            self.of,
            tuple(_operators(self.flow.steps(wanted))),
            tuple(_grouped({leaf: reach[leaf] for leaf in leaves})),
            tuple(self._standing(leaf, reach[leaf]) for leaf in leaves),
            frozen,
        )

    @cached_property
    def leaves(self) -> tuple[_Leaf, ...]:
        """Trainable variables, inputs, and constants with names that could be parameters."""
        return (
            *(_Leaf(v.name, v, "parameter") for v in self.model.variables if v.trainable),
            *(_Leaf(v.name, v, "input") for v in self.model.inputs if v.dtype.is_float or v.name in self.by),
            *(_Leaf(v.name, v, "constant") for v in self.model.constants if v.name and is_weight(v.array)),
        )

    def _check_wanted(self) -> None:
        """Raise :class:`InputError` for a name that is not there, or that can have no gradient."""
        known = [leaf.name for leaf in self.leaves]
        strange = [name for name in self.by if not any(matches(other, [name]) for other in known)]
        if strange:
            raise InputError(f"{self.model.name} has {unknown(strange, known, 'parameter or input')}")
        wrong = [f"{leaf.name} ({leaf.value.type})" for leaf in self.leaves if self._is_wrong(leaf)]
        if wrong:
            raise InputError(f"{self.model.name}: {', '.join(wrong)}: not of a float type, so there is no gradient")

    def _is_wrong(self, leaf: _Leaf) -> bool:
        return leaf.name in self.by and not leaf.value.dtype.is_float

    def _standing(self, leaf: _Leaf, reach: Reach) -> LeafOnPath:
        required = matches(leaf.name, self.by) if self.by else leaf.role != "input"
        told = leaf.name, str(leaf.value.type), leaf.role
        if not leaf.value.dtype.is_float:
            return LeafOnPath(*told, "integer", required, advice=INTEGER)
        if reach.differentiable:
            return LeafOnPath(*told, "gradient", required)
        if not reach.depends:
            return LeafOnPath(*told, "unreached", required, advice=UNREACHED if leaf.role == "parameter" else "")
        cut_by = tuple(dict.fromkeys(_called(cut) for cut in reach.cuts))
        return LeafOnPath(*told, "cut", required, cut_by)


def _is_lost(reach: Reach) -> bool:
    """Whether only ways that are cut lead from a value to the results."""
    return reach.depends and not reach.differentiable


def label(node: Node) -> str:
    """What a node is called: its own name, or that of its result, or its layer."""
    return node.name or next((value.name for value in node.outputs if value.name), "") or node.layer or "(no name)"


def _called(cut: GradientCut) -> str:
    """``Round 'act/Round'``: the operator, and the node's name where it says more."""
    operator, name = cut.node.operator.key(), label(cut.node)
    return operator if name == operator else f"{operator} {name!r}"


def _operators(steps: Iterator[FlowStep]) -> Iterator[OperatorOnPath]:
    """The operators on paths, those with verified gradients first."""
    checked, order = verified(), ("verified", "unverified", "cut", "constant")
    found: dict[tuple[Verdict, str], list[Node]] = {}
    for step in steps:
        key = step.node.operator.key()
        verdict: Verdict = step.outcome if step.outcome != "passes" else "verified" if key in checked else "unverified"
        found.setdefault((verdict, key), []).append(step.node)
    for verdict, key in sorted(found, key=lambda entry: (order.index(entry[0]), entry[1])):
        nodes = found[verdict, key]
        yield OperatorOnPath(key, len(nodes), verdict, _named(nodes, lambda node: node.layer))


def _named(nodes: Sequence[Node], name: Callable[[Node], str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, map(name, nodes))))


def _grouped(reach: Mapping[_Leaf, Reach]) -> Iterator[CutOnPath]:
    """The cuts by operator and reason; those that cost somebody a gradient first."""
    groups: dict[tuple[str, str, str], dict[Node, None]] = {}
    blocks: dict[tuple[str, str, str], dict[str, None]] = {}
    for leaf, found in reach.items():
        for cut in found.cuts:
            key = _where(cut), cut.why, _advice(cut)
            groups.setdefault(key, {})[cut.node] = None
            blocks.setdefault(key, {}).update({} if found.differentiable else {leaf.name: None})
    for key in sorted(groups, key=lambda key: (not blocks[key], key)):
        nodes = list(groups[key])
        yield CutOnPath(*key, _named(nodes, label), _named(nodes, lambda node: node.layer), tuple(blocks[key]))


def _where(cut: GradientCut) -> str:
    """The operator, and what it is in."""
    return " in ".join(node.operator.key() for node in (cut.node, *reversed(cut.within)))


def _advice(cut: GradientCut) -> str:
    return QUANTIZED if cut.node.operator.reason == STEPS else ADVICE[cut.kind]
