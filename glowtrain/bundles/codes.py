"""Error codes of the C interface: the same numbers and names in every bundle."""

from __future__ import annotations

from enum import IntEnum


class ErrorCode(IntEnum):
    """What functions return; 0 is success. A function that returns another code has changed nothing, unless the text
    says so."""

    OK = 0
    NULL_POINTER = 1
    OTHER_VERSION = 2
    NOT_INITIALISED = 3
    MISALIGNED = 4
    TOO_SMALL = 5
    NOT_FINITE = 6
    NO_SUCH_VARIABLE = 7
    WRONG_SIZE = 8
    READ_FAILED = 9
    WRITE_FAILED = 10
    OTHER_WEIGHTS = 11
    OVERLAP = 12
    NO_WEIGHTS = 13

    @property
    def text(self) -> str:
        """What it means, for a person."""
        return _TEXTS[self]


_TEXTS = {
    ErrorCode.OK: "success",
    ErrorCode.NULL_POINTER: "a pointer that must not be null is null",
    ErrorCode.OTHER_VERSION: "the header is of another bundle or version than the object file",
    ErrorCode.NOT_INITIALISED: "the handle has not been initialised",
    ErrorCode.MISALIGNED: "variables or arena do not begin at a multiple of the alignment",
    ErrorCode.TOO_SMALL: "variables or arena have fewer bytes than are needed",
    ErrorCode.NOT_FINITE: "the loss or a hyperparameter is NaN or infinite; no variable has changed",
    ErrorCode.NO_SUCH_VARIABLE: "there is no variable of that number",
    ErrorCode.WRONG_SIZE: "a variable or an array has another size",
    ErrorCode.READ_FAILED: "reading failed or ended early; variables have changed only if it did so the second time",
    ErrorCode.WRITE_FAILED: "writing failed; what was written is incomplete",
    ErrorCode.OTHER_WEIGHTS: "the file holds the weights of another model",
    ErrorCode.OVERLAP: "variables and arena have bytes in common",
    ErrorCode.NO_WEIGHTS: "weights that are not in the object file have not all been set or loaded",
}
