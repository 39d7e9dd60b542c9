"""A Fortran module over the C interface (``iso_c_binding``). Arrays have the axes of the model in Fortran's order."""

from __future__ import annotations

import re
from collections.abc import Iterator

from glowtrain.bundles.codes import ErrorCode
from glowtrain.bundles.faces.fortran.example import program
from glowtrain.bundles.faces.fortran.names import LONGEST_NAME, dummies, element, extents, wrapped
from glowtrain.bundles.faces.words import named
from glowtrain.bundles.module import BundleModule
from glowtrain.bundles.signature import BundleFunction, BundleTensor, hyper_of
from glowtrain.bundles.weights import file_size
from glowtrain.errors import BundleError
from glowtrain.version import __version__

FOLDER = "fortran"


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
        texts |= {"main.f90": program(module, _space(module.name)), "Makefile": _MAKEFILE.format(name=module.name)}
    return {f"{FOLDER}/{path}": text.encode() for path, text in texts.items()}


def _space(name: str) -> str:
    """What the module is called: like nothing that stands in it, where Fortran does not tell cases apart."""
    taken = set(re.findall(r"[a-z]\w*", re.sub("!.*", "", (_MODULE + _VARIABLES + _FILES).lower())))
    return named(name, {name} if name.lower() in taken else set())


def source(module: BundleModule) -> str:
    """The text of the module."""
    name, some = module.name, bool(module.memory.places)
    hyper = hyper_of(module.functions)
    fields = "\n".join(f"    {element(e.type.dtype)} :: {e.name} = {_default(module, e)}" for e in hyper)
    text = _MODULE.format(
        name=name,
        space=_space(name),
        about=f"{name}, for {module.target.name}, by Glowtrain {__version__}",
        version=_signed(module.version),
        alignment=module.memory.alignment,
        variables_bytes=module.memory.size,
        arena_bytes=module.interface.arena,
        owned=module.memory.size + module.interface.arena + module.memory.alignment,
        count=len(module.memory.places),
        codes="\n".join(
            f"  ! {code.text}\n  integer(c_int32_t), parameter, public :: {name}_{code.name} = {code.value}"
            for code in ErrorCode
        ),
        hyper=f"\n  type, bind(C), public :: {name}_hyper\n{fields}\n  end type\n" if hyper else "",
        publics="\n".join(_publics(module)),
        calls="\n".join(_interface(name, function) for function in module.functions),
        variables=_VARIABLES.format(name=name) if some else "",
        files=_FILES.format(name=name, file_bytes=file_size(module.memory.types)) if some else "",
    )
    return "\n".join(part for line in text.split("\n") for part in wrapped(line))


def _default(module: BundleModule, tensor: BundleTensor) -> str:
    return f"{module.hyper[tensor.name]!r}_{'c_double' if tensor.type.dtype.name == 'f64' else 'c_float'}"


def _publics(module: BundleModule) -> Iterator[str]:
    names = ["init", "error", "message", "open", "close", *(function.name for function in module.functions)]
    if module.memory.places:
        names += ["find", "get", "set", "reset", "save", "load", "save_file", "load_file"]
    return (f"  public :: {module.name}_{name}" for name in names)


def _signed(number: int) -> str:
    """An unsigned number of 32 bits as Fortran has it; the least one is no literal."""
    if number == 1 << 31:
        return "-2147483647_c_int32_t - 1_c_int32_t"
    return f"{number - (1 << 32) if number >> 31 else number}_c_int32_t"


def _interface(name: str, function: BundleFunction) -> str:
    arguments = dummies(function)
    head = f"function {name}_{function.name}(handle, {', '.join(arguments)}) &"
    lines = [*wrapped(f"    {head}")]
    lines += [f'        bind(C, name="{name}_{function.name}") result(code)', "      import"]
    lines.append(f"      type({name}_handle), intent(inout) :: handle")
    for argument, tensor in arguments.items():
        if tensor is None:
            lines.append(f"      type({name}_hyper), intent(in), optional :: {argument}")
            continue
        intent = "in" if tensor in function.inputs else "out"
        optional = ", optional" if function.trains and intent == "out" else ""
        type_ = f"{element(tensor.type.dtype)}, intent({intent}){optional}"
        lines += wrapped(f"      {type_} :: {argument}{extents(tensor.type)}")
    return "\n".join([*lines, "      integer(c_int32_t) :: code", "    end function"])


_MODULE = """! {about}.
!
! A model is opened, which gives it memory, and its handle is given to the functions. They return codes; the function
! ..._message says what one means. Arrays have the axes of the model in reversed order, so that the batch is the last.
! Numbers without sign are passed as the integers of as many bits, 16-bit floats as their bits.

module {space}
  use, intrinsic :: iso_c_binding
  implicit none
  private

  integer(c_int32_t), parameter :: version = {version}
  integer(c_size_t), parameter, public :: {name}_ALIGNMENT = {alignment}_c_size_t
  integer(c_size_t), parameter, public :: {name}_VARIABLES_BYTES = {variables_bytes}_c_size_t
  integer(c_size_t), parameter, public :: {name}_ARENA_BYTES = {arena_bytes}_c_size_t
  integer(c_int32_t), parameter, public :: {name}_VARIABLES = {count}

{codes}

  ! What {name}_init is given: the caller's memory.
  type, bind(C), public :: {name}_memory
    integer(c_int32_t) :: version = version
    type(c_ptr) :: variables = c_null_ptr
    integer(c_size_t) :: variables_bytes = {name}_VARIABLES_BYTES
    type(c_ptr) :: arena = c_null_ptr
    integer(c_size_t) :: arena_bytes = {name}_ARENA_BYTES
    type(c_funptr) :: parallel_for = c_null_funptr
    type(c_ptr) :: own = c_null_ptr
  end type

  type, bind(C), public :: {name}_handle
    private
    integer(c_int32_t) :: version = 0
    type(c_ptr) :: variables = c_null_ptr, arena = c_null_ptr
    type(c_funptr) :: parallel_for = c_null_funptr
    type(c_ptr) :: own = c_null_ptr, run = c_null_ptr
  end type
{hyper}
  ! An instance with memory of its own. It must not be copied.
  type, public :: {name}_model
    type({name}_handle) :: handle
    integer(c_int8_t), pointer, contiguous :: bytes(:) => null()
  end type

{publics}

  interface
    function {name}_init(handle, memory) bind(C, name="{name}_init") result(code)
      import
      type({name}_handle), intent(inout) :: handle
      type({name}_memory), intent(in) :: memory
      integer(c_int32_t) :: code
    end function
    function {name}_error(code) bind(C, name="{name}_error") result(text)
      import
      integer(c_int32_t), value :: code
      type(c_ptr) :: text
    end function
{calls}{variables}
  end interface

contains

  ! Give a model memory and initialise it.
  function {name}_open(model) result(code)
    type({name}_model), intent(inout) :: model
    integer(c_int32_t) :: code
    type({name}_memory) :: memory
    integer(c_size_t) :: first
    call {name}_close(model)
    allocate (model%bytes({owned}_c_size_t))
    first = 1 + modulo(-transfer(c_loc(model%bytes(1)), 0_c_size_t), {name}_ALIGNMENT)
    memory%variables = c_loc(model%bytes(first))
    memory%arena = c_loc(model%bytes(first + {name}_VARIABLES_BYTES))
    code = {name}_init(model%handle, memory)
  end function

  subroutine {name}_close(model)
    type({name}_model), intent(inout) :: model
    if (associated(model%bytes)) deallocate (model%bytes)
    model%handle = {name}_handle()
  end subroutine

  ! What a code means.
  function {name}_message(code) result(text)
    integer(c_int32_t), intent(in) :: code
    character(len=:), allocatable :: text
    character(kind=c_char), pointer :: letters(:)
    integer :: at
    call c_f_pointer({name}_error(code), letters, [1000])
    text = ""
    do at = 1, size(letters)
      if (letters(at) == c_null_char) return
      text = text // letters(at)
    end do
  end function
{files}end module
"""
_VARIABLES = """
    ! The number of a variable, whose name ends with c_null_char; {name}_VARIABLES where there is none.
    function {name}_find(variable) bind(C, name="{name}_find") result(number)
      import
      character(kind=c_char), intent(in) :: variable(*)
      integer(c_int32_t) :: number
    end function
    ! A variable's elements in row-major order; bytes must be those of all of them.
    function {name}_get(handle, variable, data, bytes) bind(C, name="{name}_get") result(code)
      import
      type({name}_handle), intent(inout) :: handle
      integer(c_int32_t), value :: variable
      type(*), intent(inout) :: data(*)
      integer(c_size_t), value :: bytes
      integer(c_int32_t) :: code
    end function
    function {name}_set(handle, variable, data, bytes) bind(C, name="{name}_set") result(code)
      import
      type({name}_handle), intent(inout) :: handle
      integer(c_int32_t), value :: variable
      type(*), intent(in) :: data(*)
      integer(c_size_t), value :: bytes
      integer(c_int32_t) :: code
    end function
    function {name}_reset(handle) bind(C, name="{name}_reset") result(code)
      import
      type({name}_handle), intent(inout) :: handle
      integer(c_int32_t) :: code
    end function
    function {name}_save(handle, write, own) bind(C, name="{name}_save") result(code)
      import
      type({name}_handle), intent(inout) :: handle
      type(c_funptr), value :: write
      type(c_ptr), value :: own
      integer(c_int32_t) :: code
    end function
    function {name}_load(handle, read, own) bind(C, name="{name}_load") result(code)
      import
      type({name}_handle), intent(inout) :: handle
      type(c_funptr), value :: read
      type(c_ptr), value :: own
      integer(c_int32_t) :: code
    end function"""
_FILES = """
  ! All variables to a file (safetensors), which is replaced, and from one.
  function {name}_save_file(handle, path) result(code)
    type({name}_handle), intent(inout) :: handle
    character(len=*), intent(in) :: path
    integer(c_int32_t) :: code
    integer(c_int), target :: file
    integer :: failed
    integer(c_int64_t) :: bytes
    code = {name}_WRITE_FAILED
    open (newunit=file, file=path, access="stream", form="unformatted", status="replace", iostat=failed)
    if (failed /= 0) return
    code = {name}_save(handle, c_funloc(write_piece), c_loc(file))
    close (file, iostat=failed)
    inquire (file=path, size=bytes) ! a full disk may be no failure of gfortran's close
    if (failed /= 0 .or. bytes /= {file_bytes}_c_int64_t) code = {name}_WRITE_FAILED
  end function

  function {name}_load_file(handle, path) result(code)
    type({name}_handle), intent(inout) :: handle
    character(len=*), intent(in) :: path
    integer(c_int32_t) :: code
    integer(c_int), target :: file
    integer :: failed
    integer(c_int64_t) :: bytes
    code = {name}_READ_FAILED
    open (newunit=file, file=path, access="stream", form="unformatted", status="old", action="read", iostat=failed)
    if (failed /= 0) return
    inquire (unit=file, size=bytes)
    code = {name}_OTHER_WEIGHTS
    if (bytes <= {file_bytes}_c_int64_t) code = {name}_load(handle, c_funloc(read_piece), c_loc(file))
    close (file)
  end function

  function write_piece(own, data, bytes) bind(C, name="") result(done)
    type(c_ptr), value :: own, data
    integer(c_size_t), value :: bytes
    integer(c_size_t) :: done
    integer(c_int), pointer :: file
    integer(c_int8_t), pointer :: piece(:)
    integer :: failed
    call c_f_pointer(own, file)
    call c_f_pointer(data, piece, [bytes])
    write (file, iostat=failed) piece
    done = merge(bytes, 0_c_size_t, failed == 0)
  end function

  function read_piece(own, offset, data, bytes) bind(C, name="") result(done)
    type(c_ptr), value :: own, data
    integer(c_size_t), value :: offset, bytes
    integer(c_size_t) :: done
    integer(c_int), pointer :: file
    integer(c_int8_t), pointer :: piece(:)
    integer :: failed
    call c_f_pointer(own, file)
    call c_f_pointer(data, piece, [bytes])
    read (file, pos=offset + 1, iostat=failed) piece
    done = merge(bytes, 0_c_size_t, failed == 0)
  end function
"""
_MAKEFILE = """# Builds and runs the example: make check
ifeq ($(origin FC), default)
FC = gfortran
endif
FFLAGS ?= -O2 -Wall
RUN ?=

example: {name}.f90 main.f90 ../{name}.o
\t$(FC) $(FFLAGS) {name}.f90 main.f90 ../{name}.o -o $@

.PHONY: check clean
check: example
\t$(RUN) ./example > printed.txt
\tcmp printed.txt ../expected.txt && echo "the same bits"

clean:
\trm -f example printed.txt *.mod
"""
