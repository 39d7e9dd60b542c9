"""What a release must pass before it is published: ``make release-check``.

The source distribution and the wheel are built and checked. Then, outside the checkout: for each interpreter the wheel
alone, in a bare environment, runs README's examples and commands, the demo and a bundle; on the oldest one it does so
with the lowest versions of its dependencies that are declared, too; and an extra alone does what it is for.

    python .ci/release.py [--python python3.11 python3.12 ...] [--torch torch==VERSION]
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("python3.11", "python3.12", "python3.13", "python3.14")
TRAINED = """
import glowtrain as gt
trainer = gt.Trainer(gt.load("trained.onnx"), "softmax_cross_entropy", gt.optim.SGD(0.1))
"""
USES = {
    "gradcheck": """
import glowtrain as gt
gt.gradcheck.check_registry(["Exp"], examples=1).raise_if_failed()
""",
    "images": """
from pathlib import Path
import PIL.Image
import glowtrain as gt
for kind in ("dark", "light"):
    Path("kinds", kind).mkdir(parents=True)
    PIL.Image.new("L", (8, 8), 255 * (kind == "light")).save(f"kinds/{kind}/a.png")
assert gt.data.images("kinds").x.mean() == 0.5
""",
    "plot": f"{TRAINED}trainer.fit(gt.data.load('digits'), epochs=2).plot('curve.png')",
    "sklearn": """
import numpy as np
import glowtrain.sklearn
glowtrain.sklearn.Classifier(epochs=2).fit(np.eye(4, dtype="f"), [0, 1, 0, 1])
""",
    "table": """
import glowtrain as gt
assert gt.data.table("table.csv", target="y").classes == ("a", "b")
""",
    "tensorboard": f"""{TRAINED}
trainer.fit(gt.data.load("digits"), epochs=1, callbacks=[gt.callbacks.TensorBoard("runs")])
""",
    "torch": """
import torch
import glowtrain.torch
module = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(module.parameters(), 0.1)
step = glowtrain.torch.compile_step(module, torch.nn.functional.mse_loss, optimizer)
assert step(torch.ones(3, 2), torch.ones(3, 1)) > step(torch.ones(3, 2), torch.ones(3, 1))
""",
}
"""What each extra is for, as a program. Others have tests of their own: make test-fleet, test-gpu, test-flower."""


def run(*command: str | Path, cwd: Path) -> str:
    """What a command prints. Raises ``CalledProcessError`` with it if the command fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    parts = [str(part) for part in command]
    return subprocess.run(
        parts, cwd=cwd, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True
    ).stdout


def built(folder: Path) -> Path:
    """The wheel, made from the source distribution; twine finds nothing to say of either."""
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT, cwd=ROOT)
    run(sys.executable, "-m", "twine", "check", "--strict", *folder.iterdir(), cwd=folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


@dataclass(frozen=True)
class Environment:
    """A bare environment with packages, and a folder outside the checkout in which its commands run."""

    name: str
    python: str
    requirements: tuple[str, ...]
    lowest: bool = False

    def make(self, folder: Path) -> None:
        uv = Path(sys.executable).with_name("uv")
        run(uv, "venv", "--python", self.python, folder / "env", cwd=folder)
        options = ["--resolution", "lowest-direct"] if self.lowest else []
        run(uv, "pip", "install", "--python", folder / "env/bin/python", *options, *self.requirements, cwd=folder)


def promises(folder: Path) -> None:
    """What README promises of the package without extras."""
    python, glowtrain = folder / "env/bin/python", folder / "env/bin/glowtrain"
    run(python, "-m", "doctest", "-o", "ELLIPSIS", "-o", "NORMALIZE_WHITESPACE", ROOT / "README.md", cwd=folder)
    run(glowtrain, "demo", cwd=folder)
    run(glowtrain, "train", "mlp", "--data", "digits", "--epochs", "1", "--out", "by-command.onnx", cwd=folder)
    run(glowtrain, "bundle", "trained.onnx", "--batch", "1", "--out", "device", cwd=folder)
    if shutil.which("make") and shutil.which("cc"):
        run("make", "-C", "device", "check", cwd=folder)


def serves(folder: Path) -> None:
    """A server gets ready, and ends without an error when it is told to."""
    command = [str(folder / "env/bin/glowtrain"), "serve", "trained.onnx", "--port", "0", "--grpc-port", "0"]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        said: list[str] = []
        for line in server.stderr:
            said.append(line)
            if " ready " in line:
                server.terminate()
    if server.returncode:
        raise subprocess.CalledProcessError(server.returncode, command, "".join(said))


def program(text: str) -> Callable[[Path], object]:
    """What runs a program."""
    return lambda folder: run(folder / "env/bin/python", "-c", text, cwd=folder)


def trials(wheel: Path, pythons: list[str], torch: str) -> Iterator[tuple[Environment, Callable[[Path], object]]]:
    """Environments, and what is done in each."""
    for python in pythons:
        yield Environment(python, python, (str(wheel),)), promises
    yield Environment("lowest versions", pythons[0], (str(wheel),), lowest=True), promises
    for extra, text in USES.items():
        more = (torch,) if extra == "torch" else ()
        yield Environment(f"extra {extra}", pythons[0], (f"{wheel}[{extra}]", *more)), program(text)
    yield Environment("extra serve", pythons[0], (f"{wheel}[serve]",)), serves


def runs(python: str) -> bool:
    """Whether an interpreter is there, and not only a name that stands for one, as pyenv's are."""
    there = shutil.which(python) is not None
    return there and not subprocess.run([python, "-V"], capture_output=True, check=False).returncode


def main() -> int:
    """How many of the trials failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", nargs="+", default=[name for name in PYTHONS if runs(name)])
    parser.add_argument("--torch", default="torch", help="what pip is to install for the extra torch")
    given = parser.parse_args()
    pythons = given.python
    failed = []
    with tempfile.TemporaryDirectory() as temporary:
        top = Path(temporary)
        wheel = built(top / "dist")
        for environment, trial in trials(wheel, pythons, given.torch):
            began, folder = time.monotonic(), top / environment.name
            folder.mkdir()
            (folder / "table.csv").write_text("x,y\n1,a\n2,b\n3,a\n4,b\n")
            if (top / pythons[0] / "trained.onnx").exists():
                shutil.copy(top / pythons[0] / "trained.onnx", folder)
            try:
                environment.make(folder)
                trial(folder)
                print(f"{environment.name}: ok in {time.monotonic() - began:.0f} s", flush=True)
            except subprocess.CalledProcessError as error:
                failed.append(environment.name)
                print(f"{environment.name}: FAILED: {error}\n{error.stdout}", flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
