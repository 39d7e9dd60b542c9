"""ONNX in and out: the only part of Glowtrain that imports ``onnx``. Names are imported when they are first used: who
reads a file needs no writer."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glowtrain.modes.training_and_inference import inference, make_trainable
    from glowtrain.onnx_io.write.save import save

_HOMES = {
    "inference": "glowtrain.modes.training_and_inference",
    "make_trainable": "glowtrain.modes.training_and_inference",
    "save": "glowtrain.onnx_io.write.save",
}

__all__ = ["inference", "make_trainable", "save"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
