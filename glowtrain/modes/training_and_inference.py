"""Training form and inference form of models."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from glowtrain.graph import Constant, Graph, Model, Node, Value, Variable, constant, rewrite
from glowtrain.ops.normalize.batch_and_layer import BatchNormalization, UnbiasedBatchNormalization
from glowtrain.ops.random.draws import SeededDraw
from glowtrain.ops.random.philox import CounterDraw, Dropout, TrainingDropout

SEED, COUNTER = "random.seed", "random.counter"
"""The variables from which random operators draw: the seed, and the number of the step."""


def make_trainable(
    model: Model, *, unbiased: bool = False, seed: int = 0, trained: Collection[str] | None = None
) -> Model:
    """The training form of a model.

    BatchNormalization normalises with the batch's statistics, and its running ones are state with updates: as in ONNX
    with the batch's population variance, or with ``unbiased`` as in PyTorch. Dropout drops, other elements in every
    step, and random operators draw other numbers: their counter is a variable that each step increments.

    With ``trained``, the names of what is trained, BatchNormalization whose scale is not trained stays in inference
    form: it normalises with its running statistics, and they stay as they are. (Its bias may be trained.)
    """
    return model.map(partial(_training_form, unbiased=unbiased, seed=seed, trained=trained))


def inference(model: Model, *, dropout: bool = False) -> Model:
    """The inference form of a model: running statistics, no dropout, no updates.

    With ``dropout`` Dropout stays where it is, in the form that changes nothing until a model is trained.
    """
    change = _with_dropout if dropout else _inference_node
    return model.map(partial(_inference_form, change=change))


def _training_form(graph: Graph, *, unbiased: bool, seed: int, trained: Collection[str] | None) -> Graph:
    return _Trainable(unbiased, seed, trained).graph(graph)


def _inference_form(graph: Graph, *, change: Callable[[Node], Sequence[Value] | None]) -> Graph:
    return rewrite(graph.with_(updates={}), change)


@dataclass
class _Trainable:
    """Puts nodes in training form, collecting updates."""

    unbiased: bool
    seed: int
    trained: Collection[str] | None
    updates: dict[Variable, Value] = field(default_factory=dict)
    state: dict[Value, Variable] = field(default_factory=dict)
    """The running statistics that stand for what a node read: frozen variables."""
    given: Collection[Variable] = ()
    """What the graph updates already."""
    streams: int = 0
    counters: tuple[Variable, Variable] | None = None

    def graph(self, graph: Graph) -> Graph:
        self.updates.update(graph.updates)
        self.given = graph.updates.keys()
        self.streams = sum(isinstance(node.operator, (TrainingDropout, CounterDraw)) for node in graph.nodes)
        changed = rewrite(graph, self.node, bodies=False)
        return changed.with_(updates={**self.updates, **changed.updates})

    def node(self, node: Node) -> Sequence[Value] | None:
        if isinstance(node.operator, BatchNormalization):
            return self.batch_normalization(node, node.operator)
        if isinstance(node.operator, Dropout):
            return self.dropout(node)
        if isinstance(node.operator, SeededDraw):
            return self.draw(node, node.operator)
        return None

    def batch_normalization(self, node: Node, operator: BatchNormalization) -> Sequence[Value] | None:
        if self.is_frozen(node):
            return _inference_node(node)
        statistics = [self.variable(value) for value in node.inputs[3:]]
        if None in statistics or (operator.training_mode and all(each in self.given for each in statistics)):
            return None
        variables = [variable for variable in statistics if variable is not None]
        form = UnbiasedBatchNormalization if self.unbiased else BatchNormalization
        training = form(operator.epsilon, operator.momentum, training_mode=True)
        before = [self.updates.get(variable, variable) for variable in variables]
        fresh = Node(training, [*node.inputs[:3], *before], node.name)
        self.updates.update(zip(variables, fresh.outputs[1:], strict=True))
        return fresh.outputs[: len(node.outputs)]

    def is_frozen(self, node: Node) -> bool:
        """Whether it is known what is trained, and the scale is not."""
        scale = node.inputs[1]
        return self.trained is not None and not (isinstance(scale, Variable) and scale.name in self.trained)

    def variable(self, value: Value | None) -> Variable | None:
        """The variable of a running statistic; ``None`` if it is computed."""
        if isinstance(value, Variable) and not value.trainable:
            return value
        if isinstance(value, Variable):
            return self.state.setdefault(value, Variable(value.name, value.source, trainable=False))
        if isinstance(value, Constant):
            name = value.name or f"running.{len(self.state)}"
            return self.state.setdefault(value, Variable(name, value.array, trainable=False))
        return None

    def dropout(self, node: Node) -> Sequence[Value]:
        x, *rest = node.inputs
        assert x is not None
        ratio = rest[0] if rest and rest[0] is not None else constant(0.5, x.dtype)
        seed, counter = self.random_state()
        fresh = Node(TrainingDropout(stream=self.streams), [x, ratio, seed, counter], node.name)
        self.streams += 1
        return fresh.outputs

    def draw(self, node: Node, operator: SeededDraw) -> Sequence[Value]:
        operands = [value for value in node.inputs if value is not None]
        result = operator.drawn(*self.random_state(), self.streams, *operands)
        self.streams += 1
        return (result,)

    def random_state(self) -> tuple[Variable, Variable]:
        if self.counters is None:
            seed = Variable(SEED, np.array(self.seed, np.int64), trainable=False)
            counter = Variable(COUNTER, np.array(0, np.int64), trainable=False)
            self.counters = seed, counter
            self.updates[counter] = counter + 1
        return self.counters


def _with_dropout(node: Node) -> Sequence[Value] | None:
    if isinstance(node.operator, (Dropout, TrainingDropout)):
        return Node(Dropout(), node.inputs[:2], node.name).outputs
    return _inference_node(node)


def _inference_node(node: Node) -> Sequence[Value] | None:
    operator = node.operator
    if isinstance(operator, BatchNormalization) and operator.training_mode:
        plain = BatchNormalization(operator.epsilon, operator.momentum)
        statistics = [value for value in node.inputs[3:] if value is not None]
        return (*Node(plain, node.inputs, node.name).outputs, *statistics)
    if isinstance(operator, (Dropout, TrainingDropout)):
        x = node.inputs[0]
        assert x is not None
        return x, constant(np.ones(x.shape, np.bool_))
    return None
