"""``glowtrain size``: what a bundle takes on a processor, before it is built."""

from __future__ import annotations

import typer

from glowtrain import bundles, losses
from glowtrain.cli.arguments import options
from glowtrain.cli.arguments.imports import import_modules
from glowtrain.cli.arguments.models import open_model, parse_dims
from glowtrain.cli.arguments.training import optimizer_of, require_train
from glowtrain.cli.commands.bundle import (
    BundleBatch,
    BundleOptimize,
    BundleRam,
    BundleTarget,
    BundleThreads,
    BundleTrain,
    BundleWeights,
    batch_of,
    optimize_of,
    weights_of,
)
from glowtrain.cli.terminal.console import command, out
from glowtrain.memory.byte_size import parse_bytes
from glowtrain.memory.residuals import checked_type


@command
def size(
    context: typer.Context,
    model: options.Model,
    train: BundleTrain = False,
    target: BundleTarget = ["host"],  # noqa: B006  typer's way to say what is given
    batch: BundleBatch = None,
    dims: options.Dims = [],  # noqa: B006
    open_batch: options.OpenBatch = False,
    weights: BundleWeights = "object",
    threads: BundleThreads = 1,
    fixed_point: options.FixedPoint = False,
    memory: options.Memory = None,
    micro_batches: options.MicroBatchCount = 1,
    residuals: options.Residuals = None,
    optimize: BundleOptimize = "speed",
    ram: BundleRam = None,
    seed: options.Seed = 0,
    loss: options.Loss = "softmax_cross_entropy",
    output: options.LossOutput = None,
    trainable: options.Trainable = [],  # noqa: B006
    freeze_statistics: options.FreezeStatistics = False,
    untie: options.Untie = [],  # noqa: B006
    optimizer: options.OptimizerChoice = "adam",
    lr: options.LearningRate = None,
    momentum: options.Momentum = None,
    nesterov: options.Nesterov = False,
    weight_decay: options.WeightDecay = None,
    no_decay: options.NoDecay = [],  # noqa: B006
    clip_norm: options.ClipNorm = None,
    clip_value: options.ClipValue = None,
    accumulate: options.Accumulate = 1,
    modules: options.Modules = [],  # noqa: B006
) -> None:
    """Say what a bundle of a model takes: flash, RAM, and the arena, stack and multiply-adds of each function.

    Nothing is written. With --ram, more than that is an error that says what would fit: a smaller batch, fewer layers
    that are trained.

    Examples:

    glowtrain size model.onnx --batch 1 --target cortex-m7

    glowtrain size cnn --train --optimizer sgd --batch 4 --trainable "scores.*" --target cortex-m4 --ram 256KB
    """
    require_train(context, train=train, others=("micro_batches", "residuals"))
    import_modules(modules)
    network = open_model(model, parse_dims(dims), open_batch=open_batch, untie=untie, training=train)
    rule = optimizer_of(
        optimizer, lr=lr, momentum=momentum, nesterov=nesterov or None, weight_decay=weight_decay,
        no_decay=tuple(no_decay) or None, clip_norm=clip_norm, clip_value=clip_value, accumulate=accumulate,
    )  # fmt: skip
    for each in target:
        found = bundles.bundle_size(
            network,
            loss=losses.by_name(loss, output) if train else None,
            optimizer=rule if train else None,
            trainable=(trainable or None) if train else None,
            freeze_statistics=freeze_statistics and train,
            dims=batch_of(network, batch),
            target=each,
            weights=weights_of(weights),
            threads=threads,
            fixed_point=fixed_point,
            memory=memory,
            micro_batches=micro_batches,
            residuals=checked_type(residuals),
            optimize=optimize_of(optimize),
            ram=None if ram is None else parse_bytes(ram, "--ram"),
            seed=seed,
        )
        out.print(str(found))
