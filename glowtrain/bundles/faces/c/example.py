"""The worked example of a bundle: a C program that runs every function on made-up batches, and what it prints.

What it prints is the same bits on every processor: each loss, and a checksum of all variables or outputs after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from glowtrain.backends.base import Backend
from glowtrain.bundles.module import BundleModule
from glowtrain.bundles.signature import BundleFunction, BundleTensor, c_type
from glowtrain.bundles.verify.trace import INCREMENT, MULTIPLIER, printable, trace_of

STEPS = 5
"""Batches that the example trains on."""


def expected(module: BundleModule, backend: Backend, steps: int = STEPS) -> str:
    """What the example prints, computed by a backend here: the steps, then the other functions."""
    return str(trace_of(module.contents, backend, steps, options=module.options))


def program(module: BundleModule, steps: int = STEPS, seed: int = 0, *, every_variable: bool = False) -> str:
    """The text of ``main.c``. With ``every_variable`` it prints a checksum of each, by number, after each step."""
    return _PROGRAM.format(
        name=module.name,
        big=module.name.upper(),
        variables=max(module.memory.size, 1),
        buffers="\n".join(_buffers(module.functions)),
        fills="\n".join(_fills(module.functions)),
        trained=_trained(module, every_variable),
        locals="  uint32_t state;\n" if module.trains else "",
        calls="\n".join(_call(module, function, steps, every_variable) for function in module.functions),
        seeded=f" = {seed}u" if seed else "",
        multiplier=MULTIPLIER,
        increment=INCREMENT,
    )


def _buffers(functions: Sequence[BundleFunction]) -> Iterator[str]:
    for function in functions:
        for each in (*function.inputs, *function.outputs):
            yield f"static {c_type(each.type.dtype)} {_buffer(function, each)}[{max(each.type.size, 1)}];"


def _buffer(function: BundleFunction, tensor: BundleTensor) -> str:
    return f"{function.name}_{tensor.name}_data"


def _trained(module: BundleModule, every_variable: bool) -> str:
    """The functions that print what a step has made."""
    if not module.trains:
        return ""
    largest = max(place.type.nbytes for place in module.memory.places)
    names = {"name": module.name, "big": module.name.upper(), "largest": max(largest, 1)}
    return _TRAINED.format(**names) + (_VARIABLES.format(**names) if every_variable else "")


def _call(module: BundleModule, function: BundleFunction, steps: int, every_variable: bool) -> str:
    fills = [f"fill_{e.type.dtype}({_buffer(function, e)}, {e.type.size});" for e in function.inputs]
    hyper = ["NULL"] if function.hyper else []
    arguments = ", ".join(
        [
            "&handle",
            *(_buffer(function, e) for e in function.inputs),
            *hyper,
            *(_buffer(function, e) for e in function.outputs),
        ]
    )
    call = f'check("{function.name}", {module.name}_{function.name}({arguments}));'
    if not function.trains:
        return "\n".join(f"  {line}" for line in (*fills, call, *(_printed(function, e) for e in function.outputs)))
    loss = function.outputs[0]
    body = [
        *fills,
        call,
        "state = ~0u;",
        f'check("save", {module.name}_save(&handle, add, &state));',
        'printf("step %d: loss ", number);',
        f"bits({_buffer(function, loss)}, sizeof {_buffer(function, loss)});",
        'printf(", variables %08x\\n", (unsigned)~state);',
        *(["print_variables(&handle);"] if every_variable else []),
    ]
    inner = "\n".join(f"    {line}" for line in body)
    return f"  for (int number = 1; number <= {steps}; number++) {{\n{inner}\n  }}"


def _printed(function: BundleFunction, output: BundleTensor) -> str:
    buffer = _buffer(function, output)
    count = f"sizeof {buffer}" if output.type.size else "0"
    sum_ = f"(unsigned)~checksum(~0u, {buffer}, {count})"
    return f'printf("{function.name}: %s %08x\\n", {_quoted(printable(output.source))}, {sum_});'


def _quoted(text: str) -> str:
    """Printable ASCII as a string of C; ?? begins a trigraph."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("?", "\\?")
    return f'"{escaped}"'


def _fills(functions: Sequence[BundleFunction]) -> Iterator[str]:
    """The functions that make batches, of each element type that is needed."""
    dtypes = {each.type.dtype for function in functions for each in function.inputs}
    if any(dtype.name in ("f16", "bf16") for dtype in dtypes):
        yield _FLOAT_BITS
    for dtype in sorted(dtypes, key=str):
        number = "((int)(word() >> 24) - 128) / 64.0f" if dtype.is_float else "word() >> 24 & 1"
        value = {"f16": f"half({number})", "bf16": f"(uint16_t)(float_bits({number}) >> 16)"}.get(dtype.name, number)
        type_ = c_type(dtype)
        yield (
            f"static void fill_{dtype}({type_} *data, size_t count) {{\n"
            f"  for (size_t at = 0; at < count; at++) data[at] = ({type_})({value});\n}}\n"
        )


_FLOAT_BITS = """static uint32_t float_bits(float number) {
  union { float number; uint32_t bits; } both = {number};
  return both.bits;
}

static inline uint16_t half(float number) { /* of numbers that are halves */
  uint32_t bits = float_bits(number);
  if (!(bits & 0x7fffffff)) return 0;
  return (uint16_t)((bits >> 16 & 0x8000) | ((bits >> 13 & 0x3fc00) - ((127 - 15) << 10)) | (bits >> 13 & 0x3ff));
}
"""
_TRAINED = """
/* What NAME_save hands its bytes to: they are only counted in. */
static size_t add(void *state, const void *data, size_t bytes) {{
  *(uint32_t *)state = checksum(*(uint32_t *)state, data, bytes);
  return bytes;
}}

static void bits(const void *number, size_t bytes) {{
  uint64_t all = 0;
  for (size_t at = 0; at < bytes; at++) all |= (uint64_t)((const unsigned char *)number)[at] << (8 * at);
  if (bytes > 4) printf("%08x", (unsigned)(all >> 32));
  printf("%0*x", (int)(bytes > 4 ? 8 : 2 * bytes), (unsigned)all);
}}
"""
_VARIABLES = """
static void print_variables({name}_handle *handle) {{
  static unsigned char data[{largest}];
  for (uint32_t number = 0; number < {big}_VARIABLES; number++) {{
    size_t bytes = {name}_variables[number].elements * {name}_variables[number].size;
    {name}_get(handle, number, data, bytes);
    printf("variable %u: %08x\\n", (unsigned)number, (unsigned)~checksum(~0u, data, bytes));
  }}
}}
"""
_PROGRAM = """/* Runs {name} on made-up batches and prints what comes out, as bits; expected.txt holds them. */
#include <stdio.h>
#include <stdlib.h>

#include "{name}.h"

/* Memory is the caller's: here it is static. */
static unsigned char variables[{variables} + {big}_ALIGNMENT];
static unsigned char arena[{big}_ARENA_BYTES + {big}_ALIGNMENT];
{buffers}

/* Batches: the upper bits of a congruential generator. */
static uint32_t last{seeded};

static uint32_t word(void) {{
  last = last * {multiplier}u + {increment}u;
  return last;
}}

{fills}
/* CRC-32, begun with ~0 and inverted at the end. */
static uint32_t checksum(uint32_t state, const void *data, size_t bytes) {{
  for (size_t at = 0; at < bytes; at++) {{
    state ^= ((const unsigned char *)data)[at];
    for (int bit = 0; bit < 8; bit++) state = state >> 1 ^ (0xedb88320u & -(state & 1));
  }}
  return state;
}}
{trained}
static void check(const char *what, uint32_t code) {{
  if (code == {big}_OK) return;
  printf("%s: %s\\n", what, {name}_error(code));
  exit(1);
}}

/* The first byte that lies at a multiple of the alignment. */
static void *aligned(unsigned char *memory) {{
  return memory + ({big}_ALIGNMENT - (uintptr_t)memory % {big}_ALIGNMENT) % {big}_ALIGNMENT;
}}

int main(void) {{
  {name}_handle handle;
  {name}_memory memory = {{
      .version = {big}_VERSION,
      .variables = aligned(variables),
      .variables_bytes = {big}_VARIABLES_BYTES,
      .arena = aligned(arena),
      .arena_bytes = {big}_ARENA_BYTES,
  }};
{locals}  check("init", {name}_init(&handle, &memory));
{calls}
  return 0;
}}
"""
