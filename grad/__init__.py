"""Gradients as graph code, and the graphs of a training step. Imported as ``glowtrain.grad``."""

from glowtrain.grad.forward import jvp
from glowtrain.grad.gradients import gradients, reached, stop_gradient
from glowtrain.grad.model import gradient_model
from glowtrain.grad.training import Updates, gradient_graph, loss_graph, training_graph

__all__ = [
    "Updates",
    "gradient_graph",
    "gradient_model",
    "gradients",
    "jvp",
    "loss_graph",
    "reached",
    "stop_gradient",
    "training_graph",
]
