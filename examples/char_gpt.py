"""A character-level GPT that learns to write Python from the sources of Python's standard library.

python examples/char_gpt.py [--quick] [--minutes 2]
"""

from __future__ import annotations

import argparse
import sysconfig
import time
from pathlib import Path

import checkout  # noqa: F401  finds glowtrain
import numpy as np

import glowtrain as gt
from glowtrain.types import Array

ALPHABET = "\n\t" + "".join(map(chr, range(32, 127)))
INDENT = "    "  # one tab in the text, so that indentation does not fill the context
TIME, WIDTH, HEADS, LAYERS, BATCH = 64, 128, 4, 3, 16


@gt.model(tokens=gt.i64["batch", TIME])
def gpt(tokens: gt.Value) -> dict[str, gt.Value]:
    """Pre-norm transformer (Radford et al., 2019): scores[batch, time, characters] of the next character."""
    places = gt.nn.parameter("positions", (TIME, WIDTH), gt.nn.Normal(0.02))
    x = gt.nn.embedding(tokens, len(ALPHABET), WIDTH, initializer=gt.nn.Normal(0.02)) + places
    for layer in range(LAYERS):
        with gt.nn.scope(f"block{layer}"):
            x = x + gt.nn.attention(gt.nn.layer_norm(x), HEADS, causal=True)
            x = x + gt.nn.linear(gt.nn.gelu(gt.nn.linear(gt.nn.layer_norm(x), 4 * WIDTH)), WIDTH)
    return {"scores": gt.nn.linear(gt.nn.layer_norm(x), len(ALPHABET))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a short run, for tests")
    parser.add_argument("--minutes", type=float, default=2.0, help="how long to train")
    arguments = parser.parse_args()

    text = corpus(500_000 if arguments.quick else 12_000_000)
    rule = gt.optim.AdamW(
        2e-3, weight_decay=0.1, no_decay=gt.optim.vectors, clip_norm=1.0, schedule=gt.optim.Warmup(100)
    )
    trainer = gt.Trainer(gpt, gt.losses.softmax_cross_entropy(), rule)
    count = sum(array.size for array in trainer.parameters().values())
    print(f"{len(text):,} characters of Python, a GPT with {count:,} parameters")
    train(trainer, text, seconds=arguments.minutes * 60, steps=10 if arguments.quick else 10**9)
    print("\n" + write(trainer, "def ", 60 if arguments.quick else 600))


def corpus(limit: int) -> Array:
    """The standard library's modules, as indices into the alphabet."""
    table = np.full(128, -1, np.int64)
    table[[ord(character) for character in ALPHABET]] = np.arange(len(ALPHABET))
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = "\n".join(path.read_text(encoding="utf-8", errors="ignore") for path in files)
    codes = np.frombuffer(text.replace(INDENT, "\t").encode("ascii", "ignore"), np.uint8)[:limit]
    known = table[codes]
    return np.asarray(known[known >= 0])


def train(trainer: gt.Trainer, text: Array, seconds: float, steps: int) -> None:
    """Steps on random pieces of text until the time is over; the rate falls along half a cosine."""
    generator = np.random.Generator(np.random.Philox(0))
    peak, mean, shown = trainer.hyper["lr"], 0.0, 0.0
    offsets = np.arange(TIME + 1)
    compile_step(trainer)
    began = time.perf_counter()
    for step in range(1, steps + 1):
        elapsed = time.perf_counter() - began
        if elapsed > seconds:
            break
        trainer.hyper["lr"] = peak * (0.05 + 0.95 * 0.5 * (1 + np.cos(np.pi * elapsed / seconds)))
        pieces = text[generator.integers(0, len(text) - TIME - 1, BATCH)[:, None] + offsets]
        loss = trainer.step(
            {"tokens": np.ascontiguousarray(pieces[:, :-1]), "labels": np.ascontiguousarray(pieces[:, 1:])}
        )
        mean = loss if step == 1 else 0.98 * mean + 0.02 * loss
        if elapsed >= shown:
            print(f"{elapsed:5.0f} s  step {step:5d}  loss {mean:.3f} a character", flush=True)
            shown += seconds / 8


def compile_step(trainer: gt.Trainer) -> None:
    """One step that changes nothing: its learning rate is 0. What it takes is the time to compile."""
    began, rate = time.perf_counter(), trainer.hyper["lr"]
    trainer.hyper["lr"] = 0.0
    trainer.step({"tokens": np.zeros((BATCH, TIME), np.int64), "labels": np.zeros((BATCH, TIME), np.int64)})
    trainer.hyper["lr"] = rate
    print(f"compiled in {time.perf_counter() - began:.1f} s")


def write(trainer: gt.Trainer, prompt: str, count: int, temperature: float = 0.6) -> str:
    """``count`` more characters, each drawn from what the model predicts."""
    generator = np.random.Generator(np.random.Philox(1))
    written = [ALPHABET.index(character) for character in prompt]
    for _ in range(count):
        seen = written[-TIME:]
        tokens = np.zeros((1, TIME), np.int64)
        tokens[0, : len(seen)] = seen
        scores = trainer.predict(tokens)["scores"][0, len(seen) - 1].astype(np.float64) / temperature
        chances = np.exp(scores - scores.max())
        written.append(int(generator.choice(len(ALPHABET), p=chances / chances.sum())))
    return "".join(ALPHABET[index] for index in written).replace("\t", INDENT)


if __name__ == "__main__":
    main()
