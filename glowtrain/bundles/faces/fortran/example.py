"""The example of a bundle's Fortran module: it prints what ``main.c`` prints."""

from __future__ import annotations

from collections.abc import Iterator

from glowtrain.bundles.faces.fortran.names import LONGEST_NAME, dummies, extents, short_lines
from glowtrain.bundles.faces.templates import filled_for
from glowtrain.bundles.module import BundleModule
from glowtrain.bundles.signature import BundleFunction, BundleTensor, element_of
from glowtrain.bundles.verify.trace import printable
from glowtrain.types import DType

_PIECE = 40
"""Letters of a text that a line has room for, whatever they are."""


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
