"""What is asked for as a bundle, and the module that it becomes, within the memory that there is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from glowtrain.backends.cpu.backend import Cpu
from glowtrain.backends.cpu.threads.count import checked
from glowtrain.backends.discovery import backend_of
from glowtrain.backends.llvm.target import Target
from glowtrain.bundles.arguments import check_name, check_seed, target_of
from glowtrain.bundles.contents import PREDICT, STEP, Contents, batch_symbol, contents_of, step_with_constants
from glowtrain.bundles.devices.fitting import Beside, layers_of, require_ram
from glowtrain.bundles.devices.sizes import size_of
from glowtrain.bundles.module import BundleModule, module_of
from glowtrain.bundles.weights import Weights
from glowtrain.compiler.service import in_bytes
from glowtrain.compiler.walk import planned
from glowtrain.errors import BundleError, InputError, MemoryBudgetError
from glowtrain.graph import Graph, Template
from glowtrain.losses import Loss, LossFunction
from glowtrain.lower.own_updates import residuals_for
from glowtrain.memory.budget import KEEP, SMALLEST, UNSAID, Budget
from glowtrain.memory.residuals import Residuals, ResidualType
from glowtrain.optim import Optimizer
from glowtrain.presentation.words import kind_of
from glowtrain.stages import Options
from glowtrain.trainer.graphs import DEFAULT_BATCH
from glowtrain.trainer.micro_batches.split import AUTO, checked_count
from glowtrain.trainer.micro_batches.within_budget import proposing
from glowtrain.trainer.selection.patterns import Trainable
from glowtrain.trainer.trainer import Trainer

Optimize = Literal["speed", "size"]
"""What code is to be."""


@dataclass(frozen=True, kw_only=True)
class BundleRequest:
    """What is compiled, as :func:`bundle` takes it. Raises :class:`BundleError` for unknown choices."""

    model: Graph | Template | Trainer
    loss: str | Loss | LossFunction | None
    optimizer: Optimizer | None
    trainable: Trainable
    freeze_statistics: bool
    dims: Mapping[str, int]
    target: Target | str
    name: str | None = None
    weights: Weights
    threads: int
    fixed_point: bool
    optimize: Optimize
    seed: int
    memory: Budget
    micro_batches: int
    residuals: ResidualType

    def __post_init__(self) -> None:
        if self.optimizer is not None and not isinstance(self.optimizer, Optimizer):
            raise BundleError(f"optimizer must be one of gt.optim, not {kind_of(self.optimizer)}")
        check_name(self.name)
        check_seed(self.seed)
        if self.weights not in ("object", "file", "none"):
            raise BundleError(f"weights={self.weights!r}: choose object, file or none")
        if self.optimize not in ("speed", "size"):
            raise BundleError(f"optimize={self.optimize!r}: choose speed or size")

    @property
    def processor(self) -> Target:
        """The target; for ``host``, what a trainer itself computes with. Raises :class:`CodegenError` for an unknown
        one."""
        found = target_of(self.target)
        own = backend_of(self.model.backend) if isinstance(self.model, Trainer) else None
        if isinstance(own, Cpu) and self.target == "host":
            found = own.target
        return replace(found, compact=True) if self.optimize == "size" else found

    def module(self) -> BundleModule:
        """What files are written from. Raises :class:`MemoryBudgetError`, which says in how many parts of its batch a
        step would keep the budget."""
        try:
            return self._module()
        except MemoryBudgetError:
            contents = self._contents().fixed() if self._known else self._contents()
            if contents.trained is None:
                raise
            options = in_bytes(contents.graphs, self._options(contents))
            if not _keeps_budget(contents.graphs[PREDICT], options):
                raise  # parts of a batch would not help a prediction
            graphs, model = contents.trained
            with proposing(graphs, model.binding, options, self._backend, self._fixed_step):
                raise

    def _module(self) -> BundleModule:
        contents, threads = self._contents(), checked(self.threads)
        return module_of(contents, self.processor, self._options(contents), known=self._known, threads=threads)

    def _contents(self) -> Contents:
        return contents_of(
            self.model, self.loss, self.optimizer, self.trainable, self.dims, self.name,
            freeze_statistics=self.freeze_statistics, seed=self.seed, micro_batches=self.micro_batches,
        )  # fmt: skip

    def _fixed_step(self, step: Graph) -> Graph:
        """Another step of the same training, with constants as a bundle has them."""
        return step_with_constants(step) if self._known else step

    @property
    def _known(self) -> bool:
        """Whether the object holds the weights."""
        return self.weights == "object"

    @property
    def _backend(self) -> Cpu:
        return Cpu(self.processor, cache=None)

    def _options(self, contents: Contents) -> Options:
        return Options(
            facts=self._backend.facts, fixed_point=self.fixed_point,
            memory=self._budget, residuals=self._residuals(contents),
        )  # fmt: skip

    def _residuals(self, contents: Contents) -> Residuals | None:
        """How results of a step wait for its backward part: as was asked for, or as those of a trainer. Raises
        :class:`BundleError` where nothing is trained."""
        own = isinstance(self.model, Trainer) and self.model.residuals is not None
        given: ResidualType = "bf16" if own else self.residuals
        step = contents.graphs.get(STEP)
        if given is None or step is not None:
            return None if step is None else residuals_for(step, given)
        raise BundleError("residuals are those of a step: a bundle that trains needs a loss: loss=gt.losses...")

    @property
    def _budget(self) -> Budget:
        """What was asked for; where nothing was, a trainer's own."""
        return self.model.budget if isinstance(self.model, Trainer) and self.memory == UNSAID else self.memory

    def within(self, ram: int | None, beside: Beside | None = None) -> BundleModule:
        """The same. Raises :class:`BundleError` where it needs more than ``ram`` bytes, with what would fit.

        ``beside``: what a program that uses it needs itself.
        """
        module = self.module()
        if ram is not None:
            module = module if self._budget == KEEP else self._computing_again(module, ram, beside)
            symbol = self._open_dimension
            batch = None if symbol is None else self.dims.get(symbol, DEFAULT_BATCH)
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
        dims = {**self.dims, self._open_dimension: batch} if batch and self._open_dimension else self.dims
        parts = math.gcd(batch, self.micro_batches) if batch else self.micro_batches
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
        planned(graph, options)
    except MemoryBudgetError:
        return False
    return True


def _needed(module: BundleModule, beside: Beside | None) -> int:
    """Bytes of RAM that a program takes for a bundle."""
    size = size_of(module)
    return size.ram + (0 if beside is None else beside(module, size.stack))
