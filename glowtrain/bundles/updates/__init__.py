"""What of a model to train where memory is small: chosen by gradients, measured by plans."""

from glowtrain.bundles.updates.proposal import Choice, Depth, Proposal, propose

__all__ = ["Choice", "Depth", "Proposal", "propose"]
