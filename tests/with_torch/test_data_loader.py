"""PyTorch's DataLoader feeds fit, evaluate and predict: its tensors, its processes, its states."""

from __future__ import annotations

import gc
import multiprocessing
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import glowtrain as gt
from glowtrain.backends.cpu.executable import NativeInstance
from glowtrain.errors import BatchError, BatchesWarning, InputError
from glowtrain.trainer.fitting.moments import Moment
from glowtrain.trainer.sources.tensors import array_of

STARTS = ["fork", "spawn"]


@gt.model(x=gt.f32["batch", 6])
def mlp(x: gt.Value) -> gt.Value:
    return gt.nn.linear(gt.nn.tanh(gt.nn.linear(x, 8, name="first")), 3, name="second")


def trainer_of(backend: str = "interpreter", **settings: Any) -> gt.Trainer:
    settings = {"loss": "softmax_cross_entropy", "optimizer": gt.optim.Adam(lr=0.02), **settings}
    return gt.Trainer(mlp, backend=backend, **settings)


def bits(trainer: gt.Trainer) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in trainer.variables().items()}


def points(count: int = 22) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    return rng.standard_normal((count, 6), np.float32), rng.integers(0, 3, count)


class Examples(Dataset[tuple[torch.Tensor, int]]):
    """Examples one by one; one of them may be bad."""

    def __init__(self, count: int = 22, bad: int | None = None) -> None:
        self.x, self.y = points(count)
        self.bad = bad

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        if number == self.bad:
            raise ValueError(f"no file {number}")
        return torch.from_numpy(self.x[number]), int(self.y[number])


class Stream(IterableDataset[dict[str, torch.Tensor]]):
    """Batches without a length, or with a wrong one."""

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        x, y = points()
        for start in range(0, 22, 4):
            yield {"labels": torch.from_numpy(y[start : start + 4]), "x": torch.from_numpy(x[start : start + 4])}


class Estimated(Stream):
    def __len__(self) -> int:
        return 9


def loader(dataset: Any = None, workers: int = 0, start: str | None = None, **settings: Any) -> DataLoader[Any]:
    context = start if workers else None
    data = Examples() if dataset is None else dataset
    return DataLoader(data, batch_size=4, num_workers=workers, multiprocessing_context=context, **settings)


class Stop:
    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self, moment: Moment) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def nothing_left() -> bool:
    """Neither threads nor processes of a loader, once those that were starting have ended.

    A loader that raised is in a cycle with its error, also in a plain loop over it.
    """
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "glowtrain-prefetch":
            thread.join(60)
    for process in multiprocessing.active_children():
        process.join(60)
    threads = [thread for thread in threading.enumerate() if thread.name == "glowtrain-prefetch"]
    return threads == [] and multiprocessing.active_children() == []


# --- the same bits as arrays -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "start", "persistent"),
    [(0, None, False), (2, "fork", False), (2, "fork", True), (2, "spawn", True)],
)
def test_a_loader_has_the_bits_of_arrays(workers: int, start: str | None, persistent: bool) -> None:
    """Compiled code with two threads of its own beside the loader's processes, and validation by the same loader."""
    first, second = (trainer_of("cpu", threads=2) for _ in range(2))
    source = loader(workers=workers, start=start, persistent_workers=persistent)
    expected = first.fit(points(), 3, 4, points(), shuffle=False, progress=False)
    history = second.fit(source, 3, validation=source, progress=False)
    assert history.loss == expected.loss
    assert history["val_loss"] == pytest.approx(expected["val_loss"], rel=1e-6)
    assert bits(second) == bits(first)
    assert second.evaluate(source) == first.evaluate(points(), batch_size=4)
    np.testing.assert_allclose(second.predict(source)["output"], first.predict(points()[0])["output"], rtol=1e-5)
    del source
    assert nothing_left()


def test_tensors_in_place_of_arrays() -> None:
    x, y = map(torch.from_numpy, points())
    first, second = trainer_of(), trainer_of()
    first.fit((x, y), 2, 8, {"x": x, "y": y}, progress=False)
    second.fit(points(), 2, 8, points(), progress=False)
    assert bits(first) == bits(second)
    assert first.evaluate((x, y)) == second.evaluate(points())
    assert first.predict(x)["output"].tobytes() == second.predict(points()[0])["output"].tobytes()
    assert first.step({"x": x, "labels": y}) == second.step({"x": points()[0], "labels": points()[1]})


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_a_stream(workers: int) -> None:
    """Each of two processes gives all of it, as PyTorch has it."""
    fitted, stepped = trainer_of(), trainer_of()
    fitted.fit(DataLoader(Stream(), batch_size=None, num_workers=workers), 2, progress=False)
    for batch in list(Stream()) * 2:
        for _ in range(max(workers, 1)):
            stepped.step(batch)
    assert bits(fitted) == bits(stepped)


@pytest.mark.filterwarnings("ignore:Length of IterableDataset")
def test_a_stream_with_a_wrong_length() -> None:
    with pytest.warns(BatchesWarning, match=r"the data source gave 6 batches, but its len\(\) is 9"):
        trainer_of().fit(DataLoader(Estimated(), batch_size=None), 1, progress=False)


def test_a_data_set_of_examples_is_not_yet_a_loader() -> None:
    with pytest.raises(InputError, match="data is a Examples.*pass a DataLoader of it"):
        trainer_of().fit(Examples())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="data is a TensorDataset.*pass a DataLoader of it"):
        trainer_of().fit(TensorDataset(torch.zeros(4, 6)))  # type: ignore[arg-type]


def test_a_memory_that_the_data_set_uses_again_is_copied() -> None:
    """``batch_size=None`` hands the data set's own arrays over, which it may fill again."""

    class Refilling(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            x, y = torch.empty(4, 6), torch.empty(4, dtype=torch.int64)
            for batch in list(Stream())[:5] * 10:
                x.copy_(batch["x"]), y.copy_(batch["labels"])
                yield x, y

    fitted, stepped = trainer_of(), trainer_of()
    fitted.fit(DataLoader(Refilling(), batch_size=None), 1, progress=False)
    for batch in list(Stream())[:5] * 10:
        stepped.step(batch)
    assert bits(fitted) == bits(stepped)


def test_the_step_does_not_read_the_memory_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    seen: list[int] = []
    real = NativeInstance.run_many

    class Noting(DataLoader[Any]):
        def __iter__(self) -> Any:
            for x, y in super().__iter__():
                given.append(x.data_ptr())
                yield x, y

    def look(self: NativeInstance, row: Any) -> dict[str, np.ndarray]:
        seen.append(row.rows["x"].ctypes.data)
        return real(self, row)

    monkeypatch.setattr(NativeInstance, "run_many", look)
    source = Noting(Examples(), batch_size=4, num_workers=1)
    trainer_of("cpu").fit(source, 1, callbacks=[lambda moment: None], progress=False)
    assert len(seen) == len(given)
    assert not set(seen) & set(given)  # the thread that reads has copied it, and the step waits for none of its pages


# --- tensors ---------------------------------------------------------------------------------------------------------


def test_a_contiguous_tensor_is_not_copied() -> None:
    tensor = torch.arange(12.0).reshape(3, 4)
    assert array_of("x", tensor).ctypes.data == tensor.data_ptr()
    assert array_of("x", tensor.t()).strides == (4, 16)
    np.testing.assert_array_equal(array_of("x", tensor[:, 1:].t()), tensor.numpy()[:, 1:].T)


@pytest.mark.parametrize(
    ("dtype", "ours"),
    [(torch.bfloat16, gt.bf16), (torch.float8_e4m3fn, gt.types.f8e4m3fn), (torch.float8_e5m2, gt.types.f8e5m2)],
)
def test_element_types_that_numpy_lacks(dtype: torch.dtype, ours: Any) -> None:
    tensor = torch.tensor([[0.0, -1.5, 3.0], [0.25, 4.0, -0.5]]).to(dtype)
    array = array_of("x", tensor)
    assert array.dtype == ours.numpy
    assert array.ctypes.data == tensor.data_ptr()
    np.testing.assert_array_equal(array.astype(np.float32), tensor.to(torch.float32).numpy())


def test_a_model_in_bf16() -> None:
    @gt.model(x=gt.bf16["batch", 6])
    def half(x: gt.Value) -> gt.Value:
        return gt.nn.linear(x, 3)

    x, y = map(torch.from_numpy, points())
    first, second = (gt.Trainer(half, "softmax_cross_entropy", gt.optim.SGD(0.1), backend="interpreter") for _ in "ab")
    first.fit(DataLoader(TensorDataset(x.to(torch.bfloat16), y), batch_size=4), 1, progress=False)
    second.fit((points()[0].astype(gt.bf16.numpy), points()[1]), 1, 4, shuffle=False, progress=False)
    assert bits(first) == bits(second)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.zeros(4, 6, requires_grad=True), r"is a tensor that requires grad.*: give it .detach\(\) of it"),
        (torch.zeros(4, 6, dtype=torch.bfloat16, requires_grad=True), r"is a tensor that requires grad.*detach\(\)"),
        (torch.zeros(4, 6, device="meta"), r"is a tensor on meta, but glowtrain computes on the CPU: give it .cpu\(\)"),
        (torch.zeros(4, 6).to_sparse(), r"is a sparse tensor: give it .to_dense\(\) of it"),
        (torch.zeros(4, 6, dtype=torch.complex64).conj(), "cannot be read as an array: .*resolve_conj"),
    ],
    ids=["grad", "bf16 grad", "device", "sparse", "conj"],
)
def test_tensors_that_are_not_taken(tensor: torch.Tensor, message: str) -> None:
    y = torch.zeros(4, dtype=torch.int64)
    with pytest.raises(BatchError, match=f"epoch 1, batch 1: 'x' {message}") as told:
        trainer_of().fit(lambda: [(tensor, y)], 1, progress=False)
    assert told.value.__cause__ is not None
    with pytest.raises(InputError, match=f"^'x' {message}"):
        trainer_of().fit((tensor, y), 1, progress=False)


# --- loaders that fail -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_an_example_that_cannot_be_read(workers: int, tmp_path: Path) -> None:
    """The error is the loader's own, with the number of its batch; nothing is left running."""
    trainer, path = trainer_of(), tmp_path / "run.safetensors"
    message = "epoch 1, batch 4: the data source raised ValueError: .*no file 14; the parameters are from before it"
    source = loader(Examples(bad=14), workers, "fork")
    with pytest.raises(BatchError, match=message) as told:
        trainer.fit(source, 2, checkpoint=path, progress=False)
    assert isinstance(told.value.__cause__, ValueError)
    assert trainer.position.batch == 3
    del told, source
    assert nothing_left()


def test_a_callback_that_raises_leaves_no_processes() -> None:
    class Enough(Exception):
        pass

    def stop(moment: Moment) -> None:
        raise Enough

    source = loader(Examples(4000), 2, "fork")
    with pytest.raises(Enough):
        trainer_of().fit(source, 2, callbacks=[stop], progress=False)
    del source
    assert nothing_left()


STRUCK = """
import os, signal, sys, threading, time, torch, glowtrain as gt
from torch.utils.data import DataLoader, TensorDataset

@gt.model(x=gt.f32["batch", 6])
def net(x):
    return gt.nn.linear(x, 1)

def strike(moment):
    if moment.epoch == 1 and moment.batch == 3:
        os.killpg(0, signal.{signal})

if __name__ == "__main__":
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    data = TensorDataset(torch.ones(4000, 6), torch.ones(4000, 1))
    loader = DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context="{start}")
    trainer = gt.Trainer(net, "mse", gt.optim.SGD(), backend="interpreter")
    try:
        trainer.fit(loader, 3, checkpoint=sys.argv[1], callbacks=[strike], progress=False)
    except KeyboardInterrupt:
        print(trainer.history.stopped)
"""


@pytest.mark.parametrize("start", STARTS)
def test_ctrl_c_in_a_terminal(tmp_path: Path, start: str) -> None:
    """Which all processes get: fit ends with a checkpoint, and so does everything else."""
    script, path = tmp_path / "script.py", tmp_path / "run.safetensors"
    script.write_text(STRUCK.format(signal="SIGINT", start=start))
    found = subprocess.run([sys.executable, script, path], capture_output=True, text=True, timeout=120, check=False)
    assert (found.returncode, found.stdout) == (0, "interrupted in epoch 1 after batch 3 of 1000\n")
    restored = gt.Trainer(gt.model(x=gt.f32["batch", 6])(net), "mse", gt.optim.SGD(), backend="interpreter")
    restored.restore(path)
    assert (restored.position.epoch, restored.position.batch) == (0, 3)


def net(x: gt.Value) -> gt.Value:
    return gt.nn.linear(x, 1)


# --- going on --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [3, 6, 7, 9])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_goes_on_to_the_bit(tmp_path: Path, workers: int, after: int) -> None:
    """Shuffled, in the middle of an epoch, behind its last batch, and at its end."""
    path = tmp_path / "run.safetensors"

    def source() -> StatefulDataLoader:
        return StatefulDataLoader(Examples(), batch_size=4, shuffle=True, num_workers=workers)

    torch.manual_seed(5)
    whole = trainer_of()
    whole.fit(source(), 3, checkpoint=tmp_path / "whole", progress=False)
    torch.manual_seed(5)
    with pytest.raises(KeyboardInterrupt):
        trainer_of().fit(source(), 3, checkpoint=path, callbacks=[Stop(after)], progress=False)
    torch.manual_seed(6)
    resumed = trainer_of()
    history = resumed.fit(source(), 3, checkpoint=path, resume=True, progress=False)
    assert history.resumed == ""
    assert history.deterministic() == whole.history.deterministic()
    assert bits(resumed) == bits(whole)


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_loader_without_a_state(tmp_path: Path, shuffle: bool) -> None:
    """In the data set's order it goes on to the bit; shuffled it is said that it does not."""
    whole, path = trainer_of(), tmp_path / "run.safetensors"
    torch.manual_seed(5)
    whole.fit(loader(shuffle=shuffle), 3, progress=False)
    torch.manual_seed(5)
    with pytest.raises(KeyboardInterrupt):
        trainer_of().fit(loader(shuffle=shuffle), 3, checkpoint=path, callbacks=[Stop(10)], progress=False)
    resumed = trainer_of()
    history = resumed.fit(loader(shuffle=shuffle), 3, checkpoint=path, resume=True, progress=False)
    assert ("read anew without its first 3 batches" in history.resumed) == shuffle
    assert (bits(resumed) == bits(whole)) == (not shuffle)


# --- threads ---------------------------------------------------------------------------------------------------------


def test_transforms_with_threads_of_pytorch() -> None:
    """PyTorch's pool in the thread that makes batches, ours in the step: both end."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        trainer = trainer_of("cpu", threads=2)
        weight = torch.eye(6)

        def source() -> Iterator[Any]:
            for _ in range(300):
                x, y = points(512)
                large = torch.from_numpy(np.tile(x, (8, 1)))
                yield (large @ weight)[:512], torch.from_numpy(y)

        trainer.fit(source, 2, progress=False)
    finally:
        torch.set_num_threads(before)
    assert int(trainer.variables()["optimizer.step"]) == 600
