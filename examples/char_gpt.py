"""A character-level GPT that learns to write Python from the sources of Python's standard library.

python examples/char_gpt.py [--quick] [--minutes 2]
"""

from __future__ import annotations

import argparse
import ast
import sysconfig
import time
from pathlib import Path

import checkout  # noqa: F401  finds glowtrain
import numpy as np

import glowtrain as gt
from glowtrain.types import Array

ALPHABET = "\n\t" + "".join(map(chr, range(32, 127)))
INDENT = "    "  # one tab in the text, so that indentation does not fill the context
TIME, WIDTH, HEADS, LAYERS, BATCH = 64, 96, 3, 2, 8  # small: in two minutes, many steps teach more than many weights


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

    text = corpus(100_000 if arguments.quick else 2_000_000)
    rule = gt.optim.AdamW(
        2e-3, beta2=0.99, weight_decay=0.1, no_decay=gt.optim.vectors, clip_norm=1.0, schedule=gt.optim.Warmup(100)
    )
    trainer = gt.Trainer(gpt, gt.losses.softmax_cross_entropy(), rule)
    count = sum(array.size for array in trainer.parameters().values())
    print(f"{len(text):,} characters of Python, a GPT with {count:,} parameters")
    train(trainer, text, seconds=arguments.minutes * 60, steps=10 if arguments.quick else 10**9)
    print("\n" + write(trainer, "\n\nclass ", 60 if arguments.quick else 600).strip())


def corpus(limit: int) -> Array:
    """About ``limit`` characters of the standard library's modules, as indices into the alphabet."""
    modules: list[str] = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        if sum(map(len, modules)) < limit:
            modules.append(code_only(path.read_text(encoding="utf-8")))
    text = "\n\n".join(modules).replace(INDENT, "\t").encode("ascii", "ignore")
    table = np.full(128, -1, np.int64)
    table[[ord(character) for character in ALPHABET]] = np.arange(len(ALPHABET))
    known = table[np.frombuffer(text, np.uint8)]
    return np.asarray(known[known >= 0])


def code_only(source: str) -> str:
    """A module without comments and docstrings, in one style: two minutes are not enough to learn prose as well."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        documented = isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if documented and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


def train(trainer: gt.Trainer, text: Array, seconds: float, steps: int) -> None:
    """Steps on random pieces of text until the time is over; the rate falls along half a cosine."""
    generator = np.random.Generator(np.random.Philox(0))
    peak, mean, shown = trainer.hyper["lr"], 0.0, 0.0
    began = time.perf_counter()
    trainer.prepare(pieces(text, generator))
    print(f"compiled in {time.perf_counter() - began:.1f} s")
    began = time.perf_counter()
    for step in range(1, steps + 1):
        elapsed = time.perf_counter() - began
        if elapsed > seconds:
            break
        trainer.hyper["lr"] = peak * (0.02 + 0.98 * 0.5 * (1 + np.cos(np.pi * elapsed / seconds)))
        loss = trainer.step(pieces(text, generator))
        mean = loss if step == 1 else 0.98 * mean + 0.02 * loss
        if elapsed >= shown:
            print(f"{elapsed:5.0f} s  step {step:5d}  loss {mean:.3f} a character", flush=True)
            shown += seconds / 8


def pieces(text: Array, generator: np.random.Generator) -> dict[str, Array]:
    """A batch: what is read, and the same one character later."""
    starts = generator.integers(0, len(text) - TIME, BATCH)[:, None] + np.arange(TIME)
    return {"tokens": text[starts], "labels": text[starts + 1]}


def write(trainer: gt.Trainer, prompt: str, count: int, temperature: float = 0.5) -> str:
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
