"""The command line: every command does its work, and every mistake ends in one message without a traceback."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from typer.testing import CliRunner, Result

from glowtrain import load, save
from glowtrain.cli import app
from glowtrain.data import digits
from glowtrain.graph import Graph, Input
from glowtrain.trainer.graphs import specs_of
from glowtrain.types import bf16

ROOT = Path(__file__).resolve().parents[2]
runner = CliRunner()


def call(*arguments: str | Path) -> Result:
    return runner.invoke(app, [str(argument) for argument in arguments])


def refused(*arguments: str | Path, status: int = 1) -> str:
    """The message of a call that must fail with a status of its own choosing."""
    result = call(*arguments)
    assert result.exit_code == status, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    return re.sub(r"\s+", " ", result.output)


def done(*arguments: str | Path) -> str:
    result = call(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small trained model."""
    path = tmp_path_factory.mktemp("cli") / "trained.onnx"
    done("train", "mlp", "--data", "digits", "--epochs", 2, "--out", path)
    return path


@pytest.fixture
def regression(tmp_path: Path) -> Path:
    """Data for a model with 4 inputs."""
    path = tmp_path / "data.npz"
    x = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    np.savez(path, x=x, y=x.sum(axis=1, keepdims=True))
    return path


@pytest.fixture
def twice(tmp_path: Path) -> Path:
    """A model with an input x f32[batch,4] whose two nodes read one weight, which nothing says is one parameter."""
    multiply = [helper.make_node("MatMul", [x, "w"], [y], f"node{y}") for x, y in (("x", "h"), ("h", "y"))]
    given, result = (helper.make_tensor_value_info(name, 1, ["batch", 4]) for name in "xy")
    weight = numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    path = tmp_path / "twice.onnx"
    graph = helper.make_graph(multiply, "twice", [given], [result], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)
    return path


@pytest.fixture
def four(tmp_path: Path) -> Path:
    """A model with an input x f32[batch,4] and a parameter, as an ONNX file."""
    import glowtrain as gt

    @gt.model(x=gt.f32["batch", 4])
    def linear(x: gt.Value) -> gt.Value:
        return gt.nn.linear(x, 1)

    path = tmp_path / "four.onnx"
    gt.save(linear.bind({"batch": 4}), path)
    return path


# --- what the commands do --------------------------------------------------------------------------------------------


def test_train_learns_and_says_so(tmp_path: Path) -> None:
    out, step, log, picture = (tmp_path / name for name in ("out.onnx", "step.onnx", "log.jsonl", "loss.png"))
    said = done(
        *("train", "mlp", "--data", "digits", "--epochs", "3", "--out", out, "--log", log, "--plot", picture),
        *("--step-out", step, "--schedule", "cosine", "--warmup", "5", "--weight-decay", "0.01", "--clip-norm", "1"),
    )
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert [record["epoch"] for record in records] == [1, 2, 3]
    assert records[-1]["val_accuracy"] > 0.9
    assert said.count("epoch ") >= 3
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert {"labels", "hyper.lr"} <= set(specs_of(load(step)))


@pytest.mark.parametrize("frozen", [False, True])
def test_a_frozen_trunk_keeps_its_statistics(tmp_path: Path, frozen: bool) -> None:
    first, second = tmp_path / "first.onnx", tmp_path / "second.onnx"
    done("train", "cnn", "--data", "digits", "--epochs", "1", "--batch-size", "479", "--out", first)
    options = ("--trainable", "scores.*", *(("--freeze-statistics",) if frozen else ()))
    done("train", first, "--data", "digits", "--epochs", "1", "--batch-size", "479", *options, "--out", second)
    changed = {name for name, array in _initial(first).items() if not np.array_equal(array, _initial(second)[name])}
    assert {"scores.weight", "scores.bias"} <= changed
    assert any("norm" in name for name in changed) != frozen


def _initial(path: Path) -> dict[str, np.ndarray]:
    """The initial values of a file's variables, running statistics among them."""
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}


def test_the_log_has_the_accuracy_of_training(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    common = ("train", "mlp", "--data", "digits", "--epochs", "1", "--out", tmp_path / "out.onnx", "--log", log)
    assert "train_accuracy" not in done(*common)
    assert "train_accuracy" not in log.read_text()
    said = done(*common, "--train-metrics")
    assert f"train_accuracy {json.loads(log.read_text())['train_accuracy']:.4f}" in said


def test_resume_gives_the_same_bytes(tmp_path: Path) -> None:
    whole, parts, checkpoint = (tmp_path / name for name in ("whole.onnx", "parts.onnx", "run.safetensors"))
    common = ("train", "cnn", "--data", "digits", "--batch-size", "479")
    done(*common, "--epochs", "2", "--out", whole)
    done(*common, "--epochs", "1", "--out", parts, "--checkpoint", checkpoint)
    done(*common, "--epochs", "2", "--out", parts, "--checkpoint", checkpoint, "--resume")
    assert whole.read_bytes() == parts.read_bytes()


def test_run_predicts(trained: Path, tmp_path: Path) -> None:
    images, scores = tmp_path / "images.npz", tmp_path / "scores.npz"
    data = digits()
    assert data.x_valid is not None
    np.savez(images, x=data.x_valid)
    done("run", trained, "--input", images, "--output", scores)
    with np.load(scores) as stored:
        assert (stored["scores"].argmax(1) == data.y_valid).mean() > 0.9
    done("run", trained, "--input", images, "--output", tmp_path / "again.npz", "--backend", "interpreter")
    with np.load(scores) as compiled, np.load(tmp_path / "again.npz") as interpreted:
        np.testing.assert_allclose(compiled["scores"], interpreted["scores"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        ("summary", r"535,818 parameters"),
        ("graph", r"graph mlp\.step\("),
        ("optimized", r"<- %"),
        ("lowered", r"kernel gemm:"),
        ("program", r"kernel gemm\+"),
        ("plan", r"arena [\d,]+ bytes, peak [\d,]+ bytes\n; overhead 1\.0"),
        ("lifetimes", r"^id,lower,upper,size\n(\S+,\d+,\d+,\d+\n)+$"),
        ("llvm", r"define void @step\(ptr"),
        ("asm", r"\bret"),
        ("memory", r"the peak: .* are alive at kernel \d+ of \d+"),
    ],
)
def test_inspect_prints_every_stage(stage: str, expected: str) -> None:
    assert re.search(expected, done("inspect", "mlp", "--train", "--dims", "batch=8", "--stage", stage))


def test_inspect_a_file(trained: Path) -> None:
    said = done("inspect", trained)
    assert "hidden1.weight" in said
    assert "taking batch=64" in said


def test_weights_that_nodes_share_are_named_and_untied(twice: Path, tmp_path: Path) -> None:
    said = done("inspect", twice)
    assert "'w': node 'nodeh' (MatMul), node 'nodey' (MatMul)" in said
    assert "w is shared by nodeh, nodey" in said
    apart = done("inspect", twice, "--untie", "w")
    assert "w.1" in apart
    assert "share" not in apart
    x = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x, y=x)
    arguments = ("train", twice, "--data", tmp_path / "data.npz", "--loss", "mse", "--out", tmp_path / "out.onnx")
    trained = done(*arguments)
    assert "--untie" in trained
    assert "16 parameters" in trained
    assert "32 parameters" in done(*arguments, "--untie", "*")
    assert "nothing matches 'v'" in refused(*arguments, "--untie", "v")
    np.savez(tmp_path / "in.npz", x=x)
    assert "untie" not in done("run", twice, "--input", tmp_path / "in.npz", "--output", tmp_path / "y.npz")


@pytest.fixture
def fixed(tmp_path: Path) -> Path:
    """A model with an input x f32[2,2,2], which it flattens to a batch of 2 for a weight of four rows."""
    flatten = helper.make_node("Reshape", ["x", "shape"], ["flat"])
    multiply = helper.make_node("MatMul", ["flat", "w"], ["y"])
    given, result = (helper.make_tensor_value_info(name, 1, shape) for name, shape in (("x", [2, 2, 2]), ("y", [2, 1])))
    arrays = {"shape": np.array([2, 4]), "w": np.ones((4, 1), np.float32)}
    tensors = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph([flatten, multiply], "fixed", [given], [result], tensors)
    path = tmp_path / "fixed.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)
    return path


def test_a_fixed_batch_is_opened(fixed: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(21, 2, 2)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x, y=x.sum((1, 2))[:, None])
    data, out = tmp_path / "data.npz", tmp_path / "out.onnx"
    done("train", fixed, "--data", data, "--loss", "mse", "--open-batch", "--batch-size", 8, "--out", out)
    np.savez(tmp_path / "in.npz", x=x)
    done("run", fixed, "--open-batch", "--input", tmp_path / "in.npz", "--output", tmp_path / "y.npz")
    with np.load(tmp_path / "y.npz") as outputs:
        np.testing.assert_allclose(outputs["y"], x.sum((1, 2))[:, None], rtol=1e-5, atol=1e-6)
    assert "--open-batch are for ONNX files" in refused("inspect", "mlp", "--open-batch")


def test_weights_are_untied_where_a_model_is_checked(twice: Path) -> None:
    assert "several nodes read one initializer" in done("verify", twice, "--train", "--loss", "mse")
    assert "several nodes" not in done("verify", twice, "--train", "--loss", "mse", "--untie", "w")
    assert "w.1" not in done("gradcheck", twice)
    assert "w.1" in done("gradcheck", twice, "--untie", "w")


@pytest.mark.parametrize(("command", "batch"), [("verify", 4), ("gradcheck", 3)])
def test_a_batch_is_opened_where_a_model_is_checked(command: str, batch: int, fixed: Path) -> None:
    assert "taking" not in done(command, fixed)
    assert f"taking batch={batch}" in done(command, fixed, "--open-batch")


def test_what_is_for_a_model_needs_one() -> None:
    for option in ("--open-batch", "--untie=w"):
        assert "--untie and --open-batch are for a MODEL of your own" in refused("gradcheck", option)


def test_verify_climbs_the_ladder(trained: Path) -> None:
    said = done("verify", trained, "--train", "--optimizer", "sgd", "--momentum", "0.9")
    assert "compiled" in said


def test_gradcheck_an_operator(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    junit, html = tmp_path / "report.xml", tmp_path / "report.html"
    done("gradcheck", "--op", "Tanh", "--examples", "2", "--json", report, "--junit", junit, "--html", html)
    assert json.loads(report.read_text())["passed"] is True
    assert 'failures="0"' in junit.read_text()
    assert "<svg" in html.read_text()


@pytest.mark.parametrize(
    "command", [("gradcheck", "none.onnx", "--html"), ("quantize", "none.onnx", "--calibrate", "digits", "--report")]
)
def test_pages_need_matplotlib_and_say_so_first(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    output = ("--out", tmp_path / "x.onnx") if command[0] == "quantize" else ()
    assert "drawing needs matplotlib: pip install 'glowtrain[plot]'" in refused(*command, tmp_path / "r.html", *output)


@pytest.mark.parametrize("command", ["gradcheck", "quantize"])
def test_help_names_the_extra_that_pages_need(command: str) -> None:
    assert "glowtrain[plot]" in "".join(done(command, "--help").replace("│", " ").split())


def test_gradcheck_random_programs() -> None:
    assert "all passed" in done("gradcheck", "--programs", "2", "--first", "5", "--jobs", "1")


def test_gradcheck_a_model(four: Path) -> None:
    assert "all passed" in done("gradcheck", four, "--dims", "batch=3")


@pytest.mark.parametrize("name", ["demo", "train", "run", "inspect", "verify", "gradcheck"])
def test_help_has_an_example(name: str) -> None:
    assert f"glowtrain {name}" in done(name, "--help")


# --- mistakes --------------------------------------------------------------------------------------------------------


def test_no_such_model(tmp_path: Path) -> None:
    assert "no such file" in refused("inspect", tmp_path / "nothing.onnx")
    assert "mlp, cnn" in refused("train", "resnet", "--data", "digits", "--out", tmp_path / "out.onnx")


def test_not_a_model(tmp_path: Path, trained: Path) -> None:
    (tmp_path / "text.onnx").write_text("this is not ONNX")
    (tmp_path / "short.onnx").write_bytes(trained.read_bytes()[:1000])
    for name in ("text.onnx", "short.onnx"):
        assert name in refused("inspect", tmp_path / name)


@pytest.mark.parametrize("option", ["--out", "--checkpoint", "--log", "--step-out"])
def test_unwritable_outputs_are_found_before_training(option: str, tmp_path: Path) -> None:
    started = time.perf_counter()
    others = () if option == "--out" else ("--out", tmp_path / "out.onnx")
    message = refused("train", "cnn", "--data", "digits", option, tmp_path / "missing" / "file", *others)
    assert "missing" in message
    assert time.perf_counter() - started < 2
    assert list(tmp_path.iterdir()) == []


def test_directory_as_output(tmp_path: Path) -> None:
    assert "directory" in refused("train", "mlp", "--data", "digits", "--out", tmp_path)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--data", "imagenet"), "unknown data set"),
        (("--data", "digits", "--optimizer", "lion"), "choose from sgd"),
        (("--data", "digits", "--optimizer", "adam", "--momentum", "0.9"), "adam has no --momentum"),
        (("--data", "digits", "--schedule", "wavy"), "choose from constant"),
        (
            ("--data", "digits", "--loss", "hinge"),
            "no loss 'hinge' (there are: softmax_cross_entropy, nll, mse, l1,",
        ),
        (("--data", "digits", "--loss", "crossentropy"), "(the nearest is 'softmax_cross_entropy'), and mlp has no"),
        (("--data", "digits", "--backend", "tpu"), "cpu, interpreter"),
        (
            ("--data", "digits", "--backend", "interpreter", "--threads", "2"),
            "interpreter runs on one thread, not on 2",
        ),
        (("--data", "digits", "--dims", "batch"), "NAME=EXTENT"),
        (("--data", "digits", "--dims", "time=3"), "time"),
        (("--data", "digits", "--trainable", "nothing.*"), "nothing.*"),
        (("--data", "digits", "--trainable", "scores.*[:11]"), "10 elements along axis 0, so :11 is no part of it"),
        (("--data", "digits", "--lr", "-1"), "lr"),
        (("--data", "digits", "--resume"), "--checkpoint"),
        (("--data", "digits", "--labels", "z"), "--labels"),
        (("--data", "fashion-mnist", "--data-dir", "/nowhere"), "/nowhere"),
    ],
)
def test_wrong_settings(arguments: tuple[str, ...], expected: str, tmp_path: Path) -> None:
    assert expected in refused("train", "mlp", *arguments, "--out", tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()


def test_any_number_of_threads_writes_the_same_files(tmp_path: Path) -> None:
    """Models, outputs, and what they were quantized to."""
    images = tmp_path / "images.npz"
    np.savez(images, x=digits().x_valid[:50])
    written = []
    for threads in (1, 2):
        paths = [tmp_path / f"{threads}-{name}" for name in ("m.onnx", "out.npz", "q.onnx")]
        more = ("--threads", threads)
        done("train", "cnn", "--data", "digits", "--epochs", 1, "--out", paths[0], *more)
        done("run", paths[0], "--input", images, "--output", paths[1], *more)
        done("quantize", paths[0], "--calibrate", "digits", "--out", paths[2], *more)
        written.append([path.read_bytes() for path in (paths[0], paths[2])] + [np.load(paths[1])["scores"].tobytes()])
    assert written[0] == written[1]


def test_usage_errors_have_status_2(tmp_path: Path) -> None:
    for threads in ("0", "-1", "two", "5000"):
        assert "--threads" in refused("run", "mlp", "--threads", threads, status=2)
    assert "--out" in refused("train", "mlp", "--data", "digits", status=2)
    assert "bogus" in refused("inspect", "mlp", "--stage", "bogus", status=2)


def test_labels_out_of_range(tmp_path: Path, trained: Path) -> None:
    path = tmp_path / "wrong.npz"
    np.savez(path, x=np.zeros((8, 1, 8, 8), np.float32), y=np.full(8, 11))
    assert "label 11" in refused("train", trained, "--data", path, "--out", tmp_path / "out.onnx")


def test_diverging_loss_stops_and_says_where(tmp_path: Path, four: Path, regression: Path) -> None:
    message = refused(
        *("train", four, "--data", regression, "--loss", "mse", "--optimizer", "sgd", "--lr", "1e30", "--epochs", "9"),
        *("--batch-size", "4", "--out", tmp_path / "out.onnx"),
    )
    assert "the loss is" in message
    assert not (tmp_path / "out.onnx").exists()


def test_run_writes_npz_and_says_so(trained: Path, tmp_path: Path) -> None:
    said = refused("run", trained, "--input", tmp_path / "no.npz", "--output", tmp_path / "scores.csv")
    assert "scores.csv: arrays are written as .npz, not as .csv" in said


def test_an_unknown_kind_of_picture_is_found_before_training(tmp_path: Path) -> None:
    said = refused(
        "train", "none.onnx", "--data", "none.npz", "--out", tmp_path / "o.onnx", "--plot", tmp_path / "p.gif"
    )
    assert "a plot is drawn into a file whose name ends in .png or .svg" in said


def test_run_keeps_compiled_code(trained: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=np.zeros((3, 1, 8, 8), np.float32))
    arguments = ("run", trained, "--input", tmp_path / "in.npz", "--output", tmp_path / "out.npz")
    for _ in range(2):
        done(*arguments, "--cache", tmp_path / "kept")
    kept = list((tmp_path / "kept").glob("*.compiled"))
    assert kept
    done(*arguments, "--cache", tmp_path / "kept")
    assert list((tmp_path / "kept").glob("*.compiled")) == kept
    message = refused(*arguments, "--cache", tmp_path / "kept", "--backend", "interpreter")
    assert "--cache is about native code" in message


def test_run_checks_names_shapes_and_types(trained: Path, tmp_path: Path) -> None:
    image = np.zeros((2, 1, 8, 8), np.float32)
    for arrays, expected in (
        ({"images": image, "more": image}, "no array for the model's input 'x'"),
        ({"x": image[:, :, :4]}, "8"),
        ({"x": image.astype(np.complex64)}, "complex64"),
    ):
        path = tmp_path / "in.npz"
        np.savez(path, **arrays)
        assert expected in refused("run", trained, "--input", path, "--output", tmp_path / "out.npz")
    path.write_bytes(b"no archive")
    assert "npz" in refused("run", trained, "--input", path, "--output", tmp_path / "out.npz")
    assert not (tmp_path / "out.npz").exists()


def test_gradcheck_refuses_unknown_operators() -> None:
    said = refused("gradcheck", "--op", "Xyz", "--op", "Convv")
    assert "there is no operator 'Xyz', 'Convv' (the nearest is 'Conv'); there are 'Abs', 'Acos'" in said
    assert "'AveragePool'" not in said
    assert "not both" in refused("gradcheck", "mlp", "--op", "Tanh")
    assert "not both" in refused("gradcheck", "--programs", "2", "--op", "Tanh")
    assert "not both" in refused("gradcheck", "mlp", "--programs", "2")


def _interrupted(*arguments: str | Path, begun: Path) -> tuple[int, str]:
    """Status and output of a training run that gets Ctrl-C when the file ``begun`` has content."""
    command = [sys.executable, "-m", "glowtrain", "train", "mlp", "--data", "digits", "--epochs", "100000"]
    process = subprocess.Popen(
        command + [str(argument) for argument in arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not (begun.exists() and begun.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=30)
    assert said.count("interrupted") == 1
    assert "Traceback" not in said
    return process.returncode, said


def test_ctrl_c_keeps_a_whole_checkpoint(tmp_path: Path) -> None:
    checkpoint, out = tmp_path / "run.safetensors", tmp_path / "out.onnx"
    status, said = _interrupted("--out", out, "--checkpoint", checkpoint, begun=checkpoint)
    assert status == 130
    assert f"go on with --checkpoint {checkpoint} --resume" in said
    assert not out.exists()
    said = done(
        "train", "mlp", "--data", "digits", "--epochs", "1", "--out", out, "--checkpoint", checkpoint, "--resume"
    )
    assert re.search(r"the checkpoint's run has \d+ epochs? already, and (they|1) were asked for; wrote", said)


def test_ctrl_c_without_a_checkpoint_keeps_the_model(tmp_path: Path) -> None:
    log, out, scores = (tmp_path / name for name in ("run.jsonl", "out.onnx", "scores.npz"))
    status, said = _interrupted("--out", out, "--log", log, begun=log)
    assert status == 130
    assert f"wrote {out}: the model as it is now" in said
    images = digits()
    np.savez(tmp_path / "images.npz", x=images.x)
    done("run", out, "--input", tmp_path / "images.npz", "--output", scores)
    assert (np.load(scores)["scores"].argmax(1) == images.y).mean() > 0.5


def test_a_checkpoint_is_not_overwritten_without_a_word(tmp_path: Path) -> None:
    checkpoint, out = tmp_path / "run.safetensors", tmp_path / "out.onnx"
    arguments = ("train", "mlp", "--data", "digits", "--batch-size", "479", "--out", out, "--checkpoint", checkpoint)
    done(*arguments, "--epochs", "2")
    before = checkpoint.read_bytes()
    message = refused(*arguments, "--epochs", "1")
    assert "exists: --resume goes on from it, --overwrite begins anew in its place" in message
    assert checkpoint.read_bytes() == before
    assert "not both" in refused(*arguments, "--resume", "--overwrite")
    assert "1 epoch is done" in done(*arguments, "--epochs", "1", "--overwrite")
    assert checkpoint.read_bytes() != before


def test_a_rate_that_is_given_takes_effect_when_a_run_goes_on(tmp_path: Path) -> None:
    checkpoint = tmp_path / "run.safetensors"
    arguments = ("train", "mlp", "--data", "digits", "--batch-size", "479", "--checkpoint", checkpoint)
    done(*arguments, "--epochs", "1", "--lr", "0.01", "--out", tmp_path / "0.onnx")
    begun = checkpoint.read_bytes()
    found = {}
    for rate in (None, "0.01", "0.5"):
        checkpoint.write_bytes(begun)
        out, lr = tmp_path / f"{rate}.onnx", () if rate is None else ("--lr", rate)
        said = done(*arguments, "--epochs", "2", "--resume", *lr, "--out", out)
        assert ("going on in epoch 2 with lr 0.5 instead of 0.01" in said) == (rate == "0.5")
        found[rate] = out.read_bytes()
    assert found[None] == found["0.01"] != found["0.5"]


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = f"{sys.executable} -m glowtrain inspect mlp --stage llvm | head -1"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        command, shell=True, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert "Error" not in result.stderr
    assert "Traceback" not in result.stderr


def test_an_impossible_opset_is_found_before_training(tmp_path: Path) -> None:
    path = tmp_path / "out.onnx"
    message = refused("train", "mlp", "--data", "digits", "--epochs", "1", "--opset", "3", "--out", path)
    (line,) = message.strip().splitlines()
    assert line.startswith("error: cannot save at opset 3: choose one from 13 to ")
    assert not path.exists()


def test_run_takes_and_gives_numbers_that_npz_files_hold(tmp_path: Path) -> None:
    """A bf16 model on f64 arrays: NumPy's files know no bf16."""
    x = Input(bf16[2, 3], "x")
    save(Graph((x,), {"y": x * 2.0}), tmp_path / "narrow.onnx")
    np.savez(tmp_path / "in.npz", x=np.ones((2, 3)))
    done("run", tmp_path / "narrow.onnx", "--input", tmp_path / "in.npz", "--output", tmp_path / "out.npz")
    found = np.load(tmp_path / "out.npz")["y"]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.full((2, 3), 2))
