"""Boards that QEMU emulates: what a bundle's example needs besides itself to run on one.

Source of the memory maps: Arm's application notes AN386 and AN500 for the MPS2 board; of the start-up: the Armv7-M
Architecture Reference Manual, B1.5 "exception model" and B3.2.20 "coprocessor access control".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from glowtrain.backends.target import Target
from glowtrain.bundles.devices.sizes import size_of
from glowtrain.bundles.module import BundleModule
from glowtrain.errors import BundleError

STACK = 4096
"""Bytes that the linker script keeps for the stack of a program, at least."""
PRINTING = 3072
"""Of these, what the example's own calls of the C library may take: below them a bundle's functions are not called."""
LIBRARY = 1024
"""Bytes for variables and the heap of the C library (newlib-nano), of which the example needs about 300."""


@dataclass(frozen=True)
class Board:
    """A board: the target of its processor, options of a C compiler for it, and where its memories begin and end."""

    name: str
    target: str
    options: str
    flash: tuple[int, int] = (0x00000000, 4 << 20)
    ram: tuple[int, int] = (0x20000000, 4 << 20)

    def check(self, target: Target, ram: int | None, weights: str) -> None:
        """Raise :class:`BundleError` for a bundle that cannot run on the board, as it is asked for."""
        if target.name != self.target:
            raise BundleError(f"{self.name} has a {self.target}; this bundle is for {target.name}")
        if ram is not None and not 0 < ram <= self.ram[1]:
            raise BundleError(f"{self.name} has {self.ram[1]:,} bytes of RAM, not {ram:,}")
        if weights != "object":
            raise BundleError(f"the example that {self.name} runs has its weights in the object: weights=object")


BOARDS: Mapping[str, Board] = {
    board.name: board
    for board in (
        Board("mps2-an386", "cortex-m4", "-mcpu=cortex-m4 -mthumb -mfloat-abi=hard -mfpu=fpv4-sp-d16"),
        Board("mps2-an500", "cortex-m7", "-mcpu=cortex-m7 -mthumb -mfloat-abi=hard -mfpu=fpv5-d16"),
    )
}
"""By the names that QEMU has for them."""


def board_of(name: object) -> Board:
    """A board by name. Raises :class:`BundleError` for an unknown one."""
    if not isinstance(name, str) or name not in BOARDS:
        raise BundleError(f"board {name!r} is unknown; the boards are {', '.join(BOARDS)}")
    return BOARDS[name]


def board_files(module: BundleModule, board: Board, ram: int | None) -> dict[str, str]:
    """The start-up code, the linker script and a Makefile for a bundle's example. ``ram``: bytes to make do with."""
    values = {
        "name": module.name, "board": board.name, "cpu": board.target, "options": board.options,
        "flash": hex(board.flash[0]), "flash_bytes": board.flash[1],
        "ram": hex(board.ram[0]), "ram_bytes": board.ram[1] if ram is None else ram,
        "stack_bytes": _stack(size_of(module).stack),
    }  # fmt: skip
    return {
        "board.c": _START,
        "board.ld": _LINKED.format_map(values),
        "board.mk": _MAKE.format_map(values),
    }


def example_ram(module: BundleModule, stack: int) -> int:
    """Bytes that the example needs on a board besides what its bundle does, whose functions take so much ``stack``: for
    inputs and outputs, the rest of the stack, and the C library."""
    tensors = (each for function in module.functions for each in (*function.inputs, *function.outputs))
    return sum(max(each.type.nbytes, 1) for each in tensors) + _stack(stack) - stack + LIBRARY


def _stack(stack: int) -> int:
    """Bytes of the stack of a program, a multiple of 8, for a bundle whose functions take so much."""
    return max(STACK, -(-(stack + PRINTING) // 8) * 8)


_MAKE = """# Builds the example for {board}, a board that QEMU emulates, and runs it there:
#   make -f board.mk check     compares what it prints with expected.txt
#   make -f board.mk sizes     says what the program takes of flash and RAM
# Another program: make -f board.mk run PROGRAM=mine.c. Debian's packages: qemu-system-arm gcc-arm-none-eabi
# libnewlib-arm-none-eabi.
CROSS ?= arm-none-eabi-
RUN ?= qemu-system-arm -M {board} -cpu {cpu} -nographic -monitor none -serial none \\
  -semihosting-config enable=on,target=native -kernel
CFLAGS ?= -O2 -std=c99 -Wall -Wextra
PROGRAM ?= main.c
RAM ?= {ram_bytes}
OBJECTS ?= {name}.o

board.elf: $(PROGRAM) board.c board.ld $(OBJECTS) {name}.h
\t$(CROSS)gcc {options} $(CFLAGS) -ffunction-sections -nostartfiles \\
\t  --specs=nano.specs --specs=rdimon.specs -T board.ld \\
\t  -Wl,--gc-sections,--no-warn-execstack,--defsym=RAM_BYTES=$(RAM),-Map=board.map \\
\t  board.c $(PROGRAM) $(OBJECTS) -o $@

.PHONY: run check sizes clean
run: board.elf
\t$(RUN) board.elf

check: board.elf
\t$(RUN) board.elf > printed.txt
\tcmp printed.txt expected.txt && echo "the same bits"

sizes: board.elf
\t@$(CROSS)size -A board.elf | grep -E "^\\.(text|data|bss|stack)"
\t@echo "of these, the model's code and constants:"
\t@grep -E "^ *(\\.text|\\.rodata[^ ]*)? +0x[0-9a-f]+ +0x[0-9a-f]+ {name}\\.o" board.map

clean:
\trm -f board.elf board.map printed.txt
"""
_LINKED = """/* {board}: code and constants in flash, the rest in RAM_BYTES of RAM, the stack at their end. */
ENTRY(reset)
MEMORY {{
  FLASH (rx) : ORIGIN = {flash}, LENGTH = {flash_bytes}
  RAM (rwx) : ORIGIN = {ram}, LENGTH = RAM_BYTES
}}
STACK_BYTES = DEFINED(STACK_BYTES) ? STACK_BYTES : {stack_bytes};
SECTIONS {{
  .text : {{ KEEP(*(.vectors)) *(.text*) *(.rodata*) *(.data.rel.ro*) . = ALIGN(8); }} > FLASH
  .data : {{ data_begin = .; *(.data*) . = ALIGN(8); data_end = .; }} > RAM AT > FLASH
  data_image = LOADADDR(.data);
  .bss (NOLOAD) : {{ bss_begin = .; *(.bss*) *(COMMON) . = ALIGN(8); bss_end = .; end = .; }} > RAM AT > RAM
  .stack ORIGIN(RAM) + LENGTH(RAM) - STACK_BYTES (NOLOAD) : {{
    stack_limit = .; . += STACK_BYTES; stack_top = .;
  }} > RAM AT > RAM
  /DISCARD/ : {{ *(.ARM.exidx*) *(.ARM.extab*) }}
}}
"""
_START = """/* Start-up code for a Cortex-M with a floating-point unit, and a C library over semihosting. */
#include <stdint.h>
#include <stdlib.h>

extern uint32_t data_begin[], data_end[], data_image[], bss_begin[], bss_end[], stack_top[];
extern void initialise_monitor_handles(void);
int main(void);

void _init(void) {}
void _fini(void) {}

void begin(void) {
  *(volatile uint32_t *)0xe000ed88 |= 0xfu << 20; /* CPACR: the floating-point unit is off at first */
  __asm__ volatile("dsb\\n isb");
  for (uint32_t *to = data_begin, *from = data_image; to < data_end;) *to++ = *from++;
  for (uint32_t *to = bss_begin; to < bss_end;) *to++ = 0;
  initialise_monitor_handles();
  exit(main());
}

__attribute__((naked)) void reset(void) { __asm__ volatile("bl begin"); }

/* A fault ends the program: exit status 3. */
void fault(void) {
  _Exit(3);
}

__attribute__((section(".vectors"), used)) static void *const vectors[16] = {
    stack_top, (void *)reset, (void *)fault, (void *)fault, (void *)fault, (void *)fault, (void *)fault,
};
"""
