"""``glowtrain bundle``: a model as an object file with a C interface, for any processor."""

from __future__ import annotations

from typing import Annotated

import typer

from glowtrain import bundles, data, losses
from glowtrain.backends.cpu.threads.count import MOST
from glowtrain.bundles.arguments import folder_of
from glowtrain.bundles.contents import batch_symbol
from glowtrain.bundles.devices.boards import BOARDS
from glowtrain.bundles.faces.extras import FACES
from glowtrain.bundles.request import Optimize
from glowtrain.bundles.weights import Weights
from glowtrain.cli.arguments import options
from glowtrain.cli.arguments.completion import names
from glowtrain.cli.arguments.imports import import_modules
from glowtrain.cli.arguments.models import open_model, parse_dims
from glowtrain.cli.arguments.targets import TARGETS
from glowtrain.cli.arguments.training import optimizer_of, require_train
from glowtrain.cli.terminal.console import command, out
from glowtrain.errors import InputError
from glowtrain.graph import Graph, Template
from glowtrain.memory.byte_size import parse_bytes
from glowtrain.memory.residuals import checked_type

BundleTrain = Annotated[bool, typer.Option("--train", help="A bundle that trains, with --loss and --optimizer.")]
BundleTarget = Annotated[
    list[str],
    typer.Option(
        metavar="T",
        help=f"Repeatable, each in a folder of its own then: {', '.join(TARGETS)}.",
        autocompletion=names(TARGETS),
    ),
]
BundleBatch = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Examples in a batch, where the model leaves it open.")
]
BundleWeights = Annotated[
    str, typer.Option(metavar="W", help="In the object file (object), beside it (file), or left out (none).")
]
BundleThreads = Annotated[
    int, typer.Option(min=1, max=MOST, metavar="N", help="Threads that a host may share a step out to.")
]
BundleOptimize = Annotated[str, typer.Option(metavar="O", help="Code that is fast (speed) or small (size).")]
BundleRam = Annotated[
    str | None, typer.Option(metavar="BYTES", help="What the processor has, such as 256KB: more is an error.")
]


@command
def bundle(
    context: typer.Context,
    model: options.Model,
    out_path: Annotated[str, typer.Option("--out", metavar="DIR", help="The folder for the files.")],
    train: BundleTrain = False,
    target: BundleTarget = ["host"],  # noqa: B006  typer's way to say what is given
    batch: BundleBatch = None,
    dims: options.Dims = [],  # noqa: B006
    open_batch: options.OpenBatch = False,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="What symbols and files begin with.")] = None,
    weights: BundleWeights = "object",
    threads: BundleThreads = 1,
    fixed_point: options.FixedPoint = False,
    memory: options.Memory = None,
    micro_batches: options.MicroBatchCount = 1,
    residuals: options.Residuals = None,
    optimize: BundleOptimize = "speed",
    ram: BundleRam = None,
    board: Annotated[
        str | None,
        typer.Option(
            metavar="B",
            help=f"Also what an emulated board needs: {', '.join(BOARDS)}.",
            autocompletion=names(tuple(BOARDS)),
        ),
    ] = None,
    archive: Annotated[bool, typer.Option("--archive", help="libNAME.a as well, a static library.")] = False,
    shared: Annotated[
        bool, typer.Option("--shared", help="A shared library as well, and NAME.py, which needs NumPy alone.")
    ] = False,
    linker: Annotated[
        str | None, typer.Option("--cc", metavar="COMMAND", help="The C compiler that links the shared library.")
    ] = None,
    face: Annotated[
        list[str],
        typer.Option(metavar="F", help=f"Repeatable: {', '.join(FACES)}.", autocompletion=names(tuple(FACES))),
    ] = [],  # noqa: B006
    page: Annotated[
        bool, typer.Option("--page", help="For wasm32: a page as well, which trains the model on digits in a browser.")
    ] = False,
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
    """Write a model as files that run, and with --train also train, without Glowtrain, Python or any library.

    Out come an object file, its C header, a description in JSON, and a program that uses it with what it prints:
    make -C DIR check builds and compares that.

    Examples:

    glowtrain bundle model.onnx --out predicts --batch 1

    glowtrain bundle cnn --train --optimizer sgd --momentum 0.9 --batch 32 --target aarch64 --out trains

    glowtrain bundle cnn --train --batch 32 --target wasm32 --page --out page
    """
    require_train(context, train=train, others=("micro_batches", "residuals"))
    import_modules(modules)
    examples = data.digits().train if page else None
    network = open_model(model, parse_dims(dims), examples, open_batch=open_batch, untie=untie, training=train)
    rule = optimizer_of(
        optimizer, lr=lr, momentum=momentum, nesterov=nesterov or None, weight_decay=weight_decay,
        no_decay=tuple(no_decay) or None, clip_norm=clip_norm, clip_value=clip_value, accumulate=accumulate,
    )  # fmt: skip
    folder = folder_of(out_path)
    for each in target:
        made = bundles.bundle(
            network,
            folder / each if len(target) > 1 else folder,
            loss=losses.by_name(loss, output) if train else None,
            optimizer=rule if train else None,
            trainable=(trainable or None) if train else None,
            freeze_statistics=freeze_statistics and train,
            dims=batch_of(network, batch),
            target=each,
            name=name,
            weights=weights_of(weights),
            threads=threads,
            fixed_point=fixed_point,
            memory=memory,
            micro_batches=micro_batches,
            residuals=checked_type(residuals),
            optimize=optimize_of(optimize),
            ram=None if ram is None else parse_bytes(ram, "--ram"),
            board=board,
            seed=seed,
            archive=archive,
            shared=shared,
            linker=linker,
            faces=face,
            page=page,
        )
        out.print(str(made))


def weights_of(choice: str) -> Weights:
    """Where weights go, by name. Raises :class:`InputError`."""
    for known in ("object", "file", "none"):
        if choice == known:
            return known
    raise InputError(f"--weights {choice}: choose object, file or none")


def optimize_of(choice: str) -> Optimize:
    """What code is to be, by name. Raises :class:`InputError`."""
    for known in ("speed", "size"):
        if choice == known:
            return known
    raise InputError(f"--optimize {choice}: choose speed or size")


def batch_of(model: Graph | Template, batch: int | None) -> dict[str, int]:
    """What ``--batch`` binds: the one dimension that is open, the batch. Raises :class:`InputError` for others."""
    if batch is None:
        return {}
    symbol = batch_symbol(model)
    if symbol is None:
        found = ", ".join(model.symbols if isinstance(model, Template) else ()) or "none"
        has = f"{model.name} has {found}"
        raise InputError(f"--batch binds the batch, where nothing else is open; {has}: use --dims NAME=N")
    return {symbol: batch}
