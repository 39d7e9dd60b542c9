"""Gradients as graph code, and the graphs of a training step. Imported as ``glowtrain.grad``."""

from glowtrain.grad.data_parallel import SplitStep, split_step
from glowtrain.grad.forward import jvp
from glowtrain.grad.gradients import gradients, reached, stop_gradient
from glowtrain.grad.micro_batches import BatchSplit, micro_batched_graph
from glowtrain.grad.model import gradient_model
from glowtrain.grad.shards import ShardedStep, sharded_step
from glowtrain.grad.training import Updates, gradient_graph, loss_graph, training_graph

__all__ = [
    "BatchSplit",
    "ShardedStep",
    "SplitStep",
    "Updates",
    "gradient_graph",
    "gradient_model",
    "gradients",
    "jvp",
    "loss_graph",
    "micro_batched_graph",
    "reached",
    "sharded_step",
    "split_step",
    "stop_gradient",
    "training_graph",
]
