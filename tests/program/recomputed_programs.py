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
