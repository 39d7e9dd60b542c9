"""Networks on devices, and requests as they come: what Glow's runtime was planned to do, point by point.

Requests are enqueued; cut into batches of the compiled size, of which the last is filled up; passed from model to
model while the first has its next one; they wait in bounded queues, of devices that are managed; and a network that
does not fit into one device is cut into parts that wait for each other's values.

python examples/runtime.py [--quick]
"""

from __future__ import annotations

import argparse

import checkout  # noqa: F401  finds glowtrain
import numpy as np

import glowtrain as gt
from glowtrain.errors import ProvisionError, QueueFullError
from glowtrain.runtime import HostManager, Link, cpu_devices, partitioned
from glowtrain.types import Array


@gt.model(x=gt.f32["batch", 64])
def digits(x: gt.Value) -> dict[str, gt.Value]:
    x = gt.nn.relu(gt.nn.linear(x, 128, name="hidden"))
    return {"scores": gt.nn.linear(x, 10, name="head")}


@gt.model(scores=gt.f32["batch", 10])
def confidence(scores: gt.Value) -> dict[str, gt.Value]:
    return {"p": gt.ops.ReduceMax((1,), keepdims=0)(gt.nn.softmax(scores))}


@gt.model(x=gt.f32[16, 64])
def deep(x: gt.Value) -> dict[str, gt.Value]:
    for number in range(6):
        x = gt.nn.relu(gt.nn.linear(x, 256, name=f"layer{number}"))
    return {"scores": gt.nn.linear(x, 10, name="head")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a short run, for tests")
    epochs = 2 if parser.parse_args().quick else 10

    data = gt.data.load("digits")
    trainer = gt.Trainer(digits, gt.losses.softmax_cross_entropy("labels"), gt.optim.Adam(lr=2e-3))
    trainer.fit({"x": data.train["x"].reshape(-1, 64), "labels": data.train["y"]}, epochs, batch_size=32)
    assert data.valid is not None
    images, labels = data.valid["x"].reshape(-1, 64), data.valid["y"]

    with HostManager(cpu_devices(2, threads=1)) as host:
        host.add_network("digits", trainer, batch_sizes=[32], devices=["cpu:0"])
        enqueue(host, images, labels)
        slice_and_pad(host, images[:100])
        pipeline(host, images)
        manage(host, images)
    partition()


def enqueue(host: HostManager, images: Array, labels: Array) -> None:
    """Requests are enqueued, and answered as devices are free: ``run`` gives a future at once."""
    futures = [host.run("digits", {"x": image[None]}) for image in images[:200]]
    found = [future.result()["scores"].argmax() for future in futures]
    print(f"enqueued {len(futures)} requests of an image each: {np.mean(found == labels[:200]):.0%} are right")


def slice_and_pad(host: HostManager, images: Array) -> None:
    """Inputs are cut into batches of the compiled size, and the last one is filled up; nobody sees the filling."""
    before = batches(host, "digits")
    answer = host.run_sync("digits", {"x": images})["scores"]
    ran = batches(host, "digits") - before
    print(f"{len(images)} rows ran as {ran} batches of 32, {32 * ran - len(images)} rows of them filled up; ", end="")
    print(f"{len(answer)} answers came")


def pipeline(host: HostManager, images: Array) -> None:
    """One model's answer goes to the next, which has a device of its own: both work, on different requests."""
    host.add_network("confidence", confidence, batch_sizes=[32], devices=["cpu:1"])
    links = [Link("digits"), Link("confidence", {"scores": "digits.scores"})]
    host.add_pipeline("sure", links, {"scores": "digits.scores", "p": "confidence.p"})
    futures = [host.run("sure", {"x": images[n : n + 32]}) for n in range(0, 320, 32)]
    sure = np.concatenate([future.result()["p"] for future in futures])
    at_work = ", ".join(status.name for status in host.status() if status.tasks)
    print(f"two models in a row, on {at_work}: of {len(sure)} images, a mean confidence of {sure.mean():.0%}")


def manage(host: HostManager, images: Array) -> None:
    """Queues are bounded: a rejection names the limit. What waits can be cancelled, and urgent requests go first."""
    host.add_network("careful", digits, batch_sizes=[16], max_delay=600.0, queue=8)
    waiting = [host.run("careful", {"x": image[None]}, priority=n) for n, image in enumerate(images[:8])]
    try:
        host.run("careful", {"x": images[8:9]})
    except QueueFullError as error:
        print(f"the ninth request: {error}")
    print(f"cancelled one: {waiting[0].cancel()}; ", end="")
    filling = host.run("careful", {"x": images[8:17]}, timeout=60)  # with these, the batch of 16 is full, and runs
    answered = [future.result(60)["scores"].shape for future in (*waiting[1:], filling)]
    print(f"{len(answered)} others answered, in {batches(host, 'careful')} batch")
    host.remove_network("careful")
    for status in host.status():
        print(f"device {status.name}: {status.lost or 'in service'}, {status.used:,} bytes taken")


def partition() -> None:
    """A network that does not fit into one device is cut into parts; each waits for what it takes of the others."""
    devices = cpu_devices(2, memory="1MB", threads=1)
    graph = deep.bind({})
    x = np.random.default_rng(0).standard_normal((16, 64), np.float32)
    with HostManager(devices) as host:
        try:
            host.add_network("deep", graph)
        except ProvisionError as error:
            print(f"as a whole: {error}")
        parts = partitioned(graph, devices)
        host.add_network("deep", graph, partition=parts)
        same = host.run_sync("deep", {"x": x})["scores"].tobytes() == gt.compile(graph)({"x": x})["scores"].tobytes()
        print(f"in {len(parts.parts)} parts on {len(parts.stages)} devices, with the bits of the whole: {same}")


def batches(host: HostManager, network: str) -> int:
    """How many batches of a network have run."""
    found = (m for m in host.metrics() if m.name == "nv_inference_exec_count" and m.labels["model"] == network)
    return sum(int(metric.value) for metric in found)


if __name__ == "__main__":
    main()
