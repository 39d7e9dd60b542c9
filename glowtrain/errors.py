"""The exception tree. Everything Glowtrain raises on purpose derives from :class:`GlowtrainError`."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from pickle import PicklingError


class GlowtrainError(Exception):
    """A mistake that a person can act on; the command line prints it without a traceback."""


class ShapeError(GlowtrainError):
    """An operator's rule about types, shapes or attributes is broken."""


class GraphError(GlowtrainError):
    """A graph is not well formed; ``problems`` lists everything that is wrong."""

    def __init__(self, title: str, problems: Sequence[str] = ()) -> None:
        self.problems = tuple(problems)
        super().__init__(title + "".join(f"\n  - {problem}" for problem in self.problems))


class ProgramError(GraphError):
    """A low-level program is not well formed."""


class TextError(GlowtrainError):
    """The text form of a graph or program cannot be parsed; the message names the line."""


class ModelError(GlowtrainError):
    """A model file cannot be read: truncated, not ONNX, broken, or outside what is supported."""


class UnsupportedOperatorError(ModelError):
    """The model uses operators that are not in the registry; all of them are named at once."""


class UnknownValueError(ModelError):
    """A model can only be built when the elements of some inputs are known; ``names`` says which."""

    def __init__(self, message: str, names: Sequence[str]) -> None:
        self.names = tuple(names)
        super().__init__(message)


class PluginError(GlowtrainError):
    """A package that offers operators cannot be imported, or an operator class is not one."""


class BindingError(GlowtrainError):
    """A symbolic dimension has no value, or two values that disagree."""


class InputError(GlowtrainError):
    """A call's inputs do not fit the function: missing, unknown, wrong shape, dtype or range."""


class MemoryBudgetError(InputError):
    """A budget of memory cannot be kept; the message says the least that can, and what would help."""


class MissingExtraError(InputError, ImportError):
    """What was asked for needs a package that is not installed; the message says which extra of ours brings it."""


class DifferentiationError(GlowtrainError):
    """A gradient cannot be formed; the message names the operator that cuts the path."""


class CodegenError(GlowtrainError):
    """Native code could not be produced; the message names the function."""


class ArtifactError(GlowtrainError):
    """Compiled code cannot be read or loaded: damaged, of another version, or for another processor."""


class BundleError(GlowtrainError):
    """A bundle cannot be made, read or called: what is open or too large, what a target cannot do, an error code."""


class BackendError(GlowtrainError):
    """A package that offers a backend cannot be imported, or what it offers is not one."""


class DeviceError(GlowtrainError):
    """A device failed at a call, or its memory does not suffice; the message names the device."""


class DeviceLostError(DeviceError):
    """A device has stopped working: it raises, hangs or is gone, and is out of service."""


class PartitionError(GlowtrainError):
    """A network cannot be cut as asked: an operator that no device supports, a memory limit that nothing fits into; or
    a partition is not well formed. ``problems`` lists what is wrong, where there are several things."""

    def __init__(self, title: str, problems: Sequence[str] = ()) -> None:
        self.problems = tuple(problems)
        super().__init__(title + "".join(f"\n  - {problem}" for problem in self.problems))


class ProvisionError(GlowtrainError):
    """A network cannot be put onto devices; nothing of it was left there."""


class RequestError(GlowtrainError):
    """A request to the runtime was not answered."""


class UnknownNetworkError(RequestError):
    """The runtime has no network of this name and version."""


class QueueFullError(RequestError):
    """A network's queue is full; the message names the limit."""


class DeadlineError(RequestError):
    """A request was not answered in time."""


class BusyError(RequestError):
    """The server works on as many requests, or bytes of them, as it takes at once; the message names the limit."""


class UnavailableError(RequestError):
    """A network was removed, the runtime was closed, or no device is left to run it."""


class RequestSizeError(RequestError):
    """A request is larger than the server takes; the message names the limit."""


class RequestTimeoutError(RequestError):
    """A request took longer to arrive than the server waits; the message names the limit."""


class AccessError(RequestError):
    """A request does not carry the token that the server asks for."""


class NonFiniteError(GlowtrainError):
    """The loss became NaN or infinite; the message names the first value that went bad."""


class DataError(GlowtrainError):
    """A data set is missing or broken."""


class BatchError(DataError):
    """A source of batches failed, ended early, or gave a batch that does not fit.

    ``batch`` is its number in the epoch, ``epoch`` that of the epoch, both from 1; None outside of training. What the
    source raised is the cause.
    """

    def __init__(self, message: str, batch: int | None = None, epoch: int | None = None) -> None:
        self.batch = batch
        self.epoch = epoch
        super().__init__(message)


class CheckpointError(GlowtrainError):
    """A checkpoint cannot be written, read or does not belong to this training run."""


class UnpicklableError(GlowtrainError, PicklingError):
    """Something cannot be pickled as it is; the message says which part, and what to do."""


class VerificationError(GlowtrainError):
    """Two rungs of the ladder, or a gradient and its check, disagree."""


class QuantizationError(GlowtrainError):
    """A model cannot be quantized as asked: a range, a scheme or the calibration data break a rule."""


class CacheWarning(UserWarning):
    """Compiled code cannot be kept on disk; the message says why. It is compiled in each process then."""


class BatchesWarning(UserWarning):
    """A source gave another number of batches than its ``len()`` says."""


class UntrainedWarning(UserWarning):
    """The loss does not depend on some of the parameters that are to be trained: they stay as they are."""


class SharedWeightsWarning(UserWarning):
    """Several nodes read one initializer and train it together, and the file does not say whether they should.

    ``readers`` are the nodes by the initializer's name.
    """

    def __init__(self, message: str, readers: Mapping[str, Sequence[str]]) -> None:
        self.readers = dict(readers)
        super().__init__(message)


class FleetError(GlowtrainError):
    """Ranks of a fleet differ, cannot reach each other, or one of them has failed; the message names it."""


def install_advice(extra: str) -> str:
    """The command that adds an extra to this installation: of a checkout, or of a wheel, where the name stands for the
    version that is installed."""
    checkout = Path(__file__).parents[1]
    if (checkout / "pyproject.toml").is_file():
        return f"{_pip()} install -e '.[{extra}]' in {checkout}"
    return f"{_pip()} install 'glowtrain[{extra}]'"


def _pip() -> str:
    """What installs into this environment: those that uv makes have no pip."""
    described = Path(sys.prefix, "pyvenv.cfg")
    made_by_uv = described.is_file() and "\nuv = " in described.read_text(encoding="utf-8")
    return "uv pip" if made_by_uv else "pip"


def check_extra(what: str, name: str, package: str, extra: str) -> None:
    """Raise :class:`MissingExtraError`, which says what to install, if a package of an extra is not there."""
    if importlib.util.find_spec(package) is None:
        raise MissingExtraError(f"{what} needs {name}: {install_advice(extra)}")
