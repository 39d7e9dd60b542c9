"""Files that releases wrote, which this one reads, and files of later ones, which it refuses with what to do.

``tests/golden/releases`` has a folder for each release, written by ``python -m tests.test_releases`` before it and
never again: a checkpoint, and a bundle for x86-64 with its weights beside it. docs/versions.md says what they promise.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

import glowtrain as gt
from glowtrain.backends.target import Target
from glowtrain.errors import BundleError, CheckpointError

FOLDER = Path(__file__).parent / "golden" / "releases"
RELEASES = sorted(FOLDER.iterdir())
HERE = pytest.mark.skipif(not Target.named("sse4").runs_here, reason="the bundles are for x86-64")
DATA = np.linspace(-1, 1, 36, dtype=np.float32).reshape(12, 3), np.linspace(0, 1, 24, dtype=np.float32).reshape(12, 2)
EPOCHS = 2


def trainer() -> gt.Trainer:
    """What each release has trained for some epochs."""

    @gt.model(x=gt.f32["batch", 3])
    def net(x: gt.Value) -> gt.Value:
        return gt.nn.linear(gt.nn.relu(gt.nn.linear(x, 4)), 2)

    return gt.Trainer(net, "mse", gt.optim.Adam(lr=0.02), backend="interpreter")


def write(folder: Path) -> None:
    """The files of this release. Raises ``FileExistsError`` for one that has them."""
    folder.mkdir(parents=True)
    trained = trainer()
    trained.fit(DATA, EPOCHS, 4, validation=DATA, patience=3, restore_best=True, checkpoint=folder / "run.safetensors")
    trained.restore(folder / "run.safetensors")
    gt.bundle(trained, folder, name="net", dims={"batch": 2}, target="sse4", weights="file", optimize="size")
    for face in folder.glob("net.h*"):
        face.unlink()


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
def test_a_run_of_a_release_goes_on(release: Path) -> None:
    resumed = trainer()
    resumed.restore(release / "run.safetensors")
    with safe_open(release / "run.safetensors", framework="numpy") as file:
        about = json.loads(file.metadata()["glowtrain"])
        stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    assert all(array.tobytes() == stored[name].tobytes() for name, array in resumed.variables().items())
    resumed.fit(DATA, 2, 4, validation=DATA, patience=3)
    assert len(resumed.history["loss"]) == EPOCHS + 2
    assert resumed.history["val_loss"][:EPOCHS] == [record["val_loss"] for record in about["history"]]
    assert resumed.history["val_loss"][-1] < resumed.history["val_loss"][0]


@HERE
@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
def test_a_bundle_of_a_release_computes_and_learns(release: Path) -> None:
    bundle, trained = gt.load_bundle(release), trainer()
    trained.restore(release / "run.safetensors")
    x, target = DATA[0][:2], DATA[1][:2]
    np.testing.assert_allclose(bundle.predict(x=x)["output"], trained.predict(x)["output"], rtol=1e-5)
    losses = [float(bundle.step(x=x, target=target, lr=0.01)) for _ in range(200)]
    assert losses[-1] < losses[0]


@HERE
@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
def test_weights_of_a_release_go_into_a_bundle_of_today(release: Path, tmp_path: Path) -> None:
    gt.bundle(trainer(), tmp_path, name="net", dims={"batch": 2}, target="sse4", weights="none")
    today, then = gt.load_bundle(tmp_path), gt.load_bundle(release)
    today.load(release / "net.safetensors")
    assert {name: array.tobytes() for name, array in today.variables.items()} == {
        name: array.tobytes() for name, array in then.variables.items()
    }


def test_a_checkpoint_of_a_later_release_is_refused(tmp_path: Path) -> None:
    path, run = tmp_path / "run.safetensors", trainer()
    before = run.variables()
    save_file({"w": np.zeros(3)}, path, {"glowtrain": json.dumps({"format": 3, "unheard": []})})
    with pytest.raises(
        CheckpointError, match=r"a checkpoint of format 3, of a newer .* reads 1 and 2: update Glowtrain$"
    ):
        run.restore(path)
    assert all(array.tobytes() == before[name].tobytes() for name, array in run.variables().items())


def test_a_bundle_of_a_later_release_is_refused(tmp_path: Path) -> None:
    shutil.copytree(RELEASES[-1], tmp_path, dirs_exist_ok=True)
    said = json.loads((tmp_path / "net.json").read_text(encoding="utf-8"))
    later = {name: value for name, value in said.items() if name != "target"} | {"interface": 2}
    (tmp_path / "net.json").write_text(json.dumps(later), encoding="utf-8")
    with pytest.raises(BundleError, match=r"^net has version 2 of the interface, not 1: bundle the model again$"):
        gt.load_bundle(tmp_path)


if __name__ == "__main__":
    write(FOLDER / (sys.argv[1:] or [gt.__version__])[0])
