"""One compiled function may be called from several threads: calls over one state take turns."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

import glowtrain as gt


@gt.model(x=gt.f32["batch", 256])
def network(x: gt.Value) -> gt.Value:
    """Two layers, long enough for threads to meet in native code."""
    return gt.nn.linear(gt.nn.relu(gt.nn.linear(x, 256, name="hidden")), 16, name="head")


def test_calls_from_several_threads_do_not_mix() -> None:
    predict = gt.compile(network)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((64, 256)).astype(np.float32) for _ in range(64)]
    wanted = [predict({"x": x})["output"] for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda x: predict({"x": x})["output"], inputs * 4))
    assert all(np.array_equal(a, b) for a, b in zip(found, wanted * 4, strict=True))
