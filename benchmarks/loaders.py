"""What a source of batches costs ``fit``, beside arrays in memory: a list, a generator, PyTorch's DataLoader.

    python benchmarks/loaders.py [--batch 64] [--steps 300] [--repeats 5] [--threads 1] [--workers 0 2]

For each: microseconds a batch that the source takes alone, in a plain loop, and a step of ``fit`` over it; and the rate
of ``fit`` in percent of what it could be: that of arrays, or the source's own where that is lower. The DataLoader needs
PyTorch, and processors beside those of the step for its workers. Sources take turns, and of each the best turn counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

import glowtrain as gt

Arrays = tuple[np.ndarray, np.ndarray]


@gt.model(x=gt.f32["batch", 1, 28, 28])
def mlp(x: gt.Value) -> gt.Value:
    """784-512-512-10."""
    x = gt.nn.relu(gt.nn.linear(gt.nn.flatten(x), 512))
    return gt.nn.linear(gt.nn.relu(gt.nn.linear(x, 512)), 10)


def main() -> None:
    """Measure, and print a table."""
    options = _options()
    rng = np.random.default_rng(0)
    count = options.batch * options.steps
    x = rng.standard_normal((count, 1, 28, 28), np.float32)
    y = rng.integers(0, 10, count)
    sources = _sources((x, y), options.batch, options.workers)
    trainer = gt.Trainer(mlp, "softmax_cross_entropy", gt.optim.SGD(lr=1e-6), threads=options.threads)

    def fit(data: Any, size: int | None = None) -> float:
        began = time.perf_counter()
        trainer.fit(data, 1, size, progress=False)
        return (time.perf_counter() - began) / options.steps * 1e6

    fit((x, y), options.batch)
    arrays, alone, fed = [], {name: [] for name in sources}, {name: [] for name in sources}
    for _ in range(options.repeats):
        arrays.append(fit((x, y), options.batch))
        for name, source in sources.items():
            alone[name].append(_alone(source) / options.steps)
            fed[name].append(fit(source))
    best = min(arrays)
    print(
        f"arrays in memory: {best:,.0f} us a step\n\n{'source':24}{'alone':>10}{'fit':>10}{'of what it could be':>24}"
    )
    for name in sources:
        possible = max(best, min(alone[name]))
        print(f"{name:24}{min(alone[name]):>10,.0f}{min(fed[name]):>10,.0f}{100 * possible / min(fed[name]):>22,.0f} %")


def _alone(source: Any) -> float:
    """Microseconds of a loop over a source that does nothing."""
    began = time.perf_counter()
    for _ in source() if callable(source) else source:
        pass
    return (time.perf_counter() - began) * 1e6


def _sources(arrays: Arrays, size: int, workers: list[int]) -> dict[str, Any]:
    x, y = arrays

    def made() -> Iterator[Arrays]:
        for start in range(0, len(x), size):
            yield x[start : start + size] * np.float32(0.5), y[start : start + size]

    sources: dict[str, Iterable[Any] | Callable[[], Iterable[Any]]] = {"list": list(made()), "generator": made}
    try:
        import torch
        from torch.utils.data import DataLoader, TensorDataset
    except ModuleNotFoundError:
        print("PyTorch is not installed: without its DataLoader")
        return sources
    examples = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    for number in workers:
        loader = DataLoader(examples, batch_size=size, shuffle=True, num_workers=number, persistent_workers=number > 0)
        sources[f"DataLoader, {number} workers"] = loader
    return sources


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("batch", 64), ("steps", 300), ("repeats", 5), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--workers", type=int, nargs="*", default=[0, 2])
    return parser.parse_args()


if __name__ == "__main__":
    main()
