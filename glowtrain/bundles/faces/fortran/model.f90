! {{about}}.
!
! A model is opened, which gives it memory, and its handle is given to the functions. They return codes; the function
! ..._message says what one means. Arrays have the axes of the model in reversed order, so that the batch is the last;
! one of another shape is ..._WRONG_SIZE.
! Numbers without sign are passed as the integers of as many bits, 16-bit floats as their bits.

module {{space}}
  use, intrinsic :: iso_c_binding
  implicit none
  private

  integer(c_int32_t), parameter :: version = {{signed_version}}
  integer(c_size_t), parameter, public :: network_ALIGNMENT = {{alignment}}_c_size_t
  integer(c_size_t), parameter, public :: network_VARIABLES_BYTES = {{variables_bytes}}_c_size_t
  integer(c_size_t), parameter, public :: network_ARENA_BYTES = {{arena_bytes}}_c_size_t
  integer(c_int32_t), parameter, public :: network_VARIABLES = {{variables}}

  !{{codes}}

  ! What network_init is given: the caller's memory.
  type, bind(C), public :: network_memory
    integer(c_int32_t) :: version = version
    type(c_ptr) :: variables = c_null_ptr
    integer(c_size_t) :: variables_bytes = network_VARIABLES_BYTES
    type(c_ptr) :: arena = c_null_ptr
    integer(c_size_t) :: arena_bytes = network_ARENA_BYTES
    type(c_funptr) :: parallel_for = c_null_funptr
    type(c_ptr) :: own = c_null_ptr
  end type

  type, bind(C), public :: network_handle
    private
    integer(c_int32_t) :: version = 0
    type(c_ptr) :: variables = c_null_ptr, arena = c_null_ptr
    type(c_funptr) :: parallel_for = c_null_funptr
    type(c_ptr) :: own = c_null_ptr, run = c_null_ptr
  end type
  ! {{#hyper}}

  type, bind(C), public :: network_hyper
    !{{hyper}}
  end type
  ! {{/hyper}}

  ! An instance with memory of its own. It must not be copied.
  type, public :: network_model
    type(network_handle) :: handle
    integer(c_int8_t), pointer, contiguous :: bytes(:) => null()
  end type

  public :: network_init, network_error, network_message, network_open, network_close
  ! {{#variables}}
  public :: network_find, network_get, network_set, network_reset
  public :: network_save, network_load, network_save_file, network_load_file
  ! {{/variables}}
  !{{publics}}

  interface
    function network_init(handle, memory) bind(C, name="network_init") result(code)
      import
      type(network_handle), intent(inout) :: handle
      type(network_memory), intent(in) :: memory
      integer(c_int32_t) :: code
    end function
    function network_error(code) bind(C, name="network_error") result(text)
      import
      integer(c_int32_t), value :: code
      type(c_ptr) :: text
    end function
    !{{calls}}
    ! {{#variables}}
    ! The number of a variable, whose name ends with c_null_char; network_VARIABLES where there is none.
    function network_find(variable) bind(C, name="network_find") result(number)
      import
      character(kind=c_char), intent(in) :: variable(*)
      integer(c_int32_t) :: number
    end function
    ! A variable's elements in row-major order; bytes must be those of all of them.
    function network_get(handle, variable, data, bytes) bind(C, name="network_get") result(code)
      import
      type(network_handle), intent(inout) :: handle
      integer(c_int32_t), value :: variable
      type(*), intent(inout) :: data(*)
      integer(c_size_t), value :: bytes
      integer(c_int32_t) :: code
    end function
    function network_set(handle, variable, data, bytes) bind(C, name="network_set") result(code)
      import
      type(network_handle), intent(inout) :: handle
      integer(c_int32_t), value :: variable
      type(*), intent(in) :: data(*)
      integer(c_size_t), value :: bytes
      integer(c_int32_t) :: code
    end function
    function network_reset(handle) bind(C, name="network_reset") result(code)
      import
      type(network_handle), intent(inout) :: handle
      integer(c_int32_t) :: code
    end function
    function network_save(handle, write, own) bind(C, name="network_save") result(code)
      import
      type(network_handle), intent(inout) :: handle
      type(c_funptr), value :: write
      type(c_ptr), value :: own
      integer(c_int32_t) :: code
    end function
    function network_load(handle, read, own) bind(C, name="network_load") result(code)
      import
      type(network_handle), intent(inout) :: handle
      type(c_funptr), value :: read
      type(c_ptr), value :: own
      integer(c_int32_t) :: code
    end function
    ! {{/variables}}
  end interface

contains

  !{{checked}}
  ! Give a model memory and initialise it.
  function network_open(model) result(code)
    type(network_model), intent(inout) :: model
    integer(c_int32_t) :: code
    type(network_memory) :: memory
    integer(c_size_t) :: first
    call network_close(model)
    allocate (model%bytes( &
        network_VARIABLES_BYTES &
        + network_ARENA_BYTES + network_ALIGNMENT))
    first = 1 + modulo(-transfer(c_loc(model%bytes(1)), 0_c_size_t), network_ALIGNMENT)
    memory%variables = c_loc(model%bytes(first))
    memory%arena = c_loc(model%bytes(first + network_VARIABLES_BYTES))
    code = network_init(model%handle, memory)
  end function

  subroutine network_close(model)
    type(network_model), intent(inout) :: model
    if (associated(model%bytes)) deallocate (model%bytes)
    model%handle = network_handle()
  end subroutine

  ! What a code means.
  function network_message(code) result(text)
    integer(c_int32_t), intent(in) :: code
    character(len=:), allocatable :: text
    character(kind=c_char), pointer :: letters(:)
    integer :: at
    call c_f_pointer(network_error(code), letters, [1000])
    text = ""
    do at = 1, size(letters)
      if (letters(at) == c_null_char) return
      text = text // letters(at)
    end do
  end function
  ! {{#variables}}

  ! All variables to a file (safetensors), which is replaced, and from one.
  function network_save_file(handle, path) result(code)
    type(network_handle), intent(inout) :: handle
    character(len=*), intent(in) :: path
    integer(c_int32_t) :: code
    integer(c_int), target :: file
    integer :: failed
    integer(c_int64_t) :: bytes
    code = network_WRITE_FAILED
    open (newunit=file, file=path, access="stream", form="unformatted", status="replace", iostat=failed)
    if (failed /= 0) return
    code = network_save(handle, c_funloc(write_piece), c_loc(file))
    close (file, iostat=failed)
    inquire (file=path, size=bytes) ! a full disk may be no failure of gfortran's close
    if (failed /= 0 .or. bytes /= {{file_bytes}}_c_int64_t) code = network_WRITE_FAILED
  end function

  function network_load_file(handle, path) result(code)
    type(network_handle), intent(inout) :: handle
    character(len=*), intent(in) :: path
    integer(c_int32_t) :: code
    integer(c_int), target :: file
    integer :: failed
    integer(c_int64_t) :: bytes
    code = network_READ_FAILED
    open (newunit=file, file=path, access="stream", form="unformatted", status="old", action="read", iostat=failed)
    if (failed /= 0) return
    inquire (unit=file, size=bytes)
    code = network_OTHER_WEIGHTS
    if (bytes <= {{file_bytes}}_c_int64_t) code = network_load(handle, c_funloc(read_piece), c_loc(file))
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
  ! {{/variables}}
end module
