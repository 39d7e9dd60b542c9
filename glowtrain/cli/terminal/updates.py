"""What ``inspect --budget`` prints."""

from __future__ import annotations

import shlex

from glowtrain.bundles.updates import Depth, Proposal
from glowtrain.cli.terminal.console import out
from glowtrain.memory.byte_size import byte_text
from glowtrain.presentation.tables import Table


def show_proposal(proposal: Proposal, title: str) -> None:
    """Print what is trained with its bytes, what was found at other depths, and the options for other commands."""
    found = proposal.bytes
    out.print(f"{title}: {byte_text(found.total)} of {byte_text(proposal.limit)}; what is not trained is constant")
    for name, size, remark in (
        ("parameters", found.parameters, "of which at least a part is trained"),
        ("optimizer", found.optimizer, "and other state"),
        ("arena", found.arena, _of_arena(proposal)),
    ):
        out.print(f"  {name:<12}{size:>12,} bytes  {remark}")
    out.print()
    rows = [
        (", ".join(each.trainable), f"{each.parameters:,}", f"{each.optimizer:,}", f"{each.share:.1%}")
        for each in proposal.choices
    ]
    out.print(Table(("trained", "parameters>", "optimizer>", "squared gradients>"), rows))
    out.print()
    tried = [
        (str(depth.layers), f"{depth.bytes.total:,}", f"{depth.bytes.arena:,}", f"{depth.share:.1%}", _listed(depth))
        for depth in proposal.depths
    ]
    out.print(Table(("last layers>", "bytes>", "arena>", "squared gradients>", "trained"), tried))
    out.print()
    out.file.write(f"{options_of(proposal)}\n")


def _of_arena(proposal: Proposal) -> str:
    if not proposal.bytes.fitted:
        return "activations and gradients"
    return f"with results computed again to fit: bundle and size take --memory {proposal.limit}"


def _listed(depth: Depth) -> str:
    return ", ".join(depth.trainable)


def options_of(proposal: Proposal) -> str:
    """The options with which ``train``, ``bundle`` and ``size`` do what was proposed."""
    chosen = [f"--trainable {shlex.quote(pattern)}" for pattern in proposal.trainable]
    return " ".join([*chosen, *(["--freeze-statistics"] if proposal.freeze_statistics else [])])
