"""Training: one compiled step, run over data, with checkpoints that resume to the bit."""

from glowtrain.trainer.history import History
from glowtrain.trainer.trainer import Trainer

__all__ = ["History", "Trainer"]
