"""What compiled code may use: memory, threads, the type of products, rounding of what is saved for the backward
pass."""

from __future__ import annotations

from dataclasses import dataclass

from glowtrain.memory.budget import Budget, Memory, budget_of
from glowtrain.memory.precision import Precision, checked_precision, precision_in
from glowtrain.memory.residuals import ResidualType, checked_type
from glowtrain.settings import setting

TRAINING, OUTPUT = "Training", "Output"
"""The command line's panels of settings that mean something where something is trained, and of files."""
MOST_THREADS = 1024
"""Threads of one pool at most."""


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Settings of everything that is compiled. Raises :class:`InputError` for what is no budget of memory, no precision
    and no type of residuals."""

    threads: int | None = setting(
        None,
        "Threads of compiled code (as many as there are cores).",
        "For the cpu backend, the cores that this process may use. Results are the same with any number.",
        metavar="N",
        least=1,
        most=MOST_THREADS,
    )
    memory: Memory = setting(
        None,
        "Memory of a step: bytes (64MB), a share of what it needs (50%), small, or keep (compute nothing again).",
        "Variables and the arena together; a share (0.5) is of what they need otherwise, in a bundle of what all its "
        "functions need together, as "
        "glowtrain.memory.budget.budget_of says. Results are the same to the bit.",
        metavar="M",
        type=str | None,
    )
    precision: Precision = setting(
        None,
        "The type of the factors of matrix products and convolutions: bf16, with sums and all else in f32; of some "
        "layers (repeatable): 'head:f32'.",
        "Parameters, optimizer, norms, softmax and losses stay in f32, and so do convolutions of few channels. "
        "Results are the same bits on every processor. Of {'*': 'bf16', 'head': 'f32'} the last pattern that fits a "
        "layer counts: its name, that of a module that it is in, or of one of its parameters.",
        metavar="T",
        type=list[str],
        parse=precision_in,
    )
    residuals: ResidualType = setting(
        None,
        "What the backward pass reads of the forward pass waits for it as bf16, in half of the memory: bf16.",
        "Outputs and the loss of a step keep their bits; gradients are those at rounded values, the same with any "
        "memory but small and limits that this does not meet: with those less is rounded.",
        metavar="T",
        type=str | None,
        panel=TRAINING,
    )
    fixed_point: bool = setting(
        False,
        "Quantized models in integers alone, without floats.",
        "Sums of quantized products are rescaled as processors without floating point do; results can be one unit from "
        "those without it.",
    )

    def __post_init__(self) -> None:
        budget_of(self.memory)
        checked_precision(self.precision)
        checked_type(self.residuals)

    @property
    def budget(self) -> Budget:
        """The memory that may be used."""
        return budget_of(self.memory)
