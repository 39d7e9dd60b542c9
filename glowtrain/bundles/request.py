"""Turn a request for a bundle into the module that is compiled, within the memory that there is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Literal

from glowtrain.backends.base import Backend
from glowtrain.backends.discovery import backend_for, backend_of
from glowtrain.backends.target import Target
from glowtrain.backends.thread_count import checked
from glowtrain.bundles.arguments import check_name, check_seed, dims_of, target_of
from glowtrain.bundles.contents import PREDICT, STEP, Contents, batch_symbol, contents_of, step_with_constants
from glowtrain.bundles.devices.fitting import Beside, layers_of, require_ram
from glowtrain.bundles.devices.sizes import size_of
from glowtrain.bundles.module import BundleModule, module_of
from glowtrain.bundles.weights import Weights
from glowtrain.compiler.service import in_bytes, options_for, plans_of
from glowtrain.errors import BundleError, InputError, MemoryBudgetError
from glowtrain.graph import Graph, Template
from glowtrain.losses import Loss, LossFunction
from glowtrain.memory.budget import KEEP, SMALLEST, UNSAID, Budget
from glowtrain.memory.byte_size import parse_bytes
from glowtrain.memory.resources import MOST_THREADS
from glowtrain.metrics.choose import as_metrics
from glowtrain.optim import Optimizer
from glowtrain.presentation.messages import kind_of
from glowtrain.settings import setting
from glowtrain.stages import Options
from glowtrain.trainer.graphs import DEFAULT_BATCH
from glowtrain.trainer.micro_batches.split import AUTO, checked_count
from glowtrain.trainer.micro_batches.within_budget import proposing
from glowtrain.trainer.settings import TrainingSettings
from glowtrain.trainer.trainer import Trainer

Optimize = Literal["speed", "size"]
"""What code is to be."""


@dataclass(frozen=True)
class BundleRequest(TrainingSettings):
    """A model, and how it becomes a bundle. Raises :class:`BundleError` for unknown choices, :class:`InputError` for a
    number of bytes that is none."""

    model: Graph | Template | Trainer
    _: KW_ONLY
    loss: str | Loss | LossFunction | None = setting(
        None, "The bundle trains: its functions are step and predict, over the same variables.", listed=False
    )
    optimizer: str | Optimizer | None = setting(None, "The optimizer of a bundle that trains (Adam).", listed=False)
    dims: Mapping[str, int] | None = setting(
        None, "Extents of open dimensions, such as the batch (64 if it is open).", listed=False
    )
    target: Target | str = setting("host", "The processor: a Target or its name.", listed=False)
    name: str | None = setting(None, "What symbols and files begin with.", metavar="NAME")
    weights: Weights = setting(
        "object", "In the object file (object), beside it (file), or left out (none).", metavar="W", type=str
    )
    threads: int = setting(
        1, "Threads that a host may share a step out to.", "Those of parallel_for at most; one needs none.",
        metavar="N", least=1, most=MOST_THREADS,
    )  # fmt: skip
    optimize: Optimize = setting("speed", "Code that is fast (speed) or small (size).", metavar="O", type=str)
    ram: float | str | None = setting(
        None,
        "What the processor has, such as 256KB: more is an error.",
        "What does not fit is computed again, unless memory is keep.",
        metavar="BYTES",
        type=str | None,
    )

    def __post_init__(self) -> None:
        parts_of_bundle(self.micro_batches)
        super().__post_init__()
        if self.optimizer is not None and not isinstance(self.optimizer, (str, Optimizer)):
            raise BundleError(f"optimizer must be one of gt.optim, not {kind_of(self.optimizer)}")
        if as_metrics(self.metrics) and not self.train_metrics:
            raise BundleError("metrics: a bundle measures nothing but its steps: train_metrics=True")
        check_name(self.name)
        check_seed(self.seed)
        if self.weights not in ("object", "file", "none"):
            raise BundleError(f"weights={self.weights!r}: choose object, file or none")
        if self.optimize not in ("speed", "size"):
            raise BundleError(f"optimize={self.optimize!r}: choose speed or size")
        dims_of(self.dims)
        _ = self.room

    @property
    def room(self) -> int | None:
        """The bytes of memory that the processor has, where somebody said."""
        return None if self.ram is None else parse_bytes(self.ram, "ram")

    @property
    def processor(self) -> Target:
        """The target; for ``host``, what a trainer itself computes with. Raises :class:`CodegenError` for an unknown
        one."""
        found = target_of(self.target)
        own = backend_of(self.model.backend).target if isinstance(self.model, Trainer) else None
        if own is not None and self.target == "host":
            found = own
        return replace(found, compact=True) if self.optimize == "size" else found

    def module(self) -> BundleModule:
        """What files are written from. Raises :class:`MemoryBudgetError`, which says in how many parts of its batch a
        step would keep the budget."""
        try:
            return self._module()
        except MemoryBudgetError:
            whole = self._contents()
            contents = whole.fixed() if self._known else whole
            if contents.trained is None:
                raise
            options = in_bytes(contents.graphs, self._options(whole))
            if not _keeps_budget(contents.graphs[PREDICT], options):
                raise  # parts of a batch would not help a prediction
            graphs, model = contents.trained
            with proposing(graphs, model.binding, options, self._backend, self._fixed_step):
                raise

    def _module(self) -> BundleModule:
        contents, threads = self._contents(), checked(self.threads)
        return module_of(contents, self.processor, self._options(contents), holds_weights=self._known, threads=threads)

    def _contents(self) -> Contents:
        return contents_of(self.model, self.loss, self.optimizer, self, dims_of(self.dims), self.name)

    def _fixed_step(self, step: Graph) -> Graph:
        """Another step of the same training, with constants as a bundle has them."""
        return step_with_constants(step) if self._known else step

    @property
    def _known(self) -> bool:
        """Whether the object holds the weights."""
        return self.weights == "object"

    @property
    def _backend(self) -> Backend:
        return backend_for(self.processor)

    def _options(self, contents: Contents) -> Options:
        """How functions are compiled. Raises :class:`BundleError` for residuals where nothing is trained."""
        settings = replace(self, memory=self._budget)
        if isinstance(self.model, Trainer):
            own = self.model.spec
            given = own.precision or self.precision, own.residuals or self.residuals
            settings = replace(settings, precision=given[0], residuals=given[1])
        if settings.residuals is not None and STEP not in contents.graphs:
            raise BundleError("residuals are those of a step: a bundle that trains needs a loss: loss=gt.losses...")
        return options_for(contents.graphs.get(STEP, contents.graphs[PREDICT]), settings, self._backend.facts)

    @property
    def _budget(self) -> Budget:
        """What was asked for; where nothing was, a trainer's own."""
        return self.model.spec.budget if isinstance(self.model, Trainer) and self.budget == UNSAID else self.budget

    def within(self, ram: int | None, beside: Beside | None = None) -> BundleModule:
        """The same. Raises :class:`BundleError` where it needs more than ``ram`` bytes, with what would fit.

        ``beside``: what a program that uses it needs itself.
        """
        module = self.module()
        if ram is not None:
            module = module if self._budget == KEEP else self._computing_again(module, ram, beside)
            symbol = self._open_dimension
            batch = None if symbol is None else dims_of(self.dims).get(symbol, DEFAULT_BATCH)
            layers = () if isinstance(self.model, Trainer) else layers_of(module)
            require_ram(module, ram, self._changed, batch, layers, beside)
        return module

    def _computing_again(self, module: BundleModule, ram: int, beside: Beside | None) -> BundleModule:
        """A module that computes as much again as it takes to fit, where it does not; if that is too little, all that
        makes less memory do."""
        size = size_of(module)
        limit, step = size.variables + size.arena, 0
        while (excess := _needed(module, beside) - ram) > 0:
            step = max(excess, 2 * step)  # what a budget does not count, workspaces and stack, may change with it
            limit -= step
            try:
                module = replace(self, memory=Budget(nbytes=limit))._module()
            except MemoryBudgetError:
                return replace(self, memory=SMALLEST)._module()
        return module

    def _changed(self, batch: int | None, layers: Sequence[str] | None) -> BundleModule:
        """With another batch, in as many parts as that can be cut into, and other parameters trained, as far as these
        are given."""
        dims = dims_of(self.dims)
        if batch and self._open_dimension:
            dims = {**dims, self._open_dimension: batch}
        count = parts_of_bundle(self.micro_batches)
        parts = math.gcd(batch, count) if batch else count
        trained = layers or self.trainable
        return replace(self, dims=dims, trainable=trained, memory=SMALLEST, micro_batches=parts).module()

    @property
    def _open_dimension(self) -> str | None:
        """The only one that is open, which is the batch."""
        return batch_symbol(self.model.graphs.model if isinstance(self.model, Trainer) else self.model)


def parts_of_bundle(count: object) -> int:
    """The number of parts of a batch. Raises :class:`BundleError` for what is none."""
    try:
        found = checked_count(count)
    except InputError as error:
        raise BundleError(f"{error}") from None
    if found == AUTO:
        raise BundleError("micro_batches: a bundle needs a number; the error of a budget that is too small says which")
    return found


def _keeps_budget(graph: Graph, options: Options) -> bool:
    try:
        plans_of({PREDICT: graph}, options)
    except MemoryBudgetError:
        return False
    return True


def _needed(module: BundleModule, beside: Beside | None) -> int:
    """Bytes of RAM that a program takes for a bundle."""
    size = size_of(module)
    return size.ram + (0 if beside is None else beside(module, size.stack))
