"""Operators of other packages: the package of docs/custom-operators.md, and packages that are broken."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

import glowtrain as gt
import glowtrain.ops
from glowtrain.errors import PluginError, UnsupportedOperatorError
from glowtrain.graph import OPERATORS, Graph, Input, to_text
from glowtrain.graph.plugins import GROUP, load_domain
from glowtrain.loops import Const
from glowtrain.ops.core.family import Elementwise, Move
from glowtrain.types import Array, TensorType, f32

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "custom-operators.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def install(folder: Path, name: str, entry_points: dict[str, str], module: str, code: str) -> None:
    """What an installer leaves behind: the module and the package's metadata."""
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir(parents=True)
    lines = "".join(f"{domain} = {target}\n" for domain, target in entry_points.items())
    (metadata / "entry_points.txt").write_text(f"[{GROUP}]\n{lines}")
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (folder / f"{module}.py").write_text(code)


def one_node(domain: str, op_type: str, **attributes: Any) -> ModelProto:
    node = helper.make_node(op_type, ["x"], ["y"], "mine", domain=domain, **attributes)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4]) for name in "xy")
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    return helper.make_model(helper.make_graph([node], "model", [x], [y]), opset_imports=imports)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Install packages for one test; they, and what they register, are forgotten afterwards."""
    known, modules = set(OPERATORS), set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    load_domain.cache_clear()
    yield lambda *arguments: install(tmp_path, *arguments)
    load_domain.cache_clear()
    for key in set(OPERATORS) - known:
        del OPERATORS[key]
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


CODE = """
from dataclasses import dataclass
import glowtrain as gt
@gt.operator
@dataclass(frozen=True)
class {name}(gt.Operator):
    domain = "{domain}"
    factor: float = 2.0
    def infer(self, x): return x
    def reference(self, x): return x * x.dtype.type(self.factor)
    def vjp(self, g, y, x): return (g * self.factor,)
    def lower(self, outputs, x):
        from glowtrain.loops import pointwise
        return pointwise(outputs[0], lambda *i: x[i] * self.factor)
"""


class TestPage:
    def test_package(self, tmp_path: Path) -> None:
        """The page's package, installed, and the page's program in a process of its own."""
        (project,) = blocks("toml")
        module, program = blocks("python")
        described = tomllib.loads(project)["project"]
        entries = described["entry-points"][GROUP]
        install(tmp_path, described["name"], entries, *entries.values(), module)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        rows = ["[[-1.34 -0.45  0.45  1.34]", " [-0.58 -0.58 -0.58  1.73]]"]
        assert done.stdout.splitlines() == [*rows, *rows, "['Standardize'] ['Standardize']"]


class TestEntryPoints:
    def test_loaded_when_met(self, package: Callable[..., None]) -> None:
        package("doubling", {"test.doubling": "doubling_operators"}, "doubling_operators",
                CODE.format(name="Times", domain="test.doubling"))  # fmt: skip
        assert "test.doubling.Times" not in OPERATORS
        graph = gt.load(one_node("test.doubling", "Times", factor=3.0))
        assert isinstance(graph, Graph)
        x = np.arange(8, dtype=np.float32).reshape(2, 4)
        for backend in ("interpreter", "cpu"):
            np.testing.assert_array_equal(gt.compile(graph, backend)({"x": x})["y"], 3 * x)
        (slope,) = gt.gradients(gt.nn.total(graph.outputs["y"]), graph.inputs)
        np.testing.assert_array_equal(gt.compile(graph.with_(outputs={"g": slope}))({"x": x})["g"], np.full((2, 4), 3))
        assert to_text(gt.parse(to_text(graph))) == to_text(graph)

    def test_saved_as_its_own_node_and_loaded_again(self, package: Callable[..., None]) -> None:
        package("doubling", {"test.doubling": "doubling_operators"}, "doubling_operators",
                CODE.format(name="Times", domain="test.doubling"))  # fmt: skip
        graph = gt.load(one_node("test.doubling", "Times", factor=0.5))
        assert isinstance(graph, Graph)
        saved = gt.save(graph)
        assert [(entry.domain, entry.version) for entry in saved.opset_import] == [("", 17), ("test.doubling", 1)]
        again = gt.load(saved)
        assert isinstance(again, Graph)
        assert [str(node.operator) for node in again.nodes] == ["test.doubling.Times{factor=0.5}"]

    def test_other_domains_are_not_loaded(self, package: Callable[..., None]) -> None:
        """A broken package concerns those who use it only."""
        package("broken", {"test.broken": "broken_operators"}, "broken_operators", "raise RuntimeError('no licence')")
        with pytest.raises(UnsupportedOperatorError, match=r"test\.absent\.Times.*\n.*custom-operators\.md"):
            gt.load(one_node("test.absent", "Times"))

    def test_old_models_too(self, package: Callable[..., None]) -> None:
        """Conversion to the newest operator set leaves other domains alone."""
        package("doubling", {"test.doubling": "doubling_operators"}, "doubling_operators",
                CODE.format(name="Times", domain="test.doubling"))  # fmt: skip
        model = one_node("test.doubling", "Times")
        model.graph.node.append(helper.make_node("Softmax", ["y"], ["z"]))
        model.graph.output[0].name = "z"
        model.opset_import[0].version = 11
        graph = gt.load(model)
        x = np.zeros((2, 4), np.float32)
        np.testing.assert_allclose(gt.compile(graph)({"x": x})["z"], np.full((2, 4), 0.25))


class TestMistakes:
    @pytest.mark.parametrize(
        ("code", "cause"),
        [
            ("raise RuntimeError('no licence')", "RuntimeError: no licence"),
            ("import a_module_that_is_not_there", "ModuleNotFoundError: No module named"),
            ("def broken(:", "SyntaxError"),
            ("import glowtrain as gt\n@gt.operator\nclass Plain(gt.Operator):\n    domain = 'test.broken'", "frozen"),
        ],
    )
    def test_broken_package(self, package: Callable[..., None], code: str, cause: str) -> None:
        package("broken", {"test.broken": "broken_operators"}, "broken_operators", code)
        with pytest.raises(PluginError) as error:
            gt.load(one_node("test.broken", "Times"))
        message = str(error.value)
        assert all(part in message for part in ("'test.broken'", "broken_operators", "broken 1.0", cause)), message

    def test_package_without_the_operator(self, package: Callable[..., None]) -> None:
        package("doubling", {"test.doubling": "doubling_operators"}, "doubling_operators",
                CODE.format(name="Times", domain="test.doubling"))  # fmt: skip
        with pytest.raises(UnsupportedOperatorError, match=r"test\.doubling\.Divide: node 'mine'"):
            gt.load(one_node("test.doubling", "Divide"))

    def test_attribute_without_a_field(self, package: Callable[..., None]) -> None:
        package("doubling", {"test.doubling": "doubling_operators"}, "doubling_operators",
                CODE.format(name="Times", domain="test.doubling"))  # fmt: skip
        with pytest.raises(gt.GlowtrainError, match=r"node 'mine'.*attribute divisor of test\.doubling\.Times"):
            gt.load(one_node("test.doubling", "Times", divisor=3.0))

    def test_incomplete_class(self) -> None:
        with pytest.raises(PluginError, match="has no infer and no reference"):

            @gt.operator
            @dataclass(frozen=True)
            class Empty(gt.Operator):
                domain = "test.empty"

        assert "test.empty.Empty" not in OPERATORS

    def test_without_lowering(self) -> None:
        """An operator that cannot be compiled still runs in the interpreter."""

        @dataclass(frozen=True)
        class Interpreted(gt.Operator):
            domain = "test.interpreted"

            def infer(self, *inputs: TensorType) -> TensorType:
                return inputs[0]

            def reference(self, x: Array) -> Array:
                return -x

        x = Input(f32[3], "x")
        graph = Graph((x,), {"y": Interpreted()(x)})
        feeds = {"x": np.ones(3, np.float32)}
        np.testing.assert_array_equal(gt.compile(graph, "interpreter")(feeds)["y"], -feeds["x"])
        with pytest.raises(PluginError, match=r"give the class Interpreted a lower .*or a decompose\)"):
            gt.compile(graph, "cpu")

    @pytest.mark.parametrize(("family", "method"), [(Elementwise, "scalar"), (Move, "source")])
    def test_of_a_family_without_its_method(self, family: type[gt.Operator], method: str) -> None:
        """It was lowered by the family's method, which ended in an error without a message."""

        @dataclass(frozen=True)
        class Interpreted(family):  # type: ignore[misc,valid-type]
            domain = "test.interpreted"

            def infer(self, *inputs: TensorType) -> TensorType:
                return inputs[0]

            def reference(self, x: Array) -> Array:
                return -x

        x = Input(f32[3], "x")
        with pytest.raises(PluginError, match=f"cannot be compiled: give the class Interpreted a {method}"):
            gt.compile(Graph((x,), {"y": Interpreted()(x)}), "cpu")

    @pytest.mark.parametrize(("family", "method"), [(Elementwise, "scalar"), (Move, "source"), (gt.Operator, "lower")])
    def test_that_calls_graphs_where_it_is_lowered(self, family: type[gt.Operator], method: str) -> None:
        @dataclass(frozen=True)
        class Mixed(family):  # type: ignore[misc,valid-type]
            domain = "test.mixed"

            def infer(self, *inputs: TensorType) -> TensorType:
                return inputs[0]

        setattr(Mixed, method, lambda self, *_: gt.nn.sigmoid(Const(1.0, f32)))
        x = Input(f32[3], "x")
        with pytest.raises(PluginError, match=rf"cannot be compiled: Mixed\.{method} raises .* use glowtrain\.loops"):
            gt.compile(Graph((x,), {"y": Mixed()(x)}), "cpu")

    def test_of_a_family_by_its_decomposition(self) -> None:
        @dataclass(frozen=True)
        class Negated(Elementwise):
            domain = "test.interpreted"

            def reference(self, x: Array) -> Array:
                return -x

            def decompose(self, x: gt.Value) -> gt.Value:
                return 0.0 - x

        x = Input(f32[3], "x")
        feeds = {"x": np.arange(3, dtype=np.float32)}
        found = gt.compile(Graph((x,), {"y": Negated()(x)}), "cpu")(feeds)["y"]
        np.testing.assert_array_equal(found, -feeds["x"])
