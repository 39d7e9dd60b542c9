"""Concurrent clients of one model, in a process of their own: ``benchmarks/serving.py`` starts it.

    python benchmarks/serving_clients.py http|grpc ADDRESS MODEL WIDTH CLIENTS

For each line of its input, a number of seconds, the clients ask as fast as they are answered; a line of JSON says the
seconds that each answer took, and the processor time that asking cost.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Asked:
    """What is asked of whom: ``way`` is one of Triton's client's modules."""

    way: Any
    address: str
    model: str
    width: int

    def until(self, end: float, seed: int) -> list[float]:
        """The seconds that answers took, one after another up to a time; by a client of this thread's own."""
        example = np.random.default_rng(seed).standard_normal((1, self.width)).astype(np.float32)
        given = self.way.InferInput("x", list(example.shape), "FP32")
        given.set_data_from_numpy(example)
        taken = []
        with self.way.InferenceServerClient(self.address) as client:
            while (began := time.perf_counter()) < end:
                answer = client.infer(self.model, [given]).as_numpy("y")
                taken.append(time.perf_counter() - began)
                if answer.shape != example.shape:
                    raise RuntimeError(f"an answer of shape {answer.shape}")
        return taken


def main() -> None:
    """Ask as long as there are lines."""
    name, address, model, width, count = sys.argv[1:]
    asked, clients = Asked(importlib.import_module(f"tritonclient.{name}"), address, model, int(width)), int(count)
    with ThreadPoolExecutor(clients) as pool:
        for line in sys.stdin:
            end, busy = time.perf_counter() + float(line), time.process_time()
            taken = [each for some in pool.map(asked.until, [end] * clients, range(clients)) for each in some]
            print(json.dumps({"taken": taken, "busy": time.process_time() - busy}), flush=True)


if __name__ == "__main__":
    main()
