"""Packages of extras that are not installed: a clear error with what to install, wherever they are asked for."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import glowtrain as gt
from glowtrain import errors, flower
from glowtrain.cli import application
from glowtrain.compiler import compile_artifact
from glowtrain.errors import InputError, MissingExtraError, install_advice
from glowtrain.presentation.figures import check_drawing

TOLD = r"^glowtrain.torch needs PyTorch: pip install -e '\.\[torch\]' in /.+$"


@pytest.fixture
def no_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an environment without the packages, whether they are there or not."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for name in [name for name in sys.modules if name.startswith("glowtrain.torch")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(vars(gt), "from_torch", raising=False)


@pytest.mark.usefixtures("no_extras")
def test_pytorch_is_asked_for_by_all_ways_in() -> None:
    for name in ("glowtrain.torch", "glowtrain.torch.steps.step", "glowtrain.torch.checking.gradcheck"):
        with pytest.raises(ImportError, match=TOLD):
            importlib.import_module(name)
    with pytest.raises(MissingExtraError, match=TOLD):
        _ = gt.from_torch
    assert "glowtrain.torch" not in sys.modules


@pytest.mark.usefixtures("no_extras")
def test_a_trainer_that_hands_its_parameters_to_pytorch_asks_for_it() -> None:
    @gt.model(x=gt.f32["batch", 2])
    def model(x: gt.Value) -> gt.Value:
        return gt.nn.linear(x, 2)

    with pytest.raises(InputError, match=TOLD):
        gt.Trainer(model, "mse", gt.optim.SGD(lr=0.1)).to_torch(None)


@pytest.mark.usefixtures("no_extras")
def test_flower_and_matplotlib_are_asked_for_in_the_same_way() -> None:
    with pytest.raises(MissingExtraError, match=r"needs Flower: pip install -e '\.\[flower\]'"):
        flower.check_flower()
    with pytest.raises(MissingExtraError, match=r"needs matplotlib: pip install -e '\.\[plot\]'"):
        check_drawing()


@pytest.mark.usefixtures("no_extras")
def test_a_graph_for_a_gpu_compiles_and_asks_for_wgpu_when_it_is_loaded() -> None:
    x = gt.Input(gt.f32[3], "x")
    graph = gt.Graph((x,), {"y": x + x})
    assert "@compute" in compile_artifact(graph, "webgpu").code.text
    with pytest.raises(MissingExtraError, match=r"^backend webgpu needs wgpu: pip install -e '\.\[webgpu\]' in /"):
        gt.compile(graph, backend="webgpu")({"x": np.ones(3, np.float32)})


@pytest.mark.usefixtures("no_extras")
def test_serving_asks_for_its_packages_in_the_same_way() -> None:
    for name in [name for name in sys.modules if name.startswith("glowtrain.serving")]:
        del sys.modules[name]
    told = r"^glowtrain.serving needs Starlette: pip install -e '\.\[serve\]' in /"
    with pytest.raises(MissingExtraError, match=told):
        importlib.import_module("glowtrain.serving")
    result = CliRunner().invoke(application("serve"), ["serve", "mlp"])
    assert (result.exit_code, "pip install -e '.[serve]'" in result.stderr) == (1, True)


@pytest.mark.usefixtures("no_extras")
def test_strategies_ask_for_hypothesis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "glowtrain.gradcheck.strategies", raising=False)
    with pytest.raises(MissingExtraError, match=r"strategies needs hypothesis: pip install -e '\.\[gradcheck\]'"):
        importlib.import_module("glowtrain.gradcheck.strategies")


def test_advice_is_right_for_how_it_was_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root = Path(__file__).parents[1]
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert install_advice("serve") == f"pip install -e '.[serve]' in {root}"
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "site-packages" / "glowtrain" / "errors.py"))
    assert install_advice("serve") == "pip install 'glowtrain[serve]'"
    (tmp_path / "pyvenv.cfg").write_text("home = /usr/bin\nuv = 0.9\n", encoding="utf-8")
    assert install_advice("serve") == "uv pip install 'glowtrain[serve]'"


@pytest.mark.usefixtures("no_extras")
def test_all_names_can_be_imported_without_extras() -> None:
    found: dict[str, object] = {}
    exec("from glowtrain import *", found)
    assert {"Trainer", "load"} <= set(found)
    assert "from_torch" in dir(gt)


def test_the_extras_that_messages_name_exist() -> None:
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    extras = text.split("[project.optional-dependencies]")[1].split("\n[")[0]
    assert all(f"\n{extra} = [" in extras for extra in ("torch", "flower", "serve", "plot", "webgpu"))
