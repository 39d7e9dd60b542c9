"""The functions of a bundle as their callers see them: names, element types and shapes of what they take and give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from glowtrain.backends.table import LinkableFunction
from glowtrain.bundles.c_names import MACROS
from glowtrain.bundles.codes import ErrorCode
from glowtrain.bundles.contents import STEP, identifier
from glowtrain.bundles.faces.identifiers import named, unused, word_set
from glowtrain.grad.training import LOSS
from glowtrain.optim import HYPER
from glowtrain.types import DType, TensorType


class Element(NamedTuple):
    """What an element type is in the languages of bundles. 16-bit floats are passed as their bits."""

    c: str
    rust: str
    fortran: str
    """Which has no unsigned types."""
    javascript: str
    """A typed array."""


ELEMENTS: Mapping[str, Element] = {
    "f64": Element("double", "f64", "real(c_double)", "Float64Array"),
    "f32": Element("float", "f32", "real(c_float)", "Float32Array"),
    "f16": Element("uint16_t", "u16", "integer(c_int16_t)", "Uint16Array"),
    "bf16": Element("uint16_t", "u16", "integer(c_int16_t)", "Uint16Array"),
    "i64": Element("int64_t", "i64", "integer(c_int64_t)", "BigInt64Array"),
    "i32": Element("int32_t", "i32", "integer(c_int32_t)", "Int32Array"),
    "i16": Element("int16_t", "i16", "integer(c_int16_t)", "Int16Array"),
    **dict.fromkeys(("i8", "i4", "i2"), Element("int8_t", "i8", "integer(c_int8_t)", "Int8Array")),
    "u64": Element("uint64_t", "u64", "integer(c_int64_t)", "BigUint64Array"),
    "u32": Element("uint32_t", "u32", "integer(c_int32_t)", "Uint32Array"),
    "u16": Element("uint16_t", "u16", "integer(c_int16_t)", "Uint16Array"),
}
_BYTE = Element("uint8_t", "u8", "integer(c_int8_t)", "Uint8Array")
_KEYWORDS = (
    "auto break case char const continue default do double else enum extern float for goto if inline int long register "
    "restrict return short signed sizeof static struct switch typedef union unsigned void volatile while "
    "alignas alignof and asm bool catch class const_cast constexpr decltype delete dynamic_cast explicit export false "
    "friend mutable namespace new noexcept not nullptr operator or private protected public reinterpret_cast requires "
    "static_assert static_cast template this thread_local throw true try typeid typename using virtual wchar_t xor "
    "concept main NULL"
)
KEYWORDS = frozenset(_KEYWORDS.split())
"""Of C and C++, with two names that a program has."""
_TYPES = "int8_t uint8_t int16_t uint16_t int32_t uint32_t int64_t uint64_t size_t"
RESERVED = KEYWORDS | MACROS | {"handle", "hyper", LOSS, *_TYPES.split()}
"""Keywords, types, macros and parameters of the interface: no input or output is called so."""
_INTERFACE = word_set(
    "alignment arena_bytes close defaults error file_bytes find get h handle hpp hyper init load load_file memory "
    "message model open owned parallel_for parameter predict read reset return_codes save save_file set size sizes "
    "state statistic step threads variable variables variables_bytes version write"
) | {code.name.lower() for code in ErrorCode}
"""What stands behind a bundle's name in its own names, as Fortran reads them: without regard to case."""


def element_of(dtype: DType) -> Element:
    """What elements of a type are in other languages; those that none of them has are bytes."""
    return ELEMENTS.get(dtype.name, _BYTE)


def parameter(name: str) -> str:
    """A name as that of a parameter: one in capitals could be a macro of some header."""
    return f"{name}_" if len(name) > 1 and name.isupper() else name


@dataclass(frozen=True)
class BundleTensor:
    """An input or output: its name in C and in the model, and its type."""

    name: str
    source: str
    type: TensorType

    @property
    def element(self) -> Element:
        """The type of its elements in other languages."""
        return element_of(self.type.dtype)


@dataclass(frozen=True)
class BundleFunction:
    """A function: its inputs (without hyperparameters) and outputs in the order of its parameters, and its code."""

    name: str
    inputs: tuple[BundleTensor, ...]
    hyper: tuple[BundleTensor, ...]
    outputs: tuple[BundleTensor, ...]
    code: LinkableFunction

    @property
    def trains(self) -> bool:
        """Whether it updates variables, and checks its loss."""
        return self.name == STEP

    @property
    def takes(self) -> str:
        """Its name with its inputs and their types, which say for how many examples it is: ``predict(x f32[4,8])``."""
        return f"{self.name}({', '.join(f'{each.name} {each.type}' for each in self.inputs)})"


def function_of(bundle: str, name: str, code: LinkableFunction) -> BundleFunction:
    """The function that a planned program is in a bundle of some name."""
    program = code.plan.program
    given = {name: buffer.type for name, buffer in program.inputs.items()}
    hyper = {source: type_ for source, type_ in given.items() if source.startswith(HYPER)}
    inputs = {source: type_ for source, type_ in given.items() if source not in hyper}
    outputs = {name: buffer.type for name, buffer in program.outputs.items()}
    reserved = {LOSS} & outputs.keys()
    return BundleFunction(
        name,
        tuple(_tensors(bundle, inputs, reserved)),
        tuple(BundleTensor(identifier(s.removeprefix(HYPER)), s, type_) for s, type_ in hyper.items()),
        tuple(_tensors(bundle, outputs, reserved - {LOSS})),
        code,
    )


def _tensors(bundle: str, types: Mapping[str, TensorType], reserved: set[str]) -> Sequence[BundleTensor]:
    """Tensors whose names in C differ, from those that are taken, too, which they join."""
    names = dict[str, str]()
    for source in sorted(types, key=lambda each: identifier(each) != each):  # what can keep its name does
        names[source] = unused(_named_in_c(bundle, source, reserved), reserved)
        reserved.add(names[source])
    return [BundleTensor(names[source], source, type_) for source, type_ in types.items()]


def _named_in_c(bundle: str, source: str, reserved: Set[str]) -> str:
    name, prefix = identifier(source), f"{bundle.lower()}_"
    if source == LOSS and LOSS not in reserved:
        return name
    own = name.lower() == bundle.lower() or (
        name.lower().startswith(prefix) and name.lower().removeprefix(prefix) in _INTERFACE
    )
    return named(name, RESERVED | {name} if own else RESERVED)


def hyper_of(functions: Sequence[BundleFunction]) -> tuple[BundleTensor, ...]:
    """The hyperparameters of the function that trains."""
    return next((function.hyper for function in functions if function.trains), ())
