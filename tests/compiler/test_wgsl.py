"""What is written for the backend webgpu; no adapter is needed for that."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from typer.testing import CliRunner

import glowtrain as gt
from glowtrain.backends.discovery import backend_of
from glowtrain.backends.webgpu.artifact import WgslArtifact
from glowtrain.cli import app
from glowtrain.compiler import compile_artifact
from glowtrain.errors import BackendError, CodegenError
from tests.compiler.networks import mlp, steps


def artifact_of(graph: gt.Graph) -> WgslArtifact:
    artifact = compile_artifact(graph, "webgpu")
    assert isinstance(artifact, WgslArtifact)
    return artifact


def test_the_text_of_a_product_with_its_activation(golden: Callable[[str, str], None]) -> None:
    """One invocation an element; its sum is a chain, as this product's is on all processors."""
    first = artifact_of(mlp.bind({"batch": 4})).code.modules[0]
    golden("gemm_relu.wgsl", first.text)


@pytest.mark.parametrize("name", steps())
def test_a_structure_is_written_once_and_no_dispatch_reaches_too_far(name: str) -> None:
    code = artifact_of(steps()[name][0]).code
    assert len({module.text for module in code.modules}) == len(code.modules) <= len(code.dispatches)
    assert {each.module for each in code.dispatches} == set(range(len(code.modules)))
    assert all(module.text.count("@compute") == 1 for module in code.modules)
    for each in code.dispatches:
        module = code.modules[each.module]
        columns, rows = each.grid
        assert columns * (rows - 1) * module.group < module.tasks <= columns * rows * module.group
        assert max(each.grid) <= 65535
        assert {name for name in each.arguments if isinstance(name, str)} <= code.variables.keys()


def test_no_index_is_named_as_a_type() -> None:
    """The 32nd name of a kernel, which is an index here; i32 would hide the type."""
    x = gt.Input(gt.f32[(2,) * 6], "x")
    sums = [gt.nn.sum(x * float(n)) for n in range(8)]
    text = artifact_of(gt.Graph((x,), {"y": sum(sums)})).code.text
    names = set(re.findall(r"\bvar (\w+): i32 = 0;", text))
    assert any(name.endswith("32") for name in names)
    assert "i32" not in names


def test_artifacts_survive_their_file_for_any_adapter() -> None:
    artifact = artifact_of(steps()["cnn"][0])
    again = backend_of("webgpu").read(artifact.to_bytes())
    assert isinstance(again, WgslArtifact)
    assert (again.code.modules, again.code.dispatches) == (artifact.code.modules, artifact.code.dispatches)
    assert again.to_bytes() == artifact.to_bytes()


def test_64_bits_are_pairs_and_what_is_not_written_for_them_names_the_kernel() -> None:
    x, n = gt.Input(gt.f64[3], "x"), gt.Input(gt.i64[3], "n")
    text = artifact_of(gt.Graph((x, n), {"y": x + x, "m": n + n})).code.text
    assert "= f64_add(" in text
    assert "= u64_add(" in text
    with pytest.raises(
        CodegenError, match=r"^kernel \w+: function exp of f64 is not written in WGSL; use backend cpu$"
    ):
        artifact_of(gt.Graph((x,), {"y": gt.nn.exp(x)}))


def test_threads_are_those_of_the_adapter() -> None:
    with pytest.raises(BackendError, match="backend webgpu runs on one thread, not on 2"):
        backend_of("webgpu", 2)


def test_inspect_prints_all_modules() -> None:
    result = CliRunner().invoke(app, ["inspect", "mlp", "--backend", "webgpu", "--stage", "wgsl"])
    assert result.exit_code == 0, result.output
    assert result.stdout.count("@compute @workgroup_size(64)") == 3
    assert "// ---- k0_gemm_relu: 32,768 tasks" in result.stdout
