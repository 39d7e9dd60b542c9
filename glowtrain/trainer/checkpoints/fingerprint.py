"""What must be the same for a checkpoint to belong to a training run, beside its variables and its seed.

What a person chose counts: the model, the loss, the optimizer's rule, what is trained. How gradients are computed is
left out, so that a checkpoint outlives improvements of the compiler.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from glowtrain.graph import Graph, Input
from glowtrain.graph.digest import digest
from glowtrain.onnx_io import inference
from glowtrain.trainer.forms import Forms


def fingerprint(forms: Forms) -> dict[str, str]:
    """Texts by what they describe; those of equal training runs are equal, in other processes too."""
    operators = [node.operator.key() for node in inference(forms.example).nodes]
    optimizer = forms.optimizer
    trained = forms.trained(forms.canonical)
    return {
        "model": f"{len(operators)} operators, {_hash(operators)}",
        "structure of the model": _of_model(trained),
        "loss": forms.loss.describe(),
        "structure of the loss": _of_loss(forms, trained),
        "optimizer": f"{optimizer.name}, accumulate={optimizer.accumulate}",
        "structure of the optimizer": _of_optimizer(forms, trained),
        "trained parameters": f"{len(forms.parameters)}, {_hash(forms.parameters)}",
    }


def _of_model(trained: Graph) -> str:
    updates = {f"next {variable.name}": value for variable, value in trained.updates.items()}
    return digest({**trained.outputs, **updates})


def _of_loss(forms: Forms, trained: Graph) -> str:
    """The loss from the model's outputs on."""
    outputs = {value: name for name, value in trained.outputs.items()}
    return digest({"loss": forms.loss.attach(trained).value}, outputs)


def _of_optimizer(forms: Forms, trained: Graph) -> str:
    """The updates as a function of the gradients."""
    parameters = forms.selected(trained)
    gradients = {parameter: Input(parameter.type, f"gradient of {parameter.name}") for parameter in parameters}
    updates = forms.optimizer(gradients)
    return digest({variable.name: value for variable, value in updates.values.items()})


def _hash(names: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]
