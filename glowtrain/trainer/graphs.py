"""The graphs that a trainer runs, all derived from one model: step, gradients, loss (evaluation), prediction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from glowtrain.errors import BindingError, GlowtrainError, InputError, ShapeError
from glowtrain.grad import (
    ShardedStep,
    SplitStep,
    gradient_graph,
    loss_graph,
    micro_batched_graph,
    sharded_step,
    split_step,
    training_graph,
)
from glowtrain.grad.parts import Bounds, Parts
from glowtrain.grad.training import LOSS
from glowtrain.graph import Binding, Graph, Template, Variable
from glowtrain.graph.specialise.template import PROBES, example_of
from glowtrain.losses import Loss, as_loss
from glowtrain.metrics.choose import as_metrics
from glowtrain.metrics.measures import Measures
from glowtrain.modes.training_and_inference import inference, make_trainable
from glowtrain.ops.reduce.reduction import as_dtype
from glowtrain.optim import as_optimizer
from glowtrain.presentation.messages import listed
from glowtrain.trainer.micro_batches.split import AUTO, batch_symbol, dependence_of, part_of
from glowtrain.trainer.selection.patterns import select
from glowtrain.trainer.settings import SAMPLE_WEIGHT, TrainingSpec
from glowtrain.types import DTYPES, Spec, f32

DEFAULT_BATCH = 64
"""Examples in a batch where neither a person nor the model says how many."""

GRADIENT = "gradient:"
"""What the names of gradients begin with beside the loss."""

DEFAULT_EPOCHS = 3
"""Epochs where nobody says how many."""


class TrainerGraphs:
    """A model with its loss and optimizer, and the graphs made of them, for each binding of the dimensions."""

    def __init__(self, spec: TrainingSpec) -> None:
        self.spec = spec
        self.model = spec.model
        self.template = self.model if isinstance(self.model, Template) else self.model.template
        self.loss = spec.weighted(as_loss(spec.loss))
        self.optimizer = as_optimizer(spec.optimizer)
        self.optimize = spec.per_parameter(self.optimizer)
        self.measures = Measures(self.loss, as_metrics(spec.metrics))

    @cached_property
    def example(self) -> Graph:
        """The model at some binding: that of the given graph, else the first of :data:`PROBES` that fits."""
        return self.model if isinstance(self.model, Graph) else example_of(self.model)

    @cached_property
    def example_step(self) -> Graph:
        """One training step of the example, whole."""
        return self.whole_step_of(self.example)

    @cached_property
    def inference_example(self) -> Graph:
        """The inference form of the example."""
        return inference(self.example)

    def check_metrics(self) -> None:
        """Raise :class:`InputError` for metrics that cannot be taken of this model with its loss."""
        if self.measures.metrics:
            self.measures.check(self.inference_example)

    @cached_property
    def canonical(self) -> Graph:
        """The model at a binding that does not depend on how the given graph was bound, where one can be found."""
        binding = self.example.binding
        if self.template is None or binding.values or binding.parts:
            return self.example
        try:
            found = example_of(self.template)
            self.loss.attach(self.trained(found))
        except GlowtrainError:
            return self.example  # the model or the loss has no meaning at other extents
        return found

    @cached_property
    def chosen(self) -> dict[str, Bounds | None]:
        """Names of what is trained, with the part of each that is, where that is not the whole."""
        candidates = make_trainable(self.example, unbiased=self.spec.unbiased, seed=self.spec.seed).variables
        chosen = {variable.name: bounds for variable, bounds in select(candidates, self.spec.trainable).items()}
        self.optimize.check_names(chosen)
        return chosen

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of what is trained."""
        return tuple(self.chosen)

    @cached_property
    def untrained(self) -> tuple[str, ...]:
        """Names of what was to be trained and stays as it is: the loss does not depend on it."""
        updated = {variable.name for variable in self.example_step.updates}
        return tuple(name for name in self.parameters if name not in updated)

    @property
    def optional(self) -> str | None:
        """The target that data may lack: the weight of each example."""
        return SAMPLE_WEIGHT if self.spec.sample_weight else None

    @property
    def specs(self) -> dict[str, Spec]:
        """The model's data inputs, with symbolic dimensions where they can be bound anew."""
        return specs_of(self.example if self.template is None else self.template)

    @property
    def all_specs(self) -> dict[str, Spec]:
        """All data inputs: the model's, then the loss's."""
        return {**self.specs, **self.targets}

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of all data inputs: the model's, then the loss's."""
        return (*self.specs, *self.loss.targets)

    @cached_property
    def targets(self) -> dict[str, Spec]:
        """The types of the loss's targets, with symbolic extents where a binding decides them."""
        return target_specs(self.example, self.loss)

    def at(self, binding: Binding) -> Graph:
        """The model at a binding, of which that of the example is there already."""
        if self.template is None or binding.key == self.example.binding.key:
            return self.example
        return self.template.bound(binding)

    def step(self) -> Graph | Template:
        """One training step."""
        if self.template is None:
            return self.step_of(self.example)
        return replace(self.template, build=self._step_at)

    def _step_at(self, binding: Binding) -> Graph:
        return self.step_of(self.at(binding))

    def step_of(self, model: Graph) -> Graph:
        """One training step of a bound model, in as many parts of the batch as ``micro_batches`` says;
        whole where a budget of memory decides.

        Raises :class:`InputError` for a batch that cannot be split so.
        """
        count = self.spec.micro_batches
        if count not in (1, AUTO):
            return self.step_in_parts(model, int(count))
        return self.example_step if model is self.example else self.whole_step_of(model)

    def step_in_parts(self, model: Graph, count: int) -> Graph:
        """One training step of a bound model, in so many parts of the batch one after the other."""
        part, split = part_of(model, self.all_specs, self.loss, count, self.dependence)
        trained = self.trained(part)
        attached = self.loss.attach(trained)
        metrics = self.measures.means(trained, attached) if self.spec.measured_in_steps else {}
        parameters = self.selected(trained)
        return micro_batched_graph(
            trained, attached.value, attached.targets, parameters, self.optimize, split, metrics,
            self.parts(parameters),
        )  # fmt: skip

    def whole_step_of(self, model: Graph) -> Graph:
        """One training step of a bound model, whole."""
        trained = self.trained(model)
        attached = self.loss.attach(trained)
        metrics = self.measures.means(trained, attached) if self.spec.measured_in_steps else {}
        parameters = self.selected(trained)
        return training_graph(
            trained, attached.value, attached.targets, parameters, self.optimize, metrics, self.parts(parameters)
        )

    def split_step(self, model: Graph, parts: int) -> SplitStep:
        """One training step of so many batches of a bound model's size, in parts that can be computed apart."""
        trained = self.trained(model)
        attached = self.loss.attach(trained)
        parameters = self.selected(trained)
        chosen = self.parts(parameters)
        return split_step(trained, attached.value, attached.targets, parameters, self.optimize, parts, chosen)

    def sharded_step(self, model: Graph) -> ShardedStep:
        """One training step of a bound model, as one shard of a batch among others."""
        trained = self.trained(model)
        attached = self.loss.attach(trained)
        metrics = self.measures.means(trained, attached) if self.spec.measured_in_steps else {}
        parameters = self.selected(trained)
        return sharded_step(
            trained, attached.value, attached.targets, parameters, self.optimize, metrics, self.parts(parameters),
            sums=self.loss.over_examples == "sum",
            weights=next((target for target in attached.targets if target.name == self.loss.mass_target), None),
            summed=f32 if self.spec.fleet is None else DTYPES[self.spec.fleet.gradients],
        )  # fmt: skip

    def shard(self) -> Graph | Template:
        """The gradients of one shard of a batch."""
        return self._derived(lambda model: self.sharded_step(model).shard)

    def gradients(self) -> Graph | Template:
        """The gradients of all that is trained for a batch."""
        return self._derived(self._gradients_of)

    def _gradients_of(self, model: Graph) -> Graph:
        trained = self.trained(model)
        attached = self.loss.attach(trained)
        parameters = self.selected(trained)
        return gradient_graph(trained, attached.value, attached.targets, parameters, self.parts(parameters))

    def objective(self) -> Graph | Template:
        """The loss of a batch with the terms of penalties, and its gradients, whose names begin with :data:`GRADIENT`.

        Raises :class:`InputError` where the loss is not the same function of the parameters each time.
        """
        if changing := sorted(variable.name for variable in self.trained(self.example).updates):
            raise InputError(
                f"{self.model.name}: {listed(changing)} change with each step (dropout, running statistics): a method "
                "for the whole data set needs a loss that is a function of the parameters alone"
            )
        return self._derived(self._objective_of)

    def _objective_of(self, model: Graph) -> Graph:
        trained = self.trained(model)
        attached, parameters = self.loss.attach(trained), self.selected(trained)
        loss = attached.value
        for penalty in self.optimize.penalties_of(parameters):
            loss = loss + as_dtype(penalty, loss.dtype)
        graph = gradient_graph(trained, loss, attached.targets, parameters, self.parts(parameters))
        gradients = {GRADIENT + name: value for name, value in graph.outputs.items()}
        return Graph(graph.inputs, {LOSS: loss, **gradients}, {}, f"{model.name}.objective")

    def evaluation(self) -> Graph | Template:
        """Loss and metrics of the inference form, and the outputs that other metrics are taken of."""
        return self._derived(self._evaluation_of)

    def _evaluation_of(self, model: Graph) -> Graph:
        plain = inference(model)
        attached = self.loss.attach(plain)
        means, outputs = self.measures.means(plain, attached), self.measures.outputs(plain, attached)
        return loss_graph(plain, attached.value, attached.targets, means | outputs)

    def prediction(self) -> Graph | Template:
        """The inference form."""
        return self._derived(inference)

    @cached_property
    def dependence(self) -> str | None:
        """What an example's outputs depend on of its batch; see :func:`dependence_of`."""
        symbol = batch_symbol(self.model.name, self.all_specs)
        return dependence_of(self.prediction(), self.example.binding, symbol)

    def trained(self, model: Graph) -> Graph:
        """The training form of a bound model."""
        names = self.parameters if self.spec.freeze_statistics else None
        return make_trainable(model, unbiased=self.spec.unbiased, seed=self.spec.seed, trained=names)

    def selected(self, trained: Graph) -> list[Variable]:
        """The variables of a training form that are trained."""
        return [variable for variable in trained.variables if variable.name in self.chosen and variable.trainable]

    def parts(self, parameters: Sequence[Variable]) -> Parts:
        """Those parts of parameters that are trained alone."""
        bounds = ((parameter, self.chosen[parameter.name]) for parameter in parameters)
        return Parts.of({parameter: taken for parameter, taken in bounds if taken is not None})

    def _derived(self, change: Callable[[Graph], Graph]) -> Graph | Template:
        if self.template is None:
            return change(self.example)
        return self.template.map(change)


def parameter_names(step: Graph) -> set[str]:
    """The names of a graph's parameters, frozen ones included."""
    return {variable.name for variable in step.variables if variable.trainable}


def optimizer_variables(step: Graph, model: Graph) -> set[str]:
    """The names of what a step keeps for its optimizer: the variables that the training form of its model lacks."""
    return {variable.name for variable in step.variables} - {variable.name for variable in model.variables}


def fixed_batch(specs: Mapping[str, Spec]) -> int | None:
    """The batch size that a model's inputs are bound to for good, if they are."""
    extents = [spec.shape[0] for spec in specs.values() if spec.shape]
    return extents[0] if extents and isinstance(extents[0], int) else None


def specs_of(model: Graph | Template) -> dict[str, Spec]:
    """A model's inputs by name, as they are bound."""
    if isinstance(model, Template):
        return dict(model.inputs)
    return {name: Spec(type_.dtype, type_.shape) for name, type_ in model.input_types.items()}


def default_batch(model: Graph | Template) -> int:
    """The batch size where none was asked for: what the model is bound to, else :data:`DEFAULT_BATCH`."""
    return fixed_batch(specs_of(model)) or DEFAULT_BATCH


def target_specs(bound: Graph, loss: Loss) -> dict[str, Spec]:
    """The types of a loss's targets on a model, by name; extents that the model's template leaves open are symbols.

    Which those are is learnt from the targets of another binding.
    """
    targets = {value.name: value.type for value in loss.attach(inference(bound)).targets}
    if bound.template is None or not bound.dims:
        return {name: Spec(type_.dtype, type_.shape) for name, type_ in targets.items()}
    other = _bound_otherwise(bound)
    others = {value.name: value.type for value in loss.attach(inference(other)).targets}
    return {
        name: Spec(type_.dtype, tuple(map(_Symbols(bound, other), type_.shape, others[name].shape)))
        for name, type_ in targets.items()
    }


@dataclass(frozen=True)
class _Symbols:
    """From an extent in two bindings of a template to what it is in the template."""

    first: Graph
    second: Graph

    def __call__(self, first: int, second: int) -> int | str:
        if first == second and first not in self.first.dims.values():
            return first
        for name, extent in self.first.dims.items():
            if (first, second) == (extent, self.second.dims[name]):
                return name
        return first if first == second else "..."


def _bound_otherwise(bound: Graph) -> Graph:
    """The model with as many of its dimensions bound otherwise as it takes; the same graph where it takes no others."""
    assert bound.template is not None
    distinct = [{name: n + k for k, (name, n) in enumerate(bound.dims.items(), start)} for start in (1, 5)]
    uniform = [dict.fromkeys(bound.dims, extent) for extent in PROBES]
    for dims in (*distinct, *uniform):
        try:
            if not any(dims[name] == extent for name, extent in bound.dims.items()):
                return bound.template.bind(dims)
        except (ShapeError, BindingError):
            continue
    return bound
