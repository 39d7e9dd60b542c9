"""A Fortran module over the C interface (``iso_c_binding``). Arrays have the axes of the model in Fortran's order."""

from __future__ import annotations

import re
from collections.abc import Iterator

from glowtrain.bundles.codes import ErrorCode
from glowtrain.bundles.faces.fortran.example import program
from glowtrain.bundles.faces.fortran.names import LONGEST_NAME, dummies, extents, short_lines
from glowtrain.bundles.faces.templates import filled, filled_for, template_text
from glowtrain.bundles.faces.words import named
from glowtrain.bundles.module import BundleModule
from glowtrain.bundles.signature import BundleFunction, BundleTensor, hyper_of
from glowtrain.errors import BundleError
from glowtrain.version import __version__

FOLDER, TEMPLATE = "fortran", "fortran/model.f90"


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
    taken = set(re.findall(r"[a-z]\w*", re.sub("!.*", "", template_text(TEMPLATE).lower())))
    return named(name, {name} if name.lower() in taken else set())


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
    arguments = dummies(function)
    yield f"function {name}_{function.name}(handle, {', '.join(arguments)}) &"
    yield f'    bind(C, name="{name}_{function.name}") result(code)'
    yield "  import"
    yield f"  type({name}_handle), intent(inout) :: handle"
    for argument, tensor in arguments.items():
        if tensor is None:
            yield f"  type({name}_hyper), intent(in), optional :: {argument}"
            continue
        intent = "in" if tensor in function.inputs else "out"
        optional = ", optional" if function.trains and intent == "out" else ""
        yield f"  {tensor.element.fortran}, intent({intent}){optional} :: {argument}{extents(tensor.type)}"
    yield "  integer(c_int32_t) :: code"
    yield "end function"
