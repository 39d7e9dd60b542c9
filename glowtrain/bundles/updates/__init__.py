"""What of a model to train where memory is small: chosen by gradients, measured by plans."""

from glowtrain.bundles.updates.proposal import Choice, Proposal, propose

__all__ = ["Choice", "Proposal", "propose"]
