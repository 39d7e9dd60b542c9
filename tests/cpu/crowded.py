"""Native code in a process whose address space is cut into holes: ``python -m tests.cpu.crowded SCENARIO ...``.

``steps FOLDER`` trains on two threads, with code from a cache folder or compiled into it, and prints the bits; with
``plain`` behind, in an address space as it is. ``load COUNT`` loads so many functions of several objects each and runs
them.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

import glowtrain as gt
from glowtrain.backends.llvm import pieces, toolchain
from glowtrain.backends.target import Target
from glowtrain.graph import Value
from glowtrain.program.parse import parse
from tests.program.filetests import ENGINES
from tests.program.test_call import TEXT, TWICE, X

SPAN = 3 << 30
"""Bytes from one hole to the next: more than a signed displacement of 32 bits reaches."""
HOLES = 1200
SMALLEST, KINDS = 1 << 14, 10
"""Bytes of the smallest holes, and the number of sizes, each twice the one before."""
FUNCTIONS, CALLERS = 40, 30
"""Of :func:`calling_text`: how many there are, and how many of them are called."""
_RESERVED = 0x4022
"""Private, anonymous, nothing set aside (mmap(2) on Linux)."""
_EXACTLY = 0x100000


def crowd() -> None:
    """Fill the gaps between what is mapped, and leave holes of every size far from each other."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    for begin, end in _gaps():
        libc.mmap(begin, end - begin, 0, _RESERVED | _EXACTLY, -1, 0)
    for number in range(HOLES):
        address = libc.mmap(None, SPAN, 0, _RESERVED, -1, 0)
        assert address != ctypes.c_void_p(-1).value, "no address space to reserve"
        libc.munmap(address, SMALLEST << number % KINDS)


def _gaps() -> list[tuple[int, int]]:
    """Between mappings that are near each other, but not below the stack, which grows."""
    rows = re.findall(r"^(\w+)-(\w+).*?(\S*)$", Path("/proc/self/maps").read_text(), re.MULTILINE)
    edges = [(int(begin, 16), int(end, 16), name) for begin, end, name in rows]
    return [(low[1], high[0]) for low, high in pairwise(edges) if 0 < high[0] - low[1] < SPAN and high[2] != "[stack]"]


def calling_text() -> str:
    """Functions that call each other and take each other's addresses, in pieces: ``entry`` adds 1 for each call."""
    adds = "".join(
        f"define internal void @f{n}(ptr %at) #0 {{\n  %old = load i64, ptr %at\n  %new = add i64 %old, 1\n"
        "  store i64 %new, ptr %at\n  ret void\n}\n\n"
        for n in range(FUNCTIONS)
    )
    calls = "".join(f"  call void @f{n}(ptr %at)\n  call void @through(ptr @f{n}, ptr %at)\n" for n in range(CALLERS))
    through = "define internal void @through(ptr %f, ptr %at) #0 {\n  call void %f(ptr %at)\n  ret void\n}\n\n"
    return f"{adds}{through}define void @entry(ptr %at) #0 {{\n{calls}  ret void\n}}\n"


def calling_objects(target: Target) -> tuple[bytes, ...]:
    """Of :func:`calling_text`, an object for each few functions."""
    with pieces.ObjectPieces(target, 1, 1000) as made:
        made.add(calling_text())
        return made.finish()


def run_calling(objects: Sequence[bytes]) -> toolchain.Library:
    """Load and run ``entry``; every call must have been made."""
    library, count = toolchain.load(objects, ["entry"]), ctypes.c_int64()
    library.function("entry", 1)(ctypes.addressof(count))
    assert count.value == 2 * CALLERS
    return library


def steps(folder: str) -> None:
    """Print the bits that a program with a native function and steps on two threads leave."""
    backend = gt.Cpu(cache=folder)
    trainer = gt.Trainer(net, gt.losses.softmax_cross_entropy(), gt.optim.Adam(lr=1e-3), backend=backend, threads=2)
    feeds = {"x": np.linspace(-1, 1, 8 * 3 * 32 * 32, dtype=np.float32).reshape(8, 3, 32, 32), "labels": np.arange(8)}
    losses = [trainer.step(feeds) for _ in range(3)]
    program = parse(TEXT, functions={"twice": TWICE})
    outputs, _ = ENGINES["host"](program, {"x": X}, {})
    print(outputs["y"].tobytes().hex(), losses, [array.tobytes().hex()[:64] for array in trainer.parameters().values()])


def load(functions: int) -> None:
    """Load and run functions of several objects."""
    objects = calling_objects(Target.host())
    stay = [run_calling(objects) for _ in range(functions)][::2]
    stay += [run_calling(objects) for _ in range(functions // 10)]
    print(f"{functions} functions of {len(objects)} objects; {len(stay)} stay")


@gt.model(x=gt.f32["batch", 3, 32, 32])
def net(x: Value) -> Value:
    for layer in range(8):
        x = gt.nn.relu(gt.nn.batch_norm(gt.nn.conv(x, 16 + 8 * (layer // 3), 3, padding=1)))
    return gt.nn.linear(gt.nn.flatten(gt.nn.max_pool(x, 4)), 10)


if __name__ == "__main__":
    scenario, argument, *crowded = sys.argv[1:]
    if crowded != ["plain"]:
        crowd()
    if scenario == "steps":
        steps(argument)
    else:
        load(int(argument))
