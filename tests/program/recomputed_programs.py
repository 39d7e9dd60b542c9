"""Random programs in which something is worth being made again, and what they compute."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from glowtrain.program.interpret.evaluate import evaluate
from glowtrain.program.memory.plan import plan
from glowtrain.program.parse import parse
from glowtrain.program.program import Program


def random_text(seed: int, kernels: int = 14) -> str:
    """Elementwise kernels, some of two results, that read what came long before, as a backward pass does, and update a
    variable now and then."""
    random = np.random.default_rng(seed)
    lines, names = [], ["x", "v"]
    for k in range(kernels):
        one, other = (names[max(len(names) - 1 - int(random.geometric(0.25)), 0)] for _ in range(2))
        at, place = random.choice(["i", "i", "63 - i"]), random.choice(["i", "i", "63 - i"])
        lines += [f"kernel k{k}:", "  for i<64:", f"    let t{k} = 0.5 * {one}[{at}] + {other}[{place}]"]
        lines += [f"    a{k}[i] = t{k}"]
        names.append(f"a{k}")
        if random.integers(3) == 0:
            lines += [f"    b{k}[i] = 0.25 * t{k} * t{k}"]
            names.append(f"b{k}")
        if k == kernels // 2 or random.integers(6) == 0:
            lines += [f"kernel u{k}:", f"  for i<64: v[i] = 0.5 * a{k}[63 - i]"]
        if random.integers(4) == 0:  # in one kernel with what is kept, as an update that was fused with it
            lines += [f"kernel w{k}:", "  for i<64:", f"    let w{k} = 0.5 * v[i] + a{k}[i]"]
            lines += [f"    v[i] = w{k}", f"    d{k}[i] = w{k} * w{k}"]
            names.append(f"d{k}")
        if random.integers(4) == 0:  # two passes, of which the second reads what the first wrote
            lines += [f"kernel p{k}:", "  for j<4:", f"    e{k}[j] = sum(r<16: a{k}[16 * j + r])"]
            lines += [f"    for i<16: f{k}[16 * j + i] = a{k}[16 * j + i] * e{k}[j]"]
            names.append(f"f{k}")
        if random.integers(4) == 0:  # two halves, perhaps with an update of what the second reads between
            lines += [f"kernel g{k}:", f"  for i<32: g{k}[i] = a{k}[63 - i] + v[i]"]
            lines += [f"kernel h{k}:", f"  for i<64: v[i] = 0.5 * v[i] + a{k}[i]"] if random.integers(2) else []
            lines += [f"kernel g{k}:", f"  for i<32: g{k}[i + 32] = {one}[i] * v[2 * i]"]
            names.append(f"g{k}")
    total = "x"
    for k, name in enumerate(reversed(names[1:])):
        at = random.choice(["i", "63 - i"])
        lines += [f"kernel back{k}:", f"  for i<64: c{k}[i] = 0.5 * {total}[i] + {name}[{at}]"]
        total = f"c{k}"
    made = (*names[2:], *(f"c{k}" for k in range(len(names) - 1)))
    head = ["program p", "  input x: f32[64]", "  output y: f32[64]", "  variable v: f32[64]"]
    head += [f"  activation {name}: f32[64]" for name in made]
    head += [f"  activation e{name[1:]}: f32[4]" for name in names if name.startswith("f")]
    return "\n".join([*head, "  updates v", *lines, "kernel last:", f"  for i<64: y[i] = {total}[i]", ""])


def programs() -> Iterator[tuple[Program, dict[str, np.ndarray]]]:
    """Random programs of many elementwise kernels."""
    for seed in range(40):
        yield parse(random_text(seed)), {"x": np.random.default_rng(seed).standard_normal(64, np.float32)}


def bits(program: Program, feeds: dict[str, np.ndarray]) -> dict[str, bytes]:
    state = {name: np.ones(b.shape, b.dtype.numpy) for name, b in program.variables.items()}
    outputs, state = evaluate(program, feeds, state, plan=plan(program))
    return {name: (array + 0).tobytes() for name, array in {**outputs, **state}.items()}


def random_rows_text(seed: int, groups: int = 4) -> str:
    """Groups of kernels over rows with something wide between them, which other kernels read long after, along the rows
    or across them, and between them such as make something again cheaply."""
    random = np.random.default_rng(seed)
    lines, names, wide = [], ["x", "v"], list[str]()
    for k in range(groups):
        one, other = (names[max(len(names) - 1 - int(random.geometric(0.4)), 0)] for _ in range(2))
        shift = random.choice(["", f" - max(q<64: s{k}[i, q])", f" + 0.5 * s{k}[i, 63 - j]"])
        lines += [f"kernel s{k}:", f"  for i<8, j<64: s{k}[i, j] = sum(r<8: {one}[i, r] * w[r, j])"]
        lines += [f"kernel e{k}:", f"  for i<8, j<64: e{k}[i, j] = s{k}[i, j]{shift}"]
        lines += [f"kernel a{k}:", f"  for i<8, c<8: a{k}[i, c] = sum(j<64: e{k}[i, j] * w[c, j]) + {other}[i, c]"]
        lines += [f"kernel b{k}:", f"  for i<8, c<8: b{k}[i, c] = 0.25 * a{k}[i, c] + x[i, 7 - c]"]
        wide += [random.choice([f"s{k}", f"e{k}"])]
        names += [f"a{k}", f"b{k}"]
        if k == groups // 2 or random.integers(4) == 0:
            lines += [f"kernel u{k}:", f"  for i<8, c<8: v[i, c] = 0.5 * v[i, c] + a{k}[7 - i, c]"]
    total = names[-1]
    for k, name in enumerate(reversed(wide)):
        at = random.choice(["i, j", "c, j", "7 - i, j"])
        lines += [f"kernel back{k}:", f"  for i<8, c<8: c{k}[i, c] = sum(j<64: {name}[{at}] * w[c, j]) + {total}[i, c]"]
        total = f"c{k}"
    small = (*names[2:], *(f"c{k}" for k in range(groups)))
    head = [
        "program p",
        "  input  x: f32[8,8]",
        "  input  w: f32[8,64]",
        "  output y: f32[8,8]",
        "  variable v: f32[8,8]",
    ]
    head += [f"  activation {name}: f32[8,8]" for name in small]
    head += [f"  activation {name}{k}: f32[8,64]" for k in range(groups) for name in "se"]
    return "\n".join([*head, "  updates v", *lines, "kernel last:", f"  for i<8, c<8: y[i, c] = {total}[i, c]", ""])


def programs_of_rows() -> Iterator[tuple[Program, dict[str, np.ndarray]]]:
    """Random programs in which groups of kernels can run in slices."""
    for seed in range(12):
        random = np.random.default_rng(seed)
        feeds = {"x": random.standard_normal((8, 8), np.float32), "w": random.standard_normal((8, 64), np.float32)}
        yield parse(random_rows_text(seed)), feeds
