"""What a person says of a fleet."""

from __future__ import annotations

from dataclasses import dataclass

from glowtrain.errors import InputError
from glowtrain.memory.byte_size import parse_bytes
from glowtrain.settings import setting, takes

FLEET = "Fleet"
"""The command line's panel of these settings."""
GRADIENTS = "f32", "bf16"
"""What gradients of f32 travel as."""
SHARDS = 16
"""Shards of a batch where nobody says how many: 1, 2, 4, 8 or 16 ranks share them."""


@dataclass(frozen=True)
class FleetSpec:
    """Processes that train one model together. Raises :class:`InputError` for what cannot be one of its settings."""

    shards: int = setting(
        SHARDS,
        "Parts of each batch, which decide about the bits; the number of ranks must divide them.",
        "Each shard is a batch of its own: BatchNormalization takes its statistics. Their gradients are added up in a "
        "tree that is the same for any number of ranks.",
        metavar="N",
        least=1,
        panel=FLEET,
    )
    timeout: float = setting(
        60.0,
        "Seconds after which ranks that wait for another one end the job.",
        "That is long enough for what only some ranks have to do meanwhile: compiling, reading data.",
        metavar="S",
        flag="--fleet-timeout",
        panel=FLEET,
    )
    bucket: int | str = setting(
        "1MB",
        "Gradients that travel together, in bytes.",
        "Results are the same to the bit with any. Smaller ones begin to travel earlier, and cost more messages.",
        metavar="B",
        flag="--fleet-bucket",
        type=str,
        panel=FLEET,
    )
    gradients: str = setting(
        "f32",
        "The type in which gradients of f32 are added up and travel: f32, or bf16, which is half as many bytes.",
        "In bf16 each shard's gradient, and each sum of two, is rounded, whatever the number of ranks.",
        metavar="T",
        flag="--fleet-gradients",
        panel=FLEET,
        choices=GRADIENTS,
    )
    overlap: bool = setting(
        True,
        "Send gradients that are complete while the backward part of the step goes on, or wait for all of it.",
        "Results are the same to the bit.",
        flag="--overlap/--wait",
        panel=FLEET,
    )
    sharded_optimizer: bool = setting(
        False,
        "Keep a part of the optimizer's state on each rank, which updates that part of the parameters.",
        "Results are the same to the bit. A checkpoint has all of it; trainer.gather() on all ranks brings it to rank "
        "0. The optimizer must work element by element.",
        flag="--fleet-sharded-optimizer",
        panel=FLEET,
    )

    def __post_init__(self) -> None:
        if self.shards < 1 or self.shards != int(self.shards):
            raise InputError(f"fleet: shards must be a whole number of at least 1, not {self.shards!r}")
        if self.gradients not in GRADIENTS:
            raise InputError(f"fleet: gradients must be {' or '.join(GRADIENTS)}, not {self.gradients!r}")
        if not self.timeout > 0:
            raise InputError(f"fleet: timeout must be a number of seconds above 0, not {self.timeout!r}")
        self.limit  # noqa: B018 - raises for what are no bytes

    @property
    def limit(self) -> int:
        """Bytes of a bucket."""
        return parse_bytes(self.bucket, "bucket")


@takes(FleetSpec)
def mpi(spec: FleetSpec) -> FleetSpec:
    """The processes that a launcher of MPI started together, as a fleet: ``Trainer(..., fleet=gt.fleet.mpi())``.

    Without a launcher it is a fleet of one, with the same bits.
    """
    return spec
