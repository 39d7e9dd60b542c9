"""Ready callbacks for :meth:`~glowtrain.trainer.trainer.Trainer.fit`, and loggers.

Each is an object with some of the methods ``on_train_begin``, ``on_batch_end``, ``on_epoch_end``, ``on_train_end``,
which are called with a :class:`~glowtrain.trainer.fitting.moments.Moment`. Those without ``on_batch_end`` cost nothing
between batches: short steps go on to run many in one native call.
"""

from glowtrain.callbacks.control import BestCheckpoint, GradientNorms, ReduceOnPlateau, TimeLimit
from glowtrain.callbacks.loggers import CSV, MLflow, TensorBoard, WandB
from glowtrain.trainer.fitting.moments import Moment

__all__ = [
    "CSV",
    "BestCheckpoint",
    "GradientNorms",
    "MLflow",
    "Moment",
    "ReduceOnPlateau",
    "TensorBoard",
    "TimeLimit",
    "WandB",
]
