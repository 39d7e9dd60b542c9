! Runs network on made-up batches and prints what comes out, as bits; expected.txt holds them.
module example
  use, intrinsic :: iso_c_binding
  use {{space}}
  implicit none
  integer(c_int64_t) :: last = 0

contains

  ! Batches: the upper eight bits of a congruential generator.
  function word() result(bits)
    integer(c_int64_t) :: bits
    last = iand(last * 1664525_c_int64_t + 1013904223_c_int64_t, 4294967295_c_int64_t)
    bits = shiftr(last, 24)
  end function

  ! {{#halves}}
  ! The bits of numbers that are halves.
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

  ! {{/halves}}
  !{{fills}}
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
  ! {{#variables}}

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
  ! {{/variables}}

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
    if (code == network_OK) return
    print '(3a)', what, ": ", network_message(code)
    error stop
  end subroutine
end module

program main
  use example
  implicit none
  type(network_model) :: model
  integer(c_int32_t), target :: state
  ! {{#step}}
  integer :: number
  ! {{/step}}
  !{{declared}}

  call check("open", network_open(model))
  ! {{#step}}
  do number = 1, 5
    !{{step}}
    state = not(0_c_int32_t)
    call check("save", network_save(model%handle, c_funloc(add), c_loc(state)))
    print '(a, i0, 4a)', "step ", number, ": loss ", &
        hex(int(transfer({{loss}}(1), 0_c_int{{bits}}_t), c_int64_t), {{bits}} / 4), &
        ", variables ", hex(int(not(state), c_int64_t), 8)
  end do
  ! {{/step}}
  !{{calls}}
  call network_close(model)
end program
