"""Saving what is trained: training forms, their state, whole steps, and which variables train."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from glowtrain import load
from glowtrain.backends.interpreter import evaluate
from glowtrain.errors import ModelError, SharedWeightsWarning
from glowtrain.grad.reverse import pullback
from glowtrain.graph import Graph, Input, Template, Variable, constant, verify
from glowtrain.onnx_io import inference, make_trainable, save
from glowtrain.ops.elementwise.logic import Cast
from glowtrain.ops.normalize.batch_and_layer import BatchNormalization
from glowtrain.ops.random.philox import Dropout, TrainingDropout
from glowtrain.ops.reduce.reduction import ReduceMean
from glowtrain.optim import OPTIMIZERS, SGD, Warmup
from glowtrain.trainer import Trainer
from glowtrain.types import f32
from tests.onnx_io.onnx_models import (
    checked,
    close,
    convnet,
    frozen,
    interpreted,
    loaded,
    mlp,
    random_inputs,
    runs_the_same,
    variables,
)


def training_step(source: Graph) -> Graph:
    """A step of gradient descent on the mean of y², with the learning rate as an input."""
    y = source.outputs["y"]
    loss = ReduceMean(keepdims=False)(y * y)
    parameters = [variable for variable in source.variables if variable.trainable]
    rate = Input(f32[()], "lr")
    gradients = pullback([loss], [constant(1.0, f32)], parameters)
    updates = {p: p - rate * g for p, g in zip(parameters, gradients, strict=True) if g is not None}
    return Graph((*source.inputs, rate), {"loss": loss}, {**source.updates, **updates}, "step")


class TestTraining:
    def test_training_form_and_back(self) -> None:
        graph = loaded(convnet(training=True), batch=4)
        training = make_trainable(graph)
        verify(training)
        kinds = [type(n.operator) for n in training.nodes]
        assert TrainingDropout in kinds
        assert Dropout not in kinds
        (norm,) = (n for n in training.nodes if isinstance(n.operator, BatchNormalization))
        assert norm.operator == BatchNormalization(training_mode=True)
        assert sorted(v.name for v in training.updates) == ["bn.mean", "bn.var", "random.counter"]
        back = inference(training)
        verify(back)
        assert not back.updates
        inputs = random_inputs(graph)
        close(interpreted(back, inputs), interpreted(graph, inputs), 1e-6)

    def test_running_statistics_after_three_steps(self) -> None:
        """The batch normalises itself, and the running statistics move by 1 - momentum of the batch's."""
        training = make_trainable(loaded(convnet(), batch=4))
        state = {name: variable.initial for name, variable in variables(training).items()}
        mean, var = state["bn.mean"].astype(np.float64), state["bn.var"].astype(np.float64)
        (norm,) = (n for n in training.nodes if isinstance(n.operator, BatchNormalization))
        for seed in range(3):
            known = evaluate(training, random_inputs(training, seed), state)
            x = known[norm.inputs[0]].astype(np.float64)  # type: ignore[index]
            mean, var = 0.9 * mean + 0.1 * x.mean((0, 2, 3)), 0.9 * var + 0.1 * x.var((0, 2, 3))
            state |= {variable.name: known[value] for variable, value in training.updates.items()}
        np.testing.assert_allclose(state["bn.mean"], mean, rtol=1e-5)
        np.testing.assert_allclose(state["bn.var"], var, rtol=1e-5)

    def test_unbiased_running_variance_as_in_pytorch(self) -> None:
        graph = loaded(convnet(), batch=4)
        ours, theirs = make_trainable(graph), make_trainable(graph, unbiased=True)
        inputs = random_inputs(graph)
        plain, unbiased = interpreted(ours, inputs)["bn.var.next"], interpreted(theirs, inputs)["bn.var.next"]
        old, count = variables(graph)["bn.var"].initial, 4 * 16
        np.testing.assert_allclose((unbiased - 0.9 * old) / (plain - 0.9 * old), count / (count - 1), rtol=1e-4)

    def test_dropout_draws_anew_in_every_step_and_repeats_with_the_counter(self) -> None:
        training = make_trainable(loaded(convnet(training=True), batch=4), seed=3)
        (drop,) = (n for n in training.nodes if isinstance(n.operator, TrainingDropout))
        inputs = random_inputs(training)
        masks = [evaluate(training, inputs, {"random.counter": np.array(step)})[drop.outputs[1]] for step in (0, 1, 0)]
        assert (masks[0] == masks[2]).all()
        assert (masks[0] != masks[1]).any()
        assert interpreted(training, inputs)["random.counter.next"] == 1

    def test_a_layer_used_twice_moves_its_statistics_twice(self) -> None:
        x = Input(f32[4, 3], "x")
        scale = [Variable(name, np.ones(3, np.float32), name in "sb") for name in ("s", "b", "m", "v")]
        norm = BatchNormalization()
        training = make_trainable(Graph((x,), {"y": norm(norm(x, *scale), *scale)}))
        verify(training)
        first = next(n for n in training.nodes if n.inputs[0] is x)
        assert training.updates[scale[2]] is not first.outputs[1]
        assert len(training.updates) == 2

    def test_the_training_form_of_a_training_form_is_the_same(self) -> None:
        """Statistics that a graph updates already do not move a second time."""
        once = make_trainable(loaded(convnet(), batch=4), unbiased=True)
        twice, inputs = make_trainable(once), random_inputs(once)
        for name, array in interpreted(once, inputs).items():
            np.testing.assert_array_equal(interpreted(twice, inputs)[name], array)

    def test_templates_are_changed_for_every_binding(self) -> None:
        template = load(convnet())
        assert isinstance(template, Template)
        training = make_trainable(template)
        assert len(training.bind({"batch": 3}).updates) == 2
        graph = make_trainable(loaded(convnet(), batch=4))
        assert graph.template is not None
        assert len(graph.template.bind({"batch": 3}).updates) == 2
        assert save(inference(graph)).graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"

    @pytest.mark.parametrize("source", [mlp(), convnet(), convnet(training=True)], ids=["mlp", "convnet", "dropout"])
    def test_a_training_step_runs_in_onnx_runtime(self, source: onnx.ModelProto) -> None:
        graph = load(source)
        step = training_step(make_trainable(graph.bind({"batch": 4}) if isinstance(graph, Template) else graph))
        verify(step)
        proto = runs_the_same(step, 1e-4)
        names = [value.name for value in proto.graph.input]
        assert names[:2] == ["x", "lr"]
        assert set(names[2:]) == {variable.name for variable in step.variables}
        initial = {t.name for t in proto.graph.initializer}
        assert set(names[2:]) <= initial
        outputs = [value.name for value in proto.graph.output]
        assert outputs == ["loss", *(f"{variable.name}.next" for variable in step.updates)]

    @pytest.mark.parametrize("name", OPTIMIZERS)
    def test_steps_of_all_optimizers_run_in_onnx_runtime(self, name: str) -> None:
        trainer = Trainer(loaded(mlp()), "mse", OPTIMIZERS[name](schedule=Warmup(10)), backend="interpreter")
        assert isinstance(trainer.graph, Graph)
        runs_the_same(trainer.graph, 1e-4)

    def test_frozen_variables_are_inputs_without_new_values(self) -> None:
        graph = make_trainable(loaded(convnet(), batch=4))
        assert frozen(graph) == ["bn.mean", "bn.var"]
        y = graph.outputs["y"]
        step = Graph(graph.inputs, {"loss": ReduceMean(keepdims=False)(y)}, graph.updates)
        proto = checked(save(step))
        assert "fc.weight" in [value.name for value in proto.graph.input]
        assert [value.name for value in proto.graph.output] == ["loss", "bn.mean.next", "bn.var.next"]


class TestRoles:
    """What is a variable, and which of them are trained, survives a file."""

    def graph(self) -> Graph:
        x = Input(f32[2, 3], "x")
        kinds = {"scale": (np.float32(2), True), "mask": (np.ones(3, np.float32), False)}
        kinds |= {"count": (np.int64(3), False), "twice": (np.ones(3, np.float32), True)}
        v = {name: Variable(name, np.asarray(array), trainable) for name, (array, trainable) in kinds.items()}
        y = (x * v["scale"] + v["mask"]) * v["twice"] + Cast(to=f32)(v["count"]) + v["twice"]
        return Graph((x,), {"y": y}, {}, "roles")

    def test_they_are_what_they_were(self) -> None:
        graph = self.graph()
        found = {v.name: v.trainable for v in loaded(checked(save(graph))).variables}
        assert found == {"scale": True, "mask": False, "count": False, "twice": True}
        runs_the_same(graph)

    def test_frozen_variables_stay_frozen_in_training(self) -> None:
        graph = loaded(save(self.graph()))
        assert Trainer(graph, lambda out, _: ReduceMean(keepdims=False)(out["y"]), SGD()).graphs.parameters == (
            "scale",
            "twice",
        )

    def test_other_initializers_go_by_the_rule(self) -> None:
        proto = save(self.graph())
        del proto.metadata_props[:]
        with pytest.warns(SharedWeightsWarning, match="'twice'"):
            assert {v.name: v.trainable for v in loaded(proto).variables} == {"mask": True, "twice": True}

    @pytest.mark.parametrize("text", ["{", "[]", '{"scale": 1}'])
    def test_broken_metadata_are_named(self, text: str) -> None:
        proto = save(self.graph())
        proto.metadata_props[0].value = text
        with pytest.raises(ModelError, match="metadata 'glowtrain.variables'"):
            load(proto)
