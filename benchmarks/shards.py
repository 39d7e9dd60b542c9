"""What training on shards takes beside arrays in memory: examples a second in turns, and the process's memory.

    python benchmarks/shards.py FOLDER [--gigabytes 8] [--part 1] [--hidden 512] [--batch 64] [--turns 8] [--threads N]

Writes shards of random bytes (u8[3072] an example, and labels) to the folder unless they are there, and trains a
perceptron on them, shuffled, in turns of --part gigabytes; in between, another trainer takes an epoch over so many
examples in memory. A turn begins by reading its first window, which counts. Processor time is compared as well. Memory
is that of a second process that does nothing but train on all shards: the most anonymous, and the most resident memory.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import glowtrain as gt

WIDTH, SHARD = 3072, 1 << 16


def main() -> None:
    """Measure, and print."""
    options = _options()
    if options.alone:
        return _alone(options)
    _write(options.folder, options.gigabytes)
    shards = gt.data.shards(options.folder)
    count = int(options.part * 1e9 / WIDTH)
    memory = {"x": np.asarray(shards.x[:count]), "y": np.asarray(shards.y[:count])}
    on_shards, in_memory = _trainer(options), _trainer(options)
    for trainer in (on_shards, in_memory):
        trainer.fit({name: array[:1024] for name, array in memory.items()}, 1, options.batch, progress=False)
    pairs = []
    steps = count // options.batch
    for begin in range(0, min(len(shards) // options.batch, options.turns * steps + 1) - steps, steps):
        on_shards.position.epoch, on_shards.position.batch = 0, begin
        on_shards.position.batch_size = options.batch
        pairs.append((_rate(on_shards, shards, options, begin + steps), _rate(in_memory, memory, options, steps)))
        (rate, used), (other, used_there) = pairs[-1]
        print(
            f"{rate:10,.0f} {other:10,.0f} examples a second; {used:6.1f} {used_there:6.1f} us of processors an example"
        )
    ratios = [one[0] / other[0] for one, other in pairs]
    used = [other[1] / one[1] for one, other in pairs]
    print(f"rate on shards / in memory: median {statistics.median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}")
    print(f"processor time in memory / on shards: median {statistics.median(used):.3f}")
    alone = [sys.executable, __file__, *sys.argv[1:], "--alone"]
    print(subprocess.run(alone, check=True, capture_output=True, text=True).stdout.strip())


def _rate(trainer: gt.Trainer, data: object, options: argparse.Namespace, steps: int) -> tuple[float, float]:
    """Of the batches up to number ``steps`` of an epoch: examples a second, microseconds of processors an example."""
    count = (steps - trainer.position.batch) * options.batch
    began, used = time.perf_counter(), time.process_time()
    trainer.fit(data, 1, options.batch, steps_per_epoch=steps, progress=False)
    return count / (time.perf_counter() - began), (time.process_time() - used) / count * 1e6


def _alone(options: argparse.Namespace) -> None:
    """Train over all shards, and print what memory the process took."""
    trainer, shards = _trainer(options), gt.data.shards(options.folder)
    most = [0.0]

    def look(moment: gt.callbacks.Moment) -> None:
        if moment.batch % 200 == 0:
            most[0] = max(most[0], _status("RssAnon"))

    began = time.perf_counter()
    trainer.fit(shards, 1, options.batch, callbacks=[look], progress=False)
    rate = len(shards) / (time.perf_counter() - began)
    size = len(shards) * WIDTH / 1e9
    print(
        f"{size:.1f} GB in one epoch, one step a call: {rate:,.0f} examples a second; anonymous memory at most "
        f"{most[0]:,.0f} MB, all resident memory at most {_status('VmHWM'):,.0f} MB"
    )


def _status(entry: str) -> float:
    """Megabytes of an entry of the process's status."""
    found = re.search(rf"{entry}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1e3


def _trainer(options: argparse.Namespace) -> gt.Trainer:
    @gt.model(x=gt.f32["batch", WIDTH])
    def mlp(x: gt.Value) -> gt.Value:
        x = gt.nn.relu(gt.nn.linear(x * (1 / 255), options.hidden))
        return gt.nn.linear(gt.nn.relu(gt.nn.linear(x, options.hidden)), 10)

    return gt.Trainer(mlp, "softmax_cross_entropy", gt.optim.SGD(lr=1e-6), threads=options.threads)


def _write(folder: Path, gigabytes: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(max(1, round(gigabytes * 1e9 / WIDTH / SHARD))):
        if not (folder / f"y-{number:04}.npy").exists():
            random = np.random.default_rng(number)
            np.save(folder / f"x-{number:04}.npy", random.integers(0, 256, (SHARD, WIDTH), np.uint8))
            np.save(folder / f"y-{number:04}.npy", random.integers(0, 10, SHARD))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gigabytes", type=float, default=8)
    parser.add_argument("--part", type=float, default=1.0)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
