"""The largest resident memory of a process that trains a transformer, beside PyTorch's: imports, model, Adam's state,
compiling and steps, all together.

    python benchmarks/memory_of_process.py [--layers 12] [--width 768] [--tokens 1024] [--output benchmarks/results]

Needs PyTorch. Every row is a process of its own. A step's time is that of the processor, of all threads.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import glowtrain as gt

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.speed.machine import describe

ROWS = {"glowtrain": "Glowtrain", "small": 'Glowtrain, `memory="small"`', "torch": "PyTorch, eager"}
VOCABULARY, HEAD, RATE = 50257, 64, 1e-4
STEPS = 2
GB = 1e9

Step = Callable[[np.ndarray, np.ndarray], float]
"""From tokens and labels to the loss."""


def glowtrain_step(sizes: argparse.Namespace, memory: str | None) -> Step:
    """A step of the transformer, batch 1."""
    width, tokens = sizes.width, sizes.tokens

    @gt.model(tokens=gt.i64["batch", tokens])
    def transformer(tokens: gt.Value) -> dict[str, gt.Value]:
        places = gt.constant(np.arange(sizes.tokens))
        x = gt.nn.embedding(tokens, VOCABULARY, width, name="tokens")
        x = x + gt.nn.embedding(places, sizes.tokens, width, name="places")
        for number in range(sizes.layers):
            with gt.nn.scope(f"block{number}"):
                x = x + gt.nn.attention(gt.nn.layer_norm(x), width // HEAD, causal=True)
                x = x + gt.nn.linear(gt.nn.gelu(gt.nn.linear(gt.nn.layer_norm(x), 4 * width)), width)
        return {"logits": gt.nn.linear(gt.nn.layer_norm(x), VOCABULARY, name="head")}

    loss, optimizer = gt.losses.softmax_cross_entropy("labels", "logits"), gt.optim.Adam(RATE)
    backend = gt.Cpu(cache=False, threads=sizes.threads)
    trainer = gt.Trainer(transformer.bind({"batch": 1}), loss, optimizer, backend=backend, memory=memory)
    return lambda tokens, labels: trainer.step({"tokens": tokens, "labels": labels})


def torch_step(sizes: argparse.Namespace) -> Step:
    """The same in PyTorch, with its fused attention."""
    import torch

    width, nn = sizes.width, torch.nn
    torch.set_num_threads(sizes.threads)

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            heads = self.qkv(self.before(x)).reshape(*x.shape[:2], 3, -1, HEAD).permute(2, 0, 3, 1, 4)
            mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
            x = x + self.output(mixed.transpose(1, 2).reshape(x.shape))
            return x + self.down(nn.functional.gelu(self.up(self.after(x))))

    class Transformer(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(sizes.tokens, width)
            self.blocks = nn.Sequential(*(Block() for _ in range(sizes.layers)))
            self.last, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)

        def forward(self, tokens: Any) -> Any:
            return self.head(self.last(self.blocks(self.tokens(tokens) + self.places.weight)))

    model = Transformer()
    optimizer = torch.optim.Adam(model.parameters(), RATE)

    def step(tokens: np.ndarray, labels: np.ndarray) -> float:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(torch.from_numpy(tokens))[0], torch.from_numpy(labels)[0])
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def measured(sizes: argparse.Namespace) -> dict[str, float]:
    """The peak of this process in bytes after some steps, and the seconds of the last one."""
    memory = "small" if sizes.row == "small" else None
    step = torch_step(sizes) if sizes.row == "torch" else glowtrain_step(sizes, memory)
    random = np.random.default_rng(0)
    tokens, labels = random.integers(0, VOCABULARY, (2, 1, sizes.tokens))
    for _ in range(STEPS):
        began = time.process_time()
        loss = step(tokens, labels)
        seconds = time.process_time() - began
    assert np.isfinite(loss)
    return {"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "seconds": seconds}


def lines(given: argparse.Namespace) -> Iterator[str]:
    """A table of the rows."""
    sizes = f"{given.layers} layers, width {given.width}, {given.tokens:,} tokens, vocabulary {VOCABULARY:,}, Adam"
    yield f"| {sizes} | peak of the process, GB | step, s |"
    yield "|---|---|---|"
    for row, name in ROWS.items():
        command = [sys.executable, __file__, "--row", row]
        for size in ("layers", "width", "tokens", "threads"):
            command += [f"--{size}", str(getattr(given, size))]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
        yield f"| {name} | {found['peak'] / GB:.2f} | {found['seconds']:.1f} |"


def main() -> None:
    """The table, or what one row measures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768, help="a multiple of 64, which a head has")
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--row", choices=ROWS, help="measure this process, print JSON")
    parser.add_argument("--output", type=Path, help="folder for memory_of_process.md")
    given = parser.parse_args()
    if given.row:
        print(json.dumps(measured(given)))
        return
    facts = "; ".join(f"{what} {value}" for what, value in describe(["numpy", "llvmlite", "torch"]).items())
    head = [
        "# Memory of a process that trains",
        "",
        "By `python benchmarks/memory_of_process.py --output benchmarks/results`.",
    ]
    text = "\n".join([*head, "", f"{facts}; {given.threads} threads; batch 1, f32.", "", *lines(given), ""])
    print(text)
    if given.output is not None:
        (given.output / "memory_of_process.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
