"""``gt.bundle`` and ``glowtrain bundle``: the files, and what is refused."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load as load_safetensors
from typer.testing import CliRunner

import glowtrain as gt
from glowtrain.backends.target import Target
from glowtrain.bundles.codes import ErrorCode
from glowtrain.bundles.contents import bundle_name, identifier
from glowtrain.bundles.faces.c.example import program
from glowtrain.bundles.faces.c.header import header
from glowtrain.bundles.signature import RESERVED
from glowtrain.bundles.verify.trace import trace_of
from glowtrain.cli import app
from glowtrain.errors import BundleError, CodegenError, GlowtrainError, InputError
from glowtrain.graph import Graph, Input, Value
from glowtrain.native import NativeFunction
from glowtrain.stages import Options
from tests.bundles.in_process import compiled, contents
from tests.bundles.networks import BATCH, CASES
from tests.compiler.networks import cnn, mlp
from tests.optimize.test_fixed_point import network

Golden = Callable[[str, str], None]
MSE = "mse"


@gt.model(x=gt.f32[2, 3])
def tiny(x: Value) -> Value:
    return gt.nn.linear(x, 2, name="layer")


def read(path: Path) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(path.read_text())
    return said


def test_files_and_what_the_description_says(tmp_path: Path) -> None:
    made = gt.bundle(tiny, tmp_path / "new" / "folder", loss=MSE, optimizer=gt.optim.SGD(0.25))
    files = {path.name: path.read_bytes() for path in made.path.iterdir()}
    assert set(files) == {"tiny.o", "tiny.h", "tiny.hpp", "tiny.json", "main.c", "Makefile", "expected.txt"}
    assert {name: len(data) for name, data in files.items()} == dict(made.files)
    said = read(made.path / "tiny.json")
    for name, facts in said["files"].items():
        assert facts == {"bytes": len(files[name]), "sha256": hashlib.sha256(files[name]).hexdigest()}
    assert set(said["functions"]) == {"step", "predict"}
    assert [hyper["default"] for hyper in said["hyper"]] == [0.25, 0.0]
    assert said["variables_bytes"] == made.module.memory.size
    assert "tiny for host" in str(made)
    assert "step(x f32[2,3], target f32[2,2]) and predict(x f32[2,3])" in str(made)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("host", "cc -O2 "),
        ("riscv64", "riscv64-linux-gnu-gcc -static -O2 .*\nqemu-riscv64 ./example"),
        ("cortex-m4", "this bundle is for cortex-m4: name .* or bundle with --board"),
        ("aarch64-macos", "this bundle is for aarch64-macos: name .* RUN=[.][.][.]\\.  Stop"),
    ],
)
def test_the_makefile_names_what_builds_and_runs_the_example(target: str, said: str, tmp_path: Path) -> None:
    gt.bundle(tiny, tmp_path, target=target)
    command = ["make", "-n", "-C", str(tmp_path), "check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert re.search(said, done.stdout + done.stderr)


def test_the_text_of_a_small_header_and_program(golden: Golden) -> None:
    trainer = gt.Trainer(tiny, MSE, gt.optim.SGD(0.25, momentum=0.5))
    module = compiled(contents(trainer), target=Target.named("generic"))
    golden("bundle.h", header(module))
    golden("bundle.c", program(module))


@pytest.mark.parametrize("weights", ["file", "none"])
def test_weights_beside_the_object_or_nowhere(weights: Any, tmp_path: Path) -> None:
    made = gt.bundle(mlp, tmp_path, loss="softmax_cross_entropy", weights=weights, dims={"batch": BATCH})
    assert ("mlp.safetensors" in made.files) == (weights == "file")
    assert made.module.memory.unknown > 0
    if weights == "file":
        arrays = load_safetensors((tmp_path / "mlp.safetensors").read_bytes())
        assert set(arrays) == {slot.name for slot in made.module.memory.slots}


def test_the_example_prints_what_is_expected_with_any_names(tmp_path: Path) -> None:
    """Names end no comment and no string of C."""
    made = gt.bundle(CASES["several"]().trainer, tmp_path)
    assert made.module.name == "two_sides_of_1"
    assert "*/ %d" not in (tmp_path / "two_sides_of_1.h").read_text()
    assert printed_by("two_sides_of_1", tmp_path) in (None, (tmp_path / "expected.txt").read_bytes())


@pytest.mark.parametrize("settings", [{"residuals": "bf16"}, {"residuals": "bf16", "memory": "90%"}], ids=str)
def test_the_example_prints_what_is_expected_with_residuals(settings: dict[str, Any], tmp_path: Path) -> None:
    """Gradients at rounded activations are others, and so is what the example prints."""
    training = {"loss": "softmax_cross_entropy", "optimizer": gt.optim.Adam(1e-2), "dims": {"batch": BATCH}}
    gt.bundle(cnn, tmp_path, **training, **settings)
    expected = (tmp_path / "expected.txt").read_bytes()
    assert printed_by("cnn", tmp_path) in (None, expected)
    gt.bundle(cnn, tmp_path / "exact", **training)
    assert (tmp_path / "exact" / "expected.txt").read_bytes() != expected


def printed_by(name: str, folder: Path) -> bytes | None:
    """What a bundle's example prints; None where there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-Wpedantic"]
    subprocess.run([compiler, *flags, "main.c", f"{name}.o", "-o", "example"], cwd=folder, check=True)
    return subprocess.run(["./example"], cwd=folder, check=True, capture_output=True).stdout


def test_names_in_c() -> None:
    assert identifier("a-b.c/d") == "a_b_c_d"
    assert identifier("1st") == "m_1st"
    assert identifier("") == "m_"
    assert identifier("é") == "m__"
    module = compiled(contents(CASES["several"]().trainer))
    for function in module.functions:
        names = [each.name for each in (*function.inputs, *function.outputs)]
        assert len(set(names)) == len(names)
        assert not RESERVED.intersection(set(names) - {"loss"})
    assert {each.name for each in module.functions[1].outputs} == {"the__loss___s_____", "m_1st", "class_"}


@pytest.mark.parametrize("name", ["exit", "malloc", "errno", "NULL", "log", "sinf", "sem", "F", "time", "int8_t", "tm"])
def test_names_of_c_s_library_are_not_a_bundle_s(name: str, tmp_path: Path) -> None:
    made = gt.bundle(tiny, tmp_path, name=name)
    assert made.module.name == f"m_{name}"
    assert f"m_{name}.h" in made.files
    assert f"namespace m_{name} " in (tmp_path / f"m_{name}.hpp").read_text()


@pytest.mark.parametrize("name", ["exits", "tokenizer", "memory_net", "swin_t", "sem_seg", "logits", "Time", "fx"])
def test_names_that_resemble_c_s_library_stay(name: str) -> None:
    assert bundle_name(name) == name


def test_inputs_are_called_like_no_macro() -> None:
    x = Input(gt.f32[2], "errno")
    module = compiled(contents(Graph((x,), {"NULL": x + x, "EOF": x}, {}, name="macros")))
    assert [each.name for each in (*module.functions[0].inputs, *module.functions[0].outputs)] == [
        "errno_", "NULL_", "EOF_"
    ]  # fmt: skip


def test_codes_have_numbers_in_a_row() -> None:
    assert [code.value for code in ErrorCode] == list(range(len(ErrorCode)))
    assert all(code.text for code in ErrorCode)


# ---- what is refused


@gt.model(x=gt.f32["batch", "length", 4])
def open_twice(x: Value) -> Value:
    return gt.nn.linear(x, 2)


@gt.model(x=gt.f32[4, "length", 3])
def sequence(x: Value) -> Value:
    return gt.nn.linear(x, 2)


@gt.model(x=gt.f32["n", 3])
def tiny_batches(x: Value) -> Value:
    return gt.nn.linear(x, 2)


@gt.model(x=gt.f32[7, "batch", 3])
def second_axis(x: Value) -> Value:
    return gt.nn.linear(x, 2)


@dataclass(frozen=True)
class Doubled(gt.Operator):
    """2 x, by a function of this process."""

    domain = "test.bundles"

    def infer(self, x: Any) -> Any:
        return x

    def reference(self, x: Any) -> Any:
        return x + x

    def native(self, x: Any) -> NativeFunction:
        return NativeFunction("doubled", 1)

    def decompose(self, x: Value) -> Value:
        return x + x


def native() -> Graph:
    x = Input(gt.f32[2], "x")
    return Graph((x,), {"y": Doubled()(x)}, {}, name="native")


REFUSED: dict[str, tuple[Any, dict[str, Any], type[GlowtrainError], str]] = {
    "target": (tiny, {"target": "z80"}, CodegenError, "target 'z80' is unknown; use host or one of"),
    "weights": (tiny, {"weights": "flash"}, BundleError, "weights='flash': choose object, file or none"),
    "open": (open_twice, {}, BundleError, r"open_twice needs values for batch, length: dims=\{'batch': ..., "),
    "open, no batch": (
        sequence,
        {},
        BundleError,
        r"sequence needs values for length: dims=\{'length': ...\} \(--dims length=N\); nothing but the batch",
    ),
    "one left open": (open_twice, {"dims": {"batch": 2}}, BundleError, r"open_twice needs values for length: dims="),
    "nothing to train on": (
        tiny_batches,
        {"dims": {"n": 0}, "loss": MSE},
        BundleError,
        r"x is f32\[0,3\], so that a step has nothing to",
    ),
    "no such dimension": (tiny, {"dims": {"rows": 3}}, GlowtrainError, "rows"),
    "threads": (tiny, {"threads": 0}, GlowtrainError, "threads"),
    "no loss": (tiny, {"optimizer": gt.optim.SGD(0.1)}, BundleError, "a bundle that trains needs a loss"),
    "unknown loss": (tiny, {"loss": "mee"}, InputError, "there is no loss 'mee'"),
    "no model": ("tiny.onnx", {}, BundleError, "bundle takes a graph, a template or a trainer"),
    "fixed point": (tiny, {"fixed_point": True}, BundleError, r"fixed_point .* changes nothing in tiny, which has no"),
    "rate": (tiny, {"loss": "mse", "optimizer": gt.optim.SGD(1e39)}, InputError, "lr is f32 in this step, which"),
    "native": (native(), {}, BundleError, r"native calls native functions of this process \(doubled\)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_writes_nothing(case: str, tmp_path: Path) -> None:
    model, settings, error, said = REFUSED[case]
    with pytest.raises(error, match=said):
        gt.bundle(model, tmp_path / "out", **settings)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("model", "shape"), [(tiny_batches, (64, 3)), (second_axis, (7, 64, 3))])
def test_the_batch_may_be_left_open(model: Any, shape: tuple[int, ...], tmp_path: Path) -> None:
    made = gt.bundle(model, tmp_path)
    assert made.module.functions[0].inputs[0].type.shape == shape


def test_the_option_binds_no_other_dimension(tmp_path: Path) -> None:
    gt.save(sequence, tmp_path / "sequence.onnx")
    status, said = called("bundle", tmp_path / "sequence.onnx", "--batch", 2, "--out", tmp_path / "out")
    assert (status, "--batch binds the batch, where nothing else is open; sequence has length" in said) == (1, True)
    assert called("bundle", tmp_path / "sequence.onnx", "--dims", "length=2", "--out", tmp_path / "out")[0] == 0


def test_a_trainer_has_its_own_settings(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="a trainer has its loss, its optimizer and what it trains: give it alone"):
        gt.bundle(CASES["mlp"]().trainer, tmp_path, loss=MSE)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BundleError, match="file: cannot be written"):
        gt.bundle(tiny, tmp_path / "file")


# ---- the command


def called(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def test_the_command_writes_a_folder_for_each_target(tmp_path: Path) -> None:
    arguments = "--train", "--optimizer", "sgd", "--momentum", 0.9, "--batch", 2, "--name", "digits"
    status, said = called("bundle", "mlp", "--out", tmp_path, "--target", "avx2", "--target", "neon", *arguments)
    assert status == 0, said
    assert "digits for neon" in said
    for target in ("avx2", "neon"):
        assert read(tmp_path / target / "digits.json")["target"]["name"] == target
    both = [(tmp_path / target / "expected.txt").read_text() for target in ("avx2", "neon")]
    assert all(text.startswith("step 1: loss ") for text in both)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("mlp", "--target", "z80"), "target 'z80' is unknown"),
        (("mlp", "--weights", "flash"), "weights='flash': choose object, file or none"),
        (("nowhere.onnx",), "nowhere.onnx"),
        (("mlp", "--train", "--optimizer", "sdg"), "there is no optimizer 'sdg'"),
        (("mlp", "--train", "--loss", "no"), "there is no loss 'no'"),
        (("mlp", "--optimizer", "sgd"), "--optimizer: nothing is trained without --train"),
        (("mlp", "--loss", "softmax_cross_entropy"), "--loss: nothing is trained without --train"),
        (("mlp", "--residuals", "bf16"), "--residuals: nothing is trained without --train"),
        (("mlp", "--micro-batches", "2"), "--micro-batches: nothing is trained without --train"),
        (
            ("mlp", "--lr", 0.1, "--trainable", "head.*", "--freeze-statistics", "--nesterov"),
            "--trainable, --freeze-statistics, --lr, --nesterov: nothing is trained without --train",
        ),
        (("mlp", "--train", "--fixed-point"), "fixed_point (--fixed-point) changes nothing in mlp, which has no"),
        (("mlp", "--batch", 2, "--dims", "batch=3"), "--batch binds the batch, where nothing else is open; mlp has"),
    ],
)
def test_what_the_command_refuses(arguments: tuple[object, ...], said: str, tmp_path: Path) -> None:
    status, printed = called("bundle", *arguments, "--out", tmp_path / "out")
    assert status == 1
    assert said in printed
    assert "Traceback" not in printed
    assert not (tmp_path / "out").exists()


def test_dropout_differs_from_step_to_step_and_not_from_run_to_run(tmp_path: Path) -> None:
    one, two = (
        gt.bundle(cnn, tmp_path / name, loss="softmax_cross_entropy", dims={"batch": BATCH}, seed=seed)
        for name, seed in (("one", 1), ("two", 2))
    )
    texts = [(made.path / "expected.txt").read_text() for made in (one, two)]
    assert texts[0] != texts[1]
    again = gt.bundle(cnn, tmp_path / "again", loss="softmax_cross_entropy", dims={"batch": BATCH}, seed=1)
    assert (again.path / "expected.txt").read_text() == texts[0]
    assert np.all([(again.path / name).read_bytes() == (one.path / name).read_bytes() for name in one.files])


def test_a_model_in_integers_alone_is_compared_with_integers_alone(tmp_path: Path) -> None:
    graph = network(np.random.default_rng(1))
    made = gt.bundle(graph, tmp_path, fixed_point=True)
    options = made.module.options, Options(facts=gt.Cpu(cache=None).facts)
    texts = [str(trace_of(made.module.contents, gt.Cpu(cache=None), 1, options=each)) for each in options]
    assert (tmp_path / "expected.txt").read_text() == texts[0]
    assert texts[0] != texts[1]


def test_files_of_an_earlier_bundle_go(tmp_path: Path) -> None:
    (tmp_path / "kept.txt").write_text("mine")
    gt.bundle(tiny, tmp_path, archive=True)
    (tmp_path / "main.c").write_text("int main(void) { return 0; }")
    gt.bundle(tiny, tmp_path, weights="none")
    left = {"tiny.o", "tiny.h", "tiny.hpp", "tiny.json"}
    assert {path.name for path in tmp_path.iterdir()} == {*left, "kept.txt", "main.c"}


@pytest.mark.parametrize(("name", "shared"), [("main", False), ("worker", False), ("json", True), ("class", True)])
def test_names_of_files_that_stand_beside(name: str, shared: bool, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=f"a bundle cannot be called {name}"):
        gt.bundle(tiny, tmp_path, name=name, shared=shared)
    assert not list(tmp_path.iterdir())


def test_a_board_says_what_it_cannot(tmp_path: Path) -> None:
    wrong: dict[str, dict[str, Any]] = {
        "weights=object": {"weights": "none"},
        "has 4,194,304 bytes of RAM": {"ram": 8 << 20},
        "has a cortex-m4": {"target": "cortex-m7"},
    }
    for message, options in wrong.items():
        with pytest.raises(BundleError, match=message):
            gt.bundle(tiny, tmp_path, board="mps2-an386", **options)


@pytest.mark.parametrize("fused", [True, False])
def test_a_trainer_s_own_arithmetic_is_the_bundle_s(fused: bool, tmp_path: Path) -> None:
    own = gt.Trainer(tiny, MSE, gt.optim.SGD(0.25), backend=gt.Cpu("scalar", fused=fused))
    made = gt.bundle(own, tmp_path)
    assert (made.module.target.name, made.module.target.fused) == ("scalar", fused)


def test_an_optimizer_may_be_named(tmp_path: Path) -> None:
    assert gt.bundle(tiny, tmp_path, loss=MSE, optimizer="sgd").module.hyper == gt.optim.SGD().hyper()
    with pytest.raises(InputError, match="no optimizer 'sdg' .*the nearest is 'sgd'"):
        gt.bundle(tiny, tmp_path, loss=MSE, optimizer="sdg")
    wrong: Any = 3
    with pytest.raises(BundleError, match="optimizer must be one of gt.optim, not"):
        gt.bundle(tiny, tmp_path, loss=MSE, optimizer=wrong)
