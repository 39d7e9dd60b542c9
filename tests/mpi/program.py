"""A training that a test disturbs: each rank says after some steps that it is at work."""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

import glowtrain as gt
from glowtrain.fleet.digest import digest


@gt.model(x=gt.f32["batch", 20])
def model(x):
    return gt.nn.linear(gt.nn.dropout(gt.nn.relu(gt.nn.linear(x, 64)), 0.2), 5)


def main(folder: str, fault: str, timeout: float, epochs: int) -> None:
    """Train, perhaps with a fault ``KIND RANK``."""
    trainer = gt.Trainer(model, "softmax_cross_entropy", "adam", fleet=gt.fleet.mpi(shards=8, timeout=timeout))
    kind, _, culprit = fault.partition(" ")
    mine = str(trainer.fleet.fleet.ranks.rank) == culprit
    numbers = np.random.default_rng(0)
    x, y = numbers.standard_normal((640, 20)).astype(np.float32), numbers.integers(0, 5, 640)
    if mine and kind == "before":
        raise RuntimeError("there are no such data")
    at_work = Path(folder) / f"steps.{trainer.fleet.fleet.ranks.rank}"

    def disturb(moment):
        time.sleep(0.005)  # so that a signal comes before the end
        if moment.epoch == 3 and moment.batch == 1:
            part = at_work.with_name(f"part.{at_work.name}")
            part.write_text(str(os.getpid()))
            part.rename(at_work)
        if moment.epoch == 4 and mine and kind == "raise":
            raise RuntimeError("the disk is full")
        if moment.epoch == 4 and kind == "nan":
            x[np.arange(len(x)) % 64 // 32 == int(culprit)] = np.nan  # its rows of each batch

    path = Path(folder) / "run.safetensors"
    trainer.fit(
        (x, y), epochs=epochs, batch_size=64, shuffle=False, progress=False, checkpoint=path, checkpoint_every=5,
        resume=path.exists(), callbacks=[disturb],
    )  # fmt: skip
    if trainer.fleet.first:
        (Path(folder) / "variables").write_text(digest(trainer.variables()))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
