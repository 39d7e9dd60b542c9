"""The worked example of a bundle: a C program that runs every function on made-up batches, and what it prints.

What it prints is the same bits on every processor: each loss, and a checksum of all variables or outputs after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from glowtrain.backends.base import Backend
from glowtrain.bundles.faces.templates import filled, filled_for
from glowtrain.bundles.libraries.linking import example_commands
from glowtrain.bundles.module import BundleModule
from glowtrain.bundles.signature import BundleFunction, BundleTensor, element_of
from glowtrain.bundles.verify.trace import printable, trace_of
from glowtrain.types import DType

STEPS = 5
"""Batches that the example trains on."""


def expected(module: BundleModule, backend: Backend, steps: int = STEPS) -> str:
    """What the example prints, computed by a backend here: the steps, then the other functions."""
    return str(trace_of(module.contents, backend, steps, options=module.options))


def makefile(module: BundleModule) -> str:
    """The text of the ``Makefile``, which compiles and runs the example for the module's target."""
    compiler, emulator = example_commands(module.target)
    return filled("c/Makefile", module.name, foreign=bool(compiler), compiler=compiler, emulator=emulator)


def program(module: BundleModule, steps: int = STEPS, seed: int = 0, *, every_variable: bool = False) -> str:
    """The text of ``main.c``. With ``every_variable`` it prints a checksum of each, by number, after each step."""
    dtypes = {each.type.dtype for function in module.functions for each in function.inputs}
    step = module.step
    largest = max((slot.type.nbytes for slot in module.memory.slots), default=0)
    return filled_for(
        module,
        "c/main.c",
        room=max(module.memory.size, 1),
        buffers=_buffers(module.functions),
        seeded=f" = {seed}u" if seed else "",
        halves=any(dtype.name in ("f16", "bf16") for dtype in dtypes),
        fills=map(_fill, sorted(dtypes, key=str)),
        trains=step is not None,
        steps=steps,
        step=_call(module.name, step) if step else (),
        loss=_buffer(step, step.outputs[0]) if step else "",
        largest=max(largest, 1) if step and every_variable else 0,
        calls=[
            line for function in module.predictions for line in (*_call(module.name, function), *_printed(function))
        ],
    )


def _buffers(functions: Sequence[BundleFunction]) -> Iterator[str]:
    for function in functions:
        for each in (*function.inputs, *function.outputs):
            yield f"static {each.element.c} {_buffer(function, each)}[{max(each.type.size, 1)}];"


def _buffer(function: BundleFunction, tensor: BundleTensor) -> str:
    return f"{function.name}_{tensor.name}_data"


def _call(name: str, function: BundleFunction) -> Iterator[str]:
    """Fill the inputs of a function, and call it."""
    for each in function.inputs:
        yield f"fill_{each.type.dtype}({_buffer(function, each)}, {each.type.size});"
    inputs, outputs = ([_buffer(function, each) for each in side] for side in (function.inputs, function.outputs))
    arguments = ", ".join(["&handle", *inputs, *(["NULL"] if function.hyper else []), *outputs])
    yield f'check("{function.name}", {name}_{function.name}({arguments}));'


def _printed(function: BundleFunction) -> Iterator[str]:
    """Print a checksum of each output."""
    for each in function.outputs:
        buffer = _buffer(function, each)
        sum_ = f"(unsigned)~checksum(~0u, {buffer}, {f'sizeof {buffer}' if each.type.size else 0})"
        yield f'printf("{function.name}: %s %08x\\n", {_quoted(printable(each.source))}, {sum_});'


def _quoted(text: str) -> str:
    """Printable ASCII as a string of C; ?? begins a trigraph."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("?", "\\?")
    return f'"{escaped}"'


def _fill(dtype: DType) -> str:
    """The function that makes batches of an element type."""
    number = "((int)(word() >> 24) - 128) / 64.0f" if dtype.is_float else "word() >> 24 & 1"
    value = {"f16": f"half({number})", "bf16": f"(uint16_t)(float_bits({number}) >> 16)"}.get(dtype.name, number)
    type_ = element_of(dtype).c
    return (
        f"static void fill_{dtype}({type_} *data, size_t count) {{\n"
        f"  for (size_t at = 0; at < count; at++) data[at] = ({type_})({value});\n}}\n"
    )
