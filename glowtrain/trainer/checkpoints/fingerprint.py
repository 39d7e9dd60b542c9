"""What must be the same for a checkpoint to belong to a training run, beside its variables and its seed.

What a person chose counts: the model, the loss, the optimizer's rule, what is trained. How gradients are computed is
left out, so that a checkpoint outlives improvements of the compiler.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from glowtrain.graph import Graph, Input
from glowtrain.graph.digest import digest
from glowtrain.modes.training_and_inference import inference
from glowtrain.trainer.graphs import TrainerGraphs
from glowtrain.trainer.selection.patterns import described


def fingerprint(graphs: TrainerGraphs) -> dict[str, str]:
    """Texts by what they describe; those of equal training runs are equal, in other processes too."""
    operators = [node.operator.key() for node in inference(graphs.example).nodes]
    optimizer = graphs.optimizer
    trained = graphs.trained(graphs.canonical)
    return {
        "model": f"{len(operators)} operators, {_hash(operators)}",
        "structure of the model": _of_model(trained),
        "loss": graphs.loss.describe(),
        "structure of the loss": _of_loss(graphs, trained),
        "optimizer": f"{optimizer.name}, accumulate={optimizer.accumulate}",
        "structure of the optimizer": _of_optimizer(graphs, trained),
        "trained parameters": f"{len(graphs.chosen)}, {_hash(described(graphs.chosen))}",
    }


def _of_model(trained: Graph) -> str:
    updates = {f"next {variable.name}": value for variable, value in trained.updates.items()}
    return digest({**trained.outputs, **updates})


def _of_loss(graphs: TrainerGraphs, trained: Graph) -> str:
    """The loss from the model's outputs on."""
    outputs = {value: name for name, value in trained.outputs.items()}
    return digest({"loss": graphs.loss.attach(trained).value}, outputs)


def _of_optimizer(graphs: TrainerGraphs, trained: Graph) -> str:
    """The updates as a function of the gradients."""
    parameters = graphs.selected(trained)
    gradients = {parameter: Input(parameter.type, f"gradient of {parameter.name}") for parameter in parameters}
    updates = graphs.optimize(graphs.parts(parameters).trained(gradients))
    return digest({variable.name: value for variable, value in updates.values.items()})


def _hash(names: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]
