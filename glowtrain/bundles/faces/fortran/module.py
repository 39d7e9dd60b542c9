"""A Fortran module over the C interface (``iso_c_binding``), with an example that prints what ``main.c`` prints.

Arrays have the axes of the model in Fortran's order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from glowtrain.bundles.codes import ErrorCode
from glowtrain.bundles.faces.fortran.names import LONGEST_NAME, assumed_extents, dummies, extents, short_lines
from glowtrain.bundles.faces.identifiers import named
from glowtrain.bundles.faces.templates import filled, filled_for, template_text
from glowtrain.bundles.module import BundleModule
from glowtrain.bundles.signature import BundleFunction, BundleTensor, element_of, hyper_of
from glowtrain.bundles.verify.trace import printable
from glowtrain.errors import BundleError
from glowtrain.types import DType, TensorType
from glowtrain.version import __version__

FOLDER, TEMPLATE = "fortran", "fortran/model.f90"
_PIECE = 40
"""Letters of a text that a line has room for, whatever they are."""


def fortran(module: BundleModule, archive: bytes, example: bool) -> dict[str, bytes]:
    """The module, and with an example a program and its Makefile, by their paths below the bundle's folder.

    Raises :class:`BundleError` for names that are too long for Fortran.
    """
    if len(module.name) > LONGEST_NAME:
        raise BundleError(
            f"{module.name} is too long a name for Fortran: choose one of {LONGEST_NAME} letters (--name)"
        )
    texts = {f"{module.name}.f90": source(module)}
    if example:
        texts |= {"main.f90": program(module, _space(module.name)), "Makefile": filled("fortran/Makefile", module.name)}
    return {f"{FOLDER}/{path}": text.encode() for path, text in texts.items()}


def _space(name: str) -> str:
    """What the module is called: like nothing that stands in it, where Fortran does not tell cases apart."""
    reserved = set(re.findall(r"[a-z]\w*", re.sub("!.*", "", template_text(TEMPLATE).lower())))
    return named(name, {name} if name.lower() in reserved else set())


def source(module: BundleModule) -> str:
    """The text of the module."""
    name, hyper = module.name, hyper_of(module.functions)
    text = filled_for(
        module,
        TEMPLATE,
        space=_space(name),
        about=f"{name}, for {module.target.name}, by Glowtrain {__version__}",
        signed_version=_signed(module.version),
        codes=[
            f"! {code.text}\ninteger(c_int32_t), parameter, public :: {name}_{code.name} = {code.value}"
            for code in ErrorCode
        ],
        hyper=[f"{e.element.fortran} :: {e.name} = {_default(module, e)}" for e in hyper],
        publics=[f"public :: {name}_{function.name}" for function in module.functions],
        calls=[line for function in module.functions for line in _interface(name, function)],
        checked=[line for function in module.functions for line in _checked(name, function)],
    )
    return short_lines(text)


def _default(module: BundleModule, tensor: BundleTensor) -> str:
    return f"{module.hyper[tensor.name]!r}_{'c_double' if tensor.type.dtype.name == 'f64' else 'c_float'}"


def _signed(number: int) -> str:
    """An unsigned number of 32 bits as Fortran has it; the least one is no literal."""
    if number == 1 << 31:
        return "-2147483647_c_int32_t - 1_c_int32_t"
    return f"{number - (1 << 32) if number >> 31 else number}_c_int32_t"


def _interface(name: str, function: BundleFunction) -> Iterator[str]:
    """The function of C, which takes addresses: what ``_checked`` calls."""
    yield f"function {name}_{function.name}_raw(handle, {', '.join(dummies(function))}) &"
    yield f'    bind(C, name="{name}_{function.name}") result(code)'
    yield "  import"
    yield from _declarations(name, function, extents)
    yield "end function"


def _checked(name: str, function: BundleFunction) -> Iterator[str]:
    """The function that is called: arrays bring their shapes, which must be those of the model."""
    arguments = ", ".join(["handle", *dummies(function)])
    yield f"function {name}_{function.name}({arguments}) result(code)"
    yield from _declarations(name, function, assumed_extents)
    yield f"  code = {name}_WRONG_SIZE"
    for argument, tensor in dummies(function).items():
        if tensor is not None and tensor.type.shape:
            yield f"  if (any(shape({argument}) /= [{extents(tensor.type)[1:-1]}])) return"
    yield f"  code = {name}_{function.name}_raw({arguments})"
    yield "end function\n"


def _declarations(name: str, function: BundleFunction, shape: Callable[[TensorType], str]) -> Iterator[str]:
    """The types of arguments and result. What may be left out of a step has no axes."""
    yield f"  type({name}_handle), intent(inout) :: handle"
    for argument, tensor in dummies(function).items():
        if tensor is None:
            yield f"  type({name}_hyper), intent(in), optional :: {argument}"
            continue
        intent = "in" if tensor in function.inputs else "out"
        optional = ", optional" if function.trains and intent == "out" else ""
        yield f"  {tensor.element.fortran}, intent({intent}){optional} :: {argument}{shape(tensor.type)}"
    yield "  integer(c_int32_t) :: code"


def program(module: BundleModule, space: str) -> str:
    """The text of ``main.f90``; ``space`` is what the module is called."""
    step = module.step
    dtypes = {each.type.dtype for function in module.functions for each in function.inputs}
    text = filled_for(
        module,
        "fortran/main.f90",
        space=space,
        halves=any(dtype.name == "f16" for dtype in dtypes),
        fills=map(_fill, sorted(dtypes, key=str)),
        declared=[line for function in module.functions for line in _declared(function)],
        step=[*_call(module.name, step)] if step else [],
        loss=_buffer(step, step.outputs[0]) if step else "",
        bits=8 * step.outputs[0].type.dtype.size if step else 0,
        calls=[
            line for function in module.predictions for line in (*_call(module.name, function), *_printed(function))
        ],
    )
    return short_lines(text)


def _declared(function: BundleFunction) -> Iterator[str]:
    for each in (*function.inputs, *function.outputs):
        yield f"{each.element.fortran}, target :: {_buffer(function, each)}{extents(each.type) or '(1)'}"


def _buffer(function: BundleFunction, tensor: BundleTensor) -> str:
    """A name for an argument's memory: numbers tell apart what differs only by case."""
    at = [*function.inputs, *function.outputs].index(tensor)
    return f"{function.name}_{tensor.name.lower()[:LONGEST_NAME]}_{at}"


def _call(name: str, function: BundleFunction) -> Iterator[str]:
    """Fill the inputs of a function, and call it: outputs are named, as hyperparameters before them are left out."""
    for each in function.inputs:
        yield f"call fill_{each.type.dtype}({_buffer(function, each)})"
    arguments = ["model%handle"]
    for argument, tensor in dummies(function).items():
        if tensor is not None:
            actual = f"{_buffer(function, tensor)}{'' if tensor.type.shape else '(1)'}"
            arguments.append(actual if tensor in function.inputs else f"{argument}={actual}")
    yield f'call check("{function.name}", {name}_{function.name}({", ".join(arguments)}))'


def _printed(function: BundleFunction) -> Iterator[str]:
    """Print a checksum of each output. A long name is printed in pieces, so that no line is too long."""
    for each in function.outputs:
        text = f"{function.name}: {printable(each.source)} "
        pieces = (text[at : at + _PIECE].replace('"', '""') for at in range(0, len(text), _PIECE))
        listed = ", ".join(f'"{piece}"' for piece in pieces)
        yield f"state = not(checksum(not(0_c_int32_t), c_loc({_buffer(function, each)}), {each.type.nbytes}_c_size_t))"
        yield f"print '(*(a))', {listed}, hex(int(state, c_int64_t), 8)"


def _fill(dtype: DType) -> str:
    """The subroutine that draws a number of an element type."""
    number = "real(word() - 128, c_float) / 64.0_c_float" if dtype.is_float else "iand(word(), 1_c_int64_t)"
    bits = f"transfer({number}, 0_c_int32_t)"
    value = {"f16": f"half({bits})", "bf16": f"int(shifta({bits}, 16), c_int16_t)"}.get(
        dtype.name, f"{'real' if dtype.is_float else 'int'}({number}, kind(number))"
    )
    return (
        f"impure elemental subroutine fill_{dtype}(number)\n  {element_of(dtype).fortran}, intent(out) :: number\n"
        f"  number = {value}\nend subroutine\n"
    )
