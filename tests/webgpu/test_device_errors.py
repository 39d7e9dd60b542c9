"""What an adapter cannot do is an error that names it, and leaves everything as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.backends.state import State
from glowtrain.backends.webgpu import backend as module
from glowtrain.backends.webgpu import gpu as adapters
from glowtrain.backends.webgpu.arithmetic import fuses
from glowtrain.backends.webgpu.artifact import WgslArtifact
from glowtrain.backends.webgpu.backend import Webgpu
from glowtrain.backends.webgpu.gpu import Gpu
from glowtrain.compiler import compile_artifact
from glowtrain.doctor.facts import facts
from glowtrain.errors import BackendError, CodegenError, DeviceError, DeviceLostError
from glowtrain.types import Array
from tests.compiler.networks import mlp, training_step


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    """A device of this test's own, which it may lose."""
    own = Gpu()
    monkeypatch.setattr(module, "shared_gpu", lambda: own)
    yield own
    own.device.destroy()


def doubled(size: int = 3) -> gt.Graph:
    x = gt.Input(gt.f32[size], "x")
    count = gt.Variable("count", np.float32(0))
    return gt.Graph((x,), {"y": x + x}, {count: count + 1.0})


def artifact_of(graph: gt.Graph) -> WgslArtifact:
    artifact = compile_artifact(graph, "webgpu")
    assert isinstance(artifact, WgslArtifact)
    return artifact


@pytest.mark.parametrize("adapter", [None, RuntimeError("no backend is enabled")])
def test_no_adapter_says_which_driver_brings_one(monkeypatch: pytest.MonkeyPatch, adapter: Exception | None) -> None:
    def request(**options: object) -> None:
        if adapter is not None:
            raise adapter

    monkeypatch.setattr(
        adapters, "import_wgpu", lambda: SimpleNamespace(gpu=SimpleNamespace(request_adapter_sync=request))
    )
    with pytest.raises(BackendError, match="finds no adapter: install .* mesa-vulkan-drivers .* or use backend cpu"):
        Gpu()


def test_a_module_that_is_refused_is_named_with_its_text(gpu: Gpu) -> None:
    artifact = artifact_of(doubled())
    first, *rest = artifact.code.modules
    wrong = replace(first, text=first.text.replace("let task", "let task: f32"))
    broken = WgslArtifact(replace(artifact.code, modules=(wrong, *rest)))
    with pytest.raises(CodegenError, match=f"refuses the module of kernel {first.entry}:(.|\n)*   1  @group") as caught:
        Webgpu().load(broken)
    assert gpu.name in str(caught.value)


def test_memory_that_an_adapter_does_not_allow_is_refused_in_bytes(gpu: Gpu) -> None:
    gpu.largest = 4096
    artifact = artifact_of(doubled(5000))
    with pytest.raises(DeviceError, match=r"activations, inputs and outputs take [\d,]+ bytes; .* allows 4,096"):
        Webgpu().load(artifact).bind(State({"count": np.float32(0)}))


def test_borrowed_memory_is_refused_before_anything_runs(gpu: Gpu) -> None:
    mine: Array = np.zeros((), np.float32)
    state = State({"count": np.float32(0)})
    state.borrow("count", mine)
    instance = Webgpu().load(artifact_of(doubled())).bind(state)
    with pytest.raises(BackendError, match="variable count lies in memory that belongs to somebody else"):
        instance.run({"x": np.ones(3, np.float32)})
    assert (mine, state.read("count")) == (0, 0)


def test_a_device_that_is_lost_in_fit_is_named_and_training_goes_on_on_the_cpu(gpu: Gpu, tmp_path: Path) -> None:
    """From the last checkpoint, which is whole; what only the device had is never given as older values."""
    data = training_step()[1]
    examples = np.tile(data["x"], (8, 1, 1, 1)), np.tile(data["labels"], 8)
    path = tmp_path / "run.safetensors"
    trainer = trainer_on("webgpu")
    wanted = trainer_on("cpu").fit(examples, epochs=4, batch_size=16, progress=False)["loss"]
    with pytest.raises(DeviceLostError, match=gpu.name.split()[0]):
        trainer.fit(examples, epochs=4, batch_size=16, progress=False, checkpoint=path, callbacks=[losing(gpu, 2)])
    for read in (lambda: trainer.state.read("head.weight"), trainer.model):
        with pytest.raises(DeviceLostError):
            read()
    goes_on = trainer_on("cpu")
    goes_on.fit(examples, epochs=4, batch_size=16, progress=False, checkpoint=path, resume=True)
    np.testing.assert_allclose(goes_on.history["loss"], wanted, rtol=1e-4)


def test_a_process_goes_on_with_another_device_after_a_loss() -> None:
    before = module.shared_gpu()
    before.device.destroy()
    with pytest.raises(DeviceLostError):
        gt.compile(doubled(), backend="webgpu")({"x": np.ones(3, np.float32)})
    np.testing.assert_array_equal(gt.compile(doubled(), backend="webgpu")({"x": np.ones(3, np.float32)})["y"], 2)
    assert module.shared_gpu() is not before


def trainer_on(backend: str) -> gt.Trainer:
    return gt.Trainer(mlp, gt.losses.softmax_cross_entropy(), gt.optim.Adam(1e-2), backend=backend)


def losing(gpu: Gpu, epoch: int) -> Callable[..., None]:
    """A callback that takes a device away at the end of an epoch."""

    def callback(*moment: object) -> None:
        counted.append(moment)
        if len(counted) == epoch:
            gpu.device.destroy()

    counted: list[object] = []
    return callback


def test_doctor_names_the_adapter_and_how_it_rounds(gpu: Gpu) -> None:
    words = facts()["backend webgpu"]
    assert words.startswith(gpu.name)
    assert "multiply-adds are rounded " + ("once" if fuses(gpu) else "twice") in words


def test_doctor_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Gpu:
        raise BackendError(adapters.NO_ADAPTER)

    monkeypatch.setattr(module, "shared_gpu", missing)
    assert facts()["backend webgpu"].startswith("does not run here: backend webgpu finds no adapter")
