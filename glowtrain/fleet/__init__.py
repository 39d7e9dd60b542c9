"""Training on several processes and machines, with the bits of one. Imported as ``glowtrain.fleet``."""

from glowtrain.fleet.spec import FleetSpec, mpi

__all__ = ["FleetSpec", "mpi"]
