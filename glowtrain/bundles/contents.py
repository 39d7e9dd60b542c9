"""What a bundle computes: graphs of one model that share its variables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, get_args

import numpy as np

from glowtrain.bundles.c_names import is_reserved
from glowtrain.errors import BundleError
from glowtrain.graph import Constant, Graph, Template, Value, Variable, no_model, substituted
from glowtrain.losses import Loss, LossFunction, as_loss
from glowtrain.memory.resources import Resources
from glowtrain.modes.training_and_inference import SEED, inference
from glowtrain.modes.variables import with_values
from glowtrain.optim import HYPER, Adam, Optimizer, as_optimizer
from glowtrain.settings import changed
from glowtrain.trainer.graphs import DEFAULT_BATCH, TrainerGraphs
from glowtrain.trainer.hyper import as_input
from glowtrain.trainer.settings import TrainingSettings, TrainingSpec
from glowtrain.trainer.trainer import Trainer
from glowtrain.types import Array

STEP, PREDICT = "step", "predict"
"""The names of functions."""

ALWAYS = frozenset(field.name for field in fields(Resources)) | {"seed"}
"""Settings that mean something beside a trainer, too, and where nothing is trained."""

Role = Literal["parameter", "statistic", "state"]
"""What a variable is: trained, or of the model but not trained by gradients, or of training alone."""
ROLES: tuple[Role, ...] = get_args(Role)
"""By number in C."""


@dataclass(frozen=True)
class Contents:
    """Graphs by the names of functions, every dimension bound; ``roles`` of their variables by name, and ``hyper``: the
    hyperparameters of a step and what they are at the start. ``trained``: what makes steps, if there is one, and the
    bound model."""

    name: str
    graphs: Mapping[str, Graph]
    roles: Mapping[str, Role]
    hyper: Mapping[str, float]
    trained: tuple[TrainerGraphs, Graph] | None = None

    @property
    def variables(self) -> tuple[Variable, ...]:
        """All variables, each once: those of the step first."""
        found: dict[str, Variable] = {}
        for graph in self.graphs.values():
            for variable in graph.variables:
                found.setdefault(variable.name, variable)
        return tuple(found.values())

    def fixed(self) -> Contents:
        """The same with what no function updates as constants; seeds stay, which devices had better choose."""
        updated = {variable.name for graph in self.graphs.values() for variable in graph.updates}
        graphs = {name: _with_constants(graph, updated | {SEED}) for name, graph in self.graphs.items()}
        left = {variable.name for graph in graphs.values() for variable in graph.variables}
        roles = {name: role for name, role in self.roles.items() if name in left}
        return replace(self, graphs=graphs, roles=roles)


def contents_of(
    model: Graph | Template | Trainer,
    loss: str | Loss | LossFunction | None,
    optimizer: str | Optimizer | None,
    settings: TrainingSettings,
    dims: Mapping[str, int],
    name: str | None,
) -> Contents:
    """What a bundle of a model computes. Raises :class:`BundleError`."""
    trained = [each for each in changed(settings, TrainingSettings) if each not in ALWAYS]
    if isinstance(model, Trainer):
        if trained or loss is not None or optimizer is not None:
            raise BundleError("a trainer has its loss, its optimizer and what it trains: give it alone")
        return training_of(model.graphs, model.hyper, model.variables(), dims, name)
    if not isinstance(model, (Graph, Template)):
        raise BundleError(f"bundle takes a graph, a template or a trainer, {no_model(model)}")
    if loss is None:
        if trained or optimizer is not None:
            raise BundleError("a bundle that trains needs a loss: loss=gt.losses...")
        return inference_of(model, dims, name)
    rule = as_optimizer(optimizer or Adam())
    given = {field.name: getattr(settings, field.name) for field in fields(TrainingSettings)}
    spec = TrainingSpec(model, as_loss(loss), rule, **given)
    return training_of(TrainerGraphs(spec), rule.hyper(), {}, dims, name)


def inference_of(model: Graph | Template, dims: Mapping[str, int], name: str | None) -> Contents:
    """A model that predicts only."""
    bound = bound_model(model, dims)
    graph = inference(bound)
    return Contents(bundle_name(name or model.name), {PREDICT: graph}, _roles(graph, graph, ()), {})


def training_of(
    graphs: TrainerGraphs, hyper: Mapping[str, float], values: Mapping[str, Array], dims: Mapping[str, int],
    name: str | None,
) -> Contents:  # fmt: skip
    """A step, with these hyperparameters at the start, and the prediction; variables begin with ``values``."""
    model = bound_model(graphs.model, dims)
    step = _present(graphs.step_of(model), values)
    if empty := [value for value in step.inputs if 0 in value.shape]:
        raise BundleError(f"{model.name}: {empty[0].name} is {empty[0].type}, so that a step has nothing to train on")
    for each, number in hyper.items():
        as_input(graphs.optimizer, each, number, step.input_types[HYPER + each].dtype)
    balanced = [variable for variable in step.variables if variable.name in graphs.loss.balanced]
    if any(np.isnan(variable.initial).any() for variable in balanced):
        raise BundleError("class_weight='balanced' follows from labels: give a trainer that was fitted")
    predict = _present(inference(model), values)
    roles = _roles(step, predict, graphs.parameters)
    called = bundle_name(name or model.name)
    return Contents(called, {STEP: step, PREDICT: predict}, roles, dict(hyper), (graphs, model))


def bound_model(model: Graph | Template, dims: Mapping[str, int]) -> Graph:
    """The model with every dimension bound: to ``dims``, and a batch that these leave open to the usual one. A graph
    that was bound otherwise, such as a trainer's, is bound anew.

    Raises :class:`BundleError` where another dimension is open, and :class:`BindingError` for unknown ones.
    """
    if isinstance(model, Graph) and dims and model.template is not None:
        model = model.template
    if isinstance(model, Graph):
        if dims:
            raise BundleError(f"{model.name} has no open dimension, so none can be bound to {_listed(dims)}")
        return model
    open_ones = [symbol for symbol in model.symbols if symbol not in dims]
    if len(open_ones) > 1 or model.structures or not all(is_batch(model, symbol) for symbol in open_ones):
        raise BundleError(_unbound(model, open_ones))
    return model.bind({**dims, **dict.fromkeys(open_ones, DEFAULT_BATCH)})


def _unbound(model: Template, symbols: Sequence[str]) -> str:
    """What is open and must not be, in words."""
    names = ", ".join((*symbols, *model.structures))
    needs = f"a bundle's memory is planned, so {model.name} needs values for {names}"
    dims = ", ".join(f"{symbol!r}: ..." for symbol in symbols)
    options = " ".join(f"--dims {symbol}=N" for symbol in symbols)
    return f"{needs}: dims={{{dims}}} ({options}); nothing but the batch, the first axis, has a size by itself"


def is_batch(model: Template, symbol: str) -> bool:
    """Whether an open dimension is the batch: its name says so, or it is the first axis wherever it is one."""
    axes = {axis for spec in model.inputs.values() for axis, extent in enumerate(spec.shape) if extent == symbol}
    return "batch" in symbol.lower() or axes == {0}


def batch_symbol(model: Graph | Template) -> str | None:
    """The batch of a model that leaves nothing else open."""
    symbols = model.symbols if isinstance(model, Template) else ()
    return symbols[0] if len(symbols) == 1 and isinstance(model, Template) and is_batch(model, symbols[0]) else None


def identifier(name: str) -> str:
    """A name as it can stand in C: letters, digits and _ , no digit first."""
    found = re.sub(r"\W", "_", name, flags=re.ASCII)
    return found if found[:1].isalpha() else f"m_{found}"


def bundle_name(name: str) -> str:
    """What a bundle's symbols and files begin with: an identifier that is none of C's library."""
    found = identifier(name)
    return f"m_{found}" if is_reserved(found) else found


def _roles(step: Graph, predict: Graph, parameters: tuple[str, ...]) -> dict[str, Role]:
    own = {variable.name for variable in predict.variables}
    trained = {variable.name for variable in step.updates} & set(parameters) if parameters else own
    return {v.name: _role(v.name, trained, own) for v in (*step.variables, *predict.variables)}


def _role(name: str, trained: set[str], own: set[str]) -> Role:
    return "parameter" if name in trained else "statistic" if name in own else "state"


def _present(graph: Graph, values: Mapping[str, Array]) -> Graph:
    names = {variable.name for variable in graph.variables}
    return with_values(graph, {name: array for name, array in values.items() if name in names})


def step_with_constants(step: Graph) -> Graph:
    """A step as :meth:`Contents.fixed` has it."""
    return _with_constants(step, {variable.name for variable in step.updates} | {SEED})


def _with_constants(graph: Graph, kept: set[str]) -> Graph:
    constants: dict[Value, Value] = {v: Constant(v.initial, v.name) for v in graph.variables if v.name not in kept}
    return substituted(graph, constants) if constants else graph


def _listed(dims: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={extent}" for name, extent in dims.items())
