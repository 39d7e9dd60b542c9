"""Bundles on boards that QEMU emulates: one make from a folder to a running program, with the same bits as here."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import glowtrain as gt
from glowtrain.bundles.codes import ErrorCode
from glowtrain.bundles.devices.boards import BOARDS
from glowtrain.errors import BundleError
from glowtrain.types import Array

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples" / "boards"
MODELS = HERE / "models"
LOSS = gt.losses.SoftmaxCrossEntropy()


def made(folder: Path, *goals: str, program: str = "main.c") -> str:
    """What make prints on a board."""
    command = ["make", "-s", "-C", str(folder), "-f", "board.mk", *goals, f"PROGRAM={program}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-500:]
    return done.stdout


@pytest.fixture(params=BOARDS)
def board(request: pytest.FixtureRequest) -> str:
    for program in ("qemu-system-arm", "arm-none-eabi-gcc"):
        assert shutil.which(program), f"install {program}: Debian has it, see examples/boards"
    return str(request.param)


@gt.model(x=gt.f32["n", 2, 6, 6])
def network(x: gt.Value) -> gt.Value:
    x = gt.nn.max_pool(gt.nn.relu(gt.nn.batch_norm(gt.nn.conv(x, 5, 3, padding="same"))), 2)
    return gt.nn.linear(gt.nn.gelu(gt.nn.linear(gt.nn.flatten(x), 11)), 3)


def test_a_bundle_computes_the_same_bits_on_a_board(board: str, tmp_path: Path) -> None:
    gt.bundle(network, tmp_path, loss=LOSS, optimizer=gt.optim.Adam(), dims={"n": 4}, board=board, ram=256 << 10)
    assert "the same bits" in made(tmp_path, "check")
    assert re.search(r"^ \.text +0x[0-9a-f]+ +0x[0-9a-f]+ network\.o$", made(tmp_path, "sizes"), re.MULTILINE)


def test_the_least_ram_that_is_accepted_is_enough(board: str, tmp_path: Path) -> None:
    given = {"loss": LOSS, "optimizer": gt.optim.SGD(), "dims": {"n": 8}, "board": board}
    with pytest.raises(BundleError) as caught:
        gt.bundle(network, tmp_path, ram="1KB", **given)
    found = re.search(r"needs ([\d,]+) bytes of RAM", str(caught.value))
    assert found is not None
    gt.bundle(network, tmp_path, ram=int(found[1].replace(",", "")), **given)
    assert "the same bits" in made(tmp_path, "check")


@pytest.mark.parametrize("options", [(), ("--int8",)], ids=["float", "int8"])
def test_fine_tuning_in_less_than_256_kib(board: str, options: tuple[str, ...], tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "fine_tune.py"), *options, "--board", board, "--out", str(tmp_path)]
    subprocess.run(command, check=True, timeout=300, capture_output=True)
    said = made(tmp_path, "run", program="fine_tune.c")
    stacks = re.findall(r"(\d+) bytes, said: at most (\d+)", said)
    assert len(stacks) == 2
    assert all(int(bound) - 8 <= int(used) <= int(bound) for used, bound in stacks), said
    before, after = (int(count) for count in re.findall(r"(\d+) of 200 digits", said))
    assert before < 60
    assert after > 160


@gt.model(x=gt.f32[1, 8])
def linear(x: gt.Value) -> gt.Value:
    return gt.nn.linear(x, 8)


def test_every_error_code_is_provoked_and_changes_no_variable(board: str, tmp_path: Path) -> None:
    gt.bundle(linear, tmp_path, loss=LOSS, optimizer=gt.optim.SGD(momentum=0.9), name="net", board=board)
    shutil.copy(HERE / "board_errors.c", tmp_path)
    printed = made(tmp_path, "run", program="board_errors.c")
    lines = [re.match(r"(\w+): (\d*) ?(.*)", line) for line in printed.splitlines()]
    *provoked, other = [match.groups() for match in lines if match]
    assert {name for name, _, _ in provoked} == {code.name for code in ErrorCode if code != ErrorCode.NO_WEIGHTS}
    for name, number, text in provoked:
        assert (int(number), text) == (ErrorCode[name], ErrorCode[name].text)
    assert other[2] == "no error code"


def channels_last(random: np.random.Generator) -> onnx.ModelProto:
    """As converters from TensorFlow write it: images are channels last, and each convolution stands between
    transposes."""
    arrays = {
        "kernel": random.normal(size=(4, 1, 3, 3)), "bias": np.zeros(4), "dense": random.normal(size=(64, 10)) / 8
    }  # fmt: skip
    nodes = [
        helper.make_node("Transpose", ["images"], ["nchw"], perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["nchw", "kernel", "bias"], ["conv"], strides=[2, 2], auto_pad="SAME_UPPER"),
        helper.make_node("Relu", ["conv"], ["relu"]),
        helper.make_node("Transpose", ["relu"], ["nhwc"], perm=[0, 2, 3, 1]),
        helper.make_node("Reshape", ["nhwc", "shape"], ["flat"]),
        helper.make_node("MatMul", ["flat", "dense"], ["scores"]),
    ]
    return model_of(nodes, arrays, {"shape": np.array([-1, 64])}, ("images", ["batch", 8, 8, 1]))


def by_hand(random: np.random.Generator) -> onnx.ModelProto:
    """A small network with names, a residual and an activation as somebody might write them."""
    arrays = {"W1": random.normal(size=(16, 16)) / 4, "b1": np.zeros(16), "W2": random.normal(size=(10, 16)) / 4}
    nodes = [
        helper.make_node("Gemm", ["features", "W1", "b1"], ["h"]),
        helper.make_node("Sigmoid", ["h"], ["gate"]),
        helper.make_node("Mul", ["h", "gate"], ["swish"]),
        helper.make_node("Add", ["swish", "features"], ["residual"]),
        helper.make_node("Gemm", ["residual", "W2"], ["scores"], transB=1),
    ]
    return model_of(nodes, arrays, {}, ("features", [3, 16]))


def model_of(
    nodes: list[onnx.NodeProto], arrays: dict[str, Array], others: dict[str, Array], given: tuple[str, list[str | int]]
) -> onnx.ModelProto:
    floats = {name: array.astype(np.float32) for name, array in arrays.items()}
    initial = [numpy_helper.from_array(array, name) for name, array in (floats | others).items()]
    inputs = [helper.make_tensor_value_info(given[0], TensorProto.FLOAT, given[1])]
    outputs = [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [given[1][0], 10])]
    graph = helper.make_graph(nodes, "brought", inputs, outputs, initial)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_models_that_people_bring_train_on_a_board(board: str, tmp_path: Path, random: np.random.Generator) -> None:
    """From a file by the command; the first was exported by PyTorch 2.13 (models/README.md)."""
    onnx.save(channels_last(random), tmp_path / "channels_last.onnx")
    onnx.save(by_hand(random), tmp_path / "by_hand.onnx")
    for path in (MODELS / "pytorch.onnx", tmp_path / "channels_last.onnx", tmp_path / "by_hand.onnx"):
        folder = tmp_path / path.stem
        command = [sys.executable, "-m", "glowtrain", "bundle", str(path), "--train", "--board", board]
        subprocess.run([*command, "--ram", "256KB", "--out", str(folder)], check=True, capture_output=True, timeout=120)
        assert "the same bits" in made(folder, "check"), path.stem
        printed = (folder / "printed.txt").read_text(encoding="ascii")
        assert len(set(re.findall("variables (.*)", printed))) == 5, "each step changes the variables"
