"""Backends: those that come along, one that a package brings, and packages that are broken."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import glowtrain as gt
from glowtrain.backends.discovery import GROUP, backend_names, backend_of
from glowtrain.cli import app
from glowtrain.compiler import compile_artifact
from glowtrain.errors import ArtifactError, BackendError, InputError
from glowtrain.verification import ladder, random_inputs
from tests.compiler.networks import mlp, training_step

PACKAGE = '''
"""Programs in NumPy, each float operation a Python call: a backend that is no part of Glowtrain."""
from glowtrain.backends.base import Artifact, Backend, Executable, Instance
from glowtrain.program.interpret.evaluate import evaluate
from glowtrain.stages import Facts

class Slow(Backend):
    name = "slow"
    facts = Facts(max_operands=6, preferred_layouts=False)
    def compile(self, subject, options): return Kept(subject)
    def read(self, data): raise NotImplementedError
    def load(self, artifact): return Loaded(artifact.plan)

class Kept(Artifact):
    def __init__(self, plan): self.plan = plan
    def to_bytes(self): raise NotImplementedError

class Loaded(Executable):
    def __init__(self, plan): self.plan = plan
    def bind(self, state): return Bound(self.plan, state)

class Bound(Instance):
    def __init__(self, plan, state): self.plan, self.state = plan, state
    def run(self, inputs):
        program = self.plan.program
        before = {name: self.state.read(name) for name in program.variables}
        outputs, after = evaluate(program, inputs, before, self.plan)
        for name in program.updates:
            self.state.write(name, after[name])
        return outputs
'''


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, str], None]:
    """Install a package with one backend: its name, where it is, and the module's text."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def package(name: str, value: str, text: str) -> None:
        module = value.partition(":")[0]
        monkeypatch.delitem(sys.modules, module, raising=False)
        (tmp_path / f"{module}.py").write_text(text)
        about = tmp_path / f"{module}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {value}\n")
        assert distribution(module).version == "1.0"

    return package


@pytest.mark.parametrize("name", ["cpu", "interpreter", "evaluator"])
def test_backends_that_come_along_give_the_same(name: str) -> None:
    graph, feeds = training_step()
    wanted, found = (gt.compile(graph, backend) for backend in ("interpreter", name))
    for _ in range(3):
        np.testing.assert_allclose(found(feeds)["loss"], wanted(feeds)["loss"], rtol=1e-5)
    for variable in graph.variables:
        a, b = found.state.read(variable.name), wanted.state.read(variable.name)
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["cpu", "interpreter", "evaluator"])
def test_artifacts_survive_their_file(name: str) -> None:
    graph, feeds = training_step()
    backend = backend_of(name)
    artifact = compile_artifact(graph, backend)
    again = backend.read(artifact.to_bytes())
    assert again.to_bytes() == artifact.to_bytes()
    losses = []
    for each in (artifact, again):
        state = gt.compile(graph, "interpreter").state
        losses.append(backend.load(each).bind(state).run({k: np.asarray(v) for k, v in feeds.items()})["loss"])
    assert losses[0].tobytes() == losses[1].tobytes()


@pytest.mark.parametrize("name", ["cpu", "interpreter", "evaluator", "webgpu"])
@pytest.mark.parametrize("damage", [b"", b"nonsense", b"\x10\0\0\0\0\0\0\0{}              "])
def test_what_is_no_artifact_is_refused(name: str, damage: bytes) -> None:
    backend = backend_of(name)
    whole = compile_artifact(training_step()[0], backend).to_bytes()
    for data in (damage, whole[:-1], whole + b"\0", whole[:-40] + bytes([whole[-40] ^ 1]) + whole[-39:]):
        with pytest.raises(ArtifactError):
            backend.read(data)


class TestPackages:
    def test_a_backend_of_a_package_compiles_trains_and_climbs(
        self, install: Callable[[str, str, str], None], tmp_path: Path
    ) -> None:
        install("slow", "slow_backend:Slow", PACKAGE)
        assert backend_names() == ("cpu", "interpreter", "evaluator", "webgpu", "slow")
        digits = gt.data.load("digits")
        trainer = gt.Trainer(mlp, gt.losses.softmax_cross_entropy(), gt.optim.Adam(2e-3), backend="slow")
        history = trainer.fit((digits.x[:320], digits.y[:320]), epochs=2, batch_size=64)
        assert history["loss"][-1] < history["loss"][0]
        graph, _ = training_step()
        report = ladder(graph, random_inputs(graph), backend="slow")
        report.require()
        assert report.rungs[-1].name == "compiled"
        listed = CliRunner().invoke(app, ["inspect", "mlp", "--backend", "slow"], env={"COLUMNS": "100"})
        assert listed.exit_code == 0, listed.output
        assert "compiled" in listed.output
        assert "llvm" not in listed.output
        done = CliRunner().invoke(app, ["verify", "mlp", "--backend", "slow"], env={"COLUMNS": "100"})
        assert done.exit_code == 0, done.output
        refused = CliRunner().invoke(app, ["inspect", "mlp", "--backend", "slow", "--stage", "asm"])
        assert refused.exit_code == 2

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (
                "raise RuntimeError('no licence')",
                r"failed with RuntimeError: no licence|cannot be imported: RuntimeError",
            ),
            ("Slow = 3", "not a class derived from glowtrain.backends.base.Backend"),
            ("class Slow: pass", "not a class derived from"),
            (PACKAGE.replace("def load(", "def unload("), r"lacks load$"),
            (PACKAGE.replace('name = "slow"', 'name = "fast"'), "calls itself 'fast'"),
            (PACKAGE.replace("    facts =", "    def __init__(self, device): pass\n    facts ="), "without arguments"),
            ("", "cannot be imported: AttributeError"),
        ],
    )
    def test_a_broken_package_is_named_and_harms_no_other(
        self, text: str, message: str, install: Callable[[str, str, str], None]
    ) -> None:
        install("slow", "slow_backend:Slow", text)
        with pytest.raises(BackendError, match=message) as caught:
            gt.compile(mlp, "slow")
        assert "slow_backend:Slow of slow_backend 1.0" in str(caught.value)
        assert backend_of("cpu").name == "cpu"

    def test_the_command_line_says_it_too(self, install: Callable[[str, str, str], None]) -> None:
        install("slow", "slow_backend:Slow", "import nothing_of_that_name")
        result = CliRunner().invoke(app, ["inspect", "mlp", "--backend", "slow"])
        assert result.exit_code == 1
        assert "No module named 'nothing_of_that_name'" in result.output

    def test_a_name_that_nobody_offers(self) -> None:
        with pytest.raises(InputError, match="there is no backend 'tpu'; choose from cpu, interpreter, evaluator"):
            gt.compile(mlp, "tpu")
