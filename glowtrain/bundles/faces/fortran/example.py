"""The example of a bundle's Fortran module: it prints what ``main.c`` prints."""

from __future__ import annotations

from collections.abc import Sequence

from glowtrain.bundles.faces.c.example import STEPS
from glowtrain.bundles.faces.fortran.names import LONGEST_NAME, dummies, element, extents, wrapped
from glowtrain.bundles.module import BundleModule
from glowtrain.bundles.signature import BundleFunction, BundleTensor
from glowtrain.bundles.verify.trace import INCREMENT, MULTIPLIER, printable
from glowtrain.types import DType


def program(module: BundleModule, space: str) -> str:
    """The text of a program that prints what ``main.c`` prints; ``space`` is what the module is called."""
    tensors = [(f, e) for f in module.functions for e in (*f.inputs, *f.outputs)]
    dtypes = sorted({e.type.dtype for f in module.functions for e in f.inputs}, key=str)
    return _PROGRAM.format(
        name=module.name,
        space=space,
        declared="\n".join(
            line
            for function, e in tensors
            for line in wrapped(f"  {element(e.type.dtype)}, target :: {_buffer(function, e)}{_flat(e)}")
        ),
        calls="\n".join(_example(module.name, function) for function in module.functions),
        fills="\n".join(_fill(dtype) for dtype in dtypes),
        half=_HALF if any(dtype.name == "f16" for dtype in dtypes) else "",
        number="  integer :: number\n" if any(function.trains for function in module.functions) else "",
        add=_ADD if module.memory.places else "",
        multiplier=MULTIPLIER,
        increment=INCREMENT,
    )


def _flat(tensor: BundleTensor) -> str:
    return extents(tensor.type) or "(1)"


def _buffer(function: BundleFunction, tensor: BundleTensor) -> str:
    """A name for an argument's memory: numbers tell apart what differs only by case."""
    at = [*function.inputs, *function.outputs].index(tensor)
    return f"{function.name}_{tensor.name.lower()[:LONGEST_NAME]}_{at}"


def _example(name: str, function: BundleFunction) -> str:
    fills = [f"call fill_{e.type.dtype}({_buffer(function, e)}, {e.type.size}_c_size_t)" for e in function.inputs]
    arguments = [_actual(function, e) for e in function.inputs]
    keywords = [
        f"{argument}={_actual(function, e)}"
        for argument, e in dummies(function).items()
        if e is not None and e in function.outputs
    ]
    call = (
        f'call check("{function.name}", {name}_{function.name}({", ".join(["model%handle", *arguments, *keywords])}))'
    )
    if not function.trains:
        sums = [line for e in function.outputs for line in _printed(function, e)]
        return "\n".join(part for line in (*fills, call, *sums) for part in wrapped(f"  {line}"))
    (loss,) = function.outputs
    digits = 2 * loss.type.dtype.size
    bits = f"int(transfer({_buffer(function, loss)}(1), 0_{_integer(loss.type.dtype)}), c_int64_t)"
    body = [
        *fills,
        call,
        "state = not(0_c_int32_t)",
        f'call check("save", {name}_save(model%handle, c_funloc(add), c_loc(state)))',
        f'print \'(a, i0, 4a)\', "step ", number, ": loss ", hex({bits}, {digits}), &',
        '    ", variables ", hex(int(not(state), c_int64_t), 8)',
    ]
    lines = [part for line in body for part in wrapped(f"    {line}")]
    return "\n".join([f"  do number = 1, {STEPS}", *lines, "  end do"])


def _actual(function: BundleFunction, tensor: BundleTensor) -> str:
    return f"{_buffer(function, tensor)}{'' if tensor.type.shape else '(1)'}"


def _printed(function: BundleFunction, output: BundleTensor) -> Sequence[str]:
    sum_ = f"checksum(not(0_c_int32_t), c_loc({_buffer(function, output)}), {output.type.nbytes}_c_size_t)"
    text = f"{function.name}: {printable(output.source)} "
    pieces = (text[at : at + _PIECE].replace('"', '""') for at in range(0, len(text), _PIECE))
    listed = ", ".join(f'"{piece}"' for piece in pieces)
    return [f"state = not({sum_})", f"print '(*(a))', {listed}, hex(int(state, c_int64_t), 8)"]


def _integer(dtype: DType) -> str:
    return f"c_int{8 * dtype.size}_t"


def _fill(dtype: DType) -> str:
    number = "real(word() - 128, c_float) / 64.0_c_float" if dtype.is_float else "iand(word(), 1_c_int64_t)"
    bits = f"transfer({number}, 0_c_int32_t)"
    kind = element(dtype).partition("(")[2].rstrip(")")
    value = {"f16": f"half({bits})", "bf16": f"int(shifta({bits}, 16), c_int16_t)"}.get(
        dtype.name, f"real({number}, {kind})" if dtype.is_float else f"int({number}, {kind})"
    )
    return _FILL.format(dtype=dtype, element=element(dtype), value=value)


_PIECE = 40
"""Letters of a text that a line has room for, whatever they are."""
_FILL = """  subroutine fill_{dtype}(data, count)
    {element}, intent(out) :: data(*)
    integer(c_size_t), intent(in) :: count
    integer(c_size_t) :: at
    do at = 1, count
      data(at) = {value}
    end do
  end subroutine
"""
_HALF = """  ! The bits of numbers that are halves.
  function half(bits) result(short)
    integer(c_int32_t), intent(in) :: bits
    integer(c_int16_t) :: short
    integer(c_int32_t) :: exponent
    short = 0
    if (iand(bits, huge(bits)) == 0) return
    exponent = iand(shiftr(bits, 13), int(z'3fc00', c_int32_t)) - shiftl(127 - 15, 10)
    short = int(ior(exponent, iand(shiftr(bits, 13), 1023)), c_int16_t)
    if (bits < 0) short = ibset(short, 15)
  end function

"""
_ADD = """
  ! What the saved bytes are handed to: they are only counted in.
  function add(own, data, bytes) bind(C, name="") result(done)
    type(c_ptr), value :: own, data
    integer(c_size_t), value :: bytes
    integer(c_size_t) :: done
    integer(c_int32_t), pointer :: sum
    call c_f_pointer(own, sum)
    sum = checksum(sum, data, bytes)
    done = bytes
  end function
"""
_PROGRAM = """! Runs {name} on made-up batches and prints what comes out, as bits; expected.txt holds them.
module example
  use, intrinsic :: iso_c_binding
  use {space}
  implicit none
  integer(c_int64_t) :: last = 0

contains

  ! Batches: the upper eight bits of a congruential generator.
  function word() result(bits)
    integer(c_int64_t) :: bits
    last = iand(last * {multiplier}_c_int64_t + {increment}_c_int64_t, 4294967295_c_int64_t)
    bits = shiftr(last, 24)
  end function

{half}{fills}
  ! CRC-32, begun with all ones and inverted at the end.
  function checksum(start, data, bytes) result(state)
    integer(c_int32_t), intent(in) :: start
    type(c_ptr), value :: data
    integer(c_size_t), value :: bytes
    integer(c_int32_t), parameter :: polynomial = -306674912
    integer(c_int32_t) :: state
    integer(c_int8_t), pointer :: all(:)
    integer(c_size_t) :: at
    integer :: bit
    call c_f_pointer(data, all, [bytes])
    state = start
    do at = 1, bytes
      state = ieor(state, iand(int(all(at), c_int32_t), 255))
      do bit = 1, 8
        state = merge(ieor(shiftr(state, 1), polynomial), shiftr(state, 1), btest(state, 0))
      end do
    end do
  end function
{add}
  function hex(number, digits) result(text)
    integer(c_int64_t), intent(in) :: number
    integer, intent(in) :: digits
    character(len=digits) :: text
    character(len=*), parameter :: all = "0123456789abcdef"
    integer :: at, digit
    do at = 1, digits
      digit = int(ibits(number, 4 * (digits - at), 4))
      text(at:at) = all(digit + 1:digit + 1)
    end do
  end function

  subroutine check(what, code)
    character(len=*), intent(in) :: what
    integer(c_int32_t), intent(in) :: code
    if (code == {name}_OK) return
    print '(3a)', what, ": ", {name}_message(code)
    error stop
  end subroutine
end module

program main
  use example
  implicit none
  type({name}_model) :: model
  integer(c_int32_t), target :: state
{number}{declared}

  call check("open", {name}_open(model))
{calls}
  call {name}_close(model)
end program
"""
