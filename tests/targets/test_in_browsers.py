"""Bundles for WebAssembly where they run: in wasmtime, in Node and in Chromium. make test-targets runs this."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from playwright.sync_api import Browser, Page, Route, sync_playwright
from safetensors.numpy import load_file

import glowtrain as gt
from glowtrain import models
from glowtrain.bundles.verify.trace import BatchGenerator, trace_of
from glowtrain.graph import Value
from tests.compiler import networks
from tests.targets.in_wasmtime import WasmBundle

HERE = Path(__file__).parent
STEPS = 20
NETWORKS = {"mlp": networks.mlp, "cnn": networks.cnn, "lstm": networks.lstm, "gpt": networks.gpt}
PATIENCE = 300_000
"""Milliseconds until a page is given up."""


@pytest.fixture(scope="module")
def node() -> str:
    found = shutil.which("node")
    assert found, "install Node: Debian has nodejs"
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium")
    assert chromium, "install Chromium: Debian has chromium"
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield found
        found.close()


def _in_node(node: str, *arguments: str | Path) -> str:
    done = subprocess.run([node, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _written(model: Any, folder: Path, **settings: Any) -> str:
    given = {"loss": "softmax_cross_entropy", "optimizer": gt.optim.Adam(1e-2), "dims": {"batch": 8}, **settings}
    return gt.bundle(model, folder, target="wasm32", **given).module.name


@gt.model(x=gt.f32["batch", 3])
def three(x: Value) -> Value:
    return gt.nn.linear(x, 2, name="layer")


@gt.model(x=gt.f16["batch", 3])
def halves(x: Value) -> Value:
    return gt.nn.linear(x, 2, name="layer")


# --- WebAssembly ------------------------------------------------------------------------------------------------------


def _steps(bundle: WasmBundle) -> str:
    """What ``steps.mjs`` prints, by wasmtime."""
    words, lines = BatchGenerator(), list[str]()
    for _ in range(STEPS):
        types = bundle.told["functions"]["step"]["inputs"]
        batch = {e["name"]: words.batch(gt.TensorType(getattr(gt, e["dtype"]), tuple(e["shape"]))) for e in types}
        lines.append(bundle.step(batch).hex())
    return "\n".join([*lines, hashlib.sha256(bundle.variables()).hexdigest(), ""])


@pytest.mark.parametrize("model", NETWORKS.values(), ids=NETWORKS)
def test_node_and_wasmtime_compute_the_same_bits(model: Any, tmp_path: Path, node: str) -> None:
    name = _written(model, tmp_path)
    printed = _in_node(node, HERE / "steps.mjs", tmp_path / f"{name}.mjs", str(STEPS))
    assert printed == _steps(WasmBundle(tmp_path, name))


def test_another_linker_makes_a_module_that_computes_the_same(tmp_path: Path) -> None:
    name = _written(models.build("cnn", (1, 8, 8)), tmp_path)
    options = ["--no-entry", "--export-all", "--stack-first", tmp_path / f"{name}.o", "-o", tmp_path / "other.wasm"]
    subprocess.run([sys.executable, "-m", "ziglang", "wasm-ld", *options], check=True)
    other = WasmBundle(tmp_path, name, (tmp_path / "other.wasm").read_bytes())
    assert _steps(WasmBundle(tmp_path, name)) == _steps(other)


def test_a_host_can_share_out_a_step(tmp_path: Path) -> None:
    """It is called through the table of functions, and calls back through it."""
    name = _written(models.build("mlp", (1, 16, 16)), tmp_path, threads=2)
    shared = WasmBundle(tmp_path, name, parallel=True)
    assert _steps(shared) == _steps(WasmBundle(tmp_path, name))
    assert shared.shared > STEPS


# --- JavaScript -------------------------------------------------------------------------------------------------------


def test_the_interface_in_javascript(tmp_path: Path, node: str) -> None:
    given = {"loss": "mse", "optimizer": gt.optim.SGD(0.1, momentum=0.9), "dims": {"batch": 4}}
    _written(three, tmp_path, **given)
    _written(three, tmp_path / "apart", weights="file", **given)
    _written(three, tmp_path / "sorts", dims={"batch": 4})
    _written(halves, tmp_path / "halves", name="three", dims={"batch": 4})
    assert _in_node(node, HERE / "interface.mjs", tmp_path) == "ok\n"


@pytest.mark.parametrize("model", NETWORKS.values(), ids=NETWORKS)
def test_the_example_prints_the_bits_that_python_computes(model: Any, tmp_path: Path, node: str) -> None:
    made = gt.bundle(model, tmp_path, target="wasm32", loss="softmax_cross_entropy", dims={"batch": 8})
    assert _in_node(node, tmp_path / "example.mjs") == (tmp_path / "expected.txt").read_text()
    text = (tmp_path / "example.mjs").read_text()
    (tmp_path / "longer.mjs").write_text(text.replace("STEPS = 5", f"STEPS = {STEPS}"))
    longer = trace_of(made.module.contents, gt.Cpu("scalar", fused=False), STEPS)
    assert _in_node(node, tmp_path / "longer.mjs") == str(longer)


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that may fetch nothing, and in which no script fails."""
    problems: list[str] = []
    found = browser.new_page()
    found.set_default_timeout(PATIENCE)
    found.on("pageerror", lambda error: problems.append(str(error)))
    found.on("request", lambda request: problems.append(request.url) if request.url.startswith("http") else None)
    yield found
    found.close()
    assert not problems


def test_the_worker_answers(tmp_path: Path, browser: Browser) -> None:
    made = gt.bundle(three, tmp_path, loss="mse", dims={"batch": 4}, target="wasm32")
    bias = made.module.memory.by_name["layer.bias"].initial
    found = browser.new_page()

    def serve(route: Route) -> None:
        path = tmp_path / route.request.url.rpartition("/")[2]
        kind = {".mjs": "text/javascript", ".wasm": "application/wasm"}.get(path.suffix, "text/html")
        route.fulfill(body=path.read_bytes() if path.suffix else b"<!doctype html>", content_type=kind)

    found.route("**/*", serve)
    found.goto("http://bundle.test/")
    answers = found.evaluate(
        """() => new Promise((resolve) => {
          const worker = new Worker("worker.mjs", { type: "module" });
          const answers = [];
          worker.onmessage = ({ data }) => answers.push(data) === 3 && resolve(answers);
          const x = new Float32Array(12), target = new Float32Array(8).fill(1);
          worker.postMessage({ id: 1, method: "train", args: [{ x, target }] });
          worker.postMessage({ id: 2, method: "train", args: [{ x }] });
          worker.postMessage({ id: 3, method: "constructor" });
        })"""
    )
    found.close()
    assert answers[0] == {"id": 1, "value": pytest.approx(np.mean((bias - 1) ** 2), rel=1e-6)}
    assert (answers[1]["id"], answers[1]["error"]["code"]) == (2, "WRONG_SIZE")
    assert "there is no method constructor" in answers[2]["error"]["message"]


# --- the page ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page")
    digits = gt.data.digits()
    _written(models.build("cnn", digits.x.shape[1:]), path, dims={"batch": 32}, page=True)
    return path


def _opened(page: Page, folder: Path) -> None:
    page.goto((folder / "index.html").as_uri())
    page.locator("#run:enabled").wait_for()


def _accuracy(page: Page) -> float:
    return float(page.inner_text("#accuracy").rstrip(" %")) / 100


def _trained(page: Page, accuracy: str) -> None:
    """Train until the accuracy has been shown that a regular expression describes, and stop."""
    page.click("#run")
    page.locator("#accuracy", has_text=re.compile(accuracy)).wait_for()
    page.click("#run")


def _download(page: Page, button: str, folder: Path) -> Path:
    with page.expect_download() as download:
        page.click(button)
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path


def test_the_page_learns_and_its_files_go_into_python_and_back(page: Page, folder: Path, tmp_path: Path) -> None:
    _opened(page, folder)
    memory = page.inner_text("#memory")
    _trained(page, r"^9[5-9]|^100")
    weights, model = (_download(page, button, tmp_path) for button in ("#weights", "#onnx"))
    digits = gt.data.digits()
    images, labels = digits.valid["x"], digits.valid["y"]
    session = onnxruntime.InferenceSession(str(model))
    theirs = session.run(None, {"x": images})[0]
    ours = gt.compile(gt.load(model))({"x": images})["scores"]
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
    stored = load_file(weights)
    for initializer in onnx.load(model).graph.initializer:
        np.testing.assert_array_equal(numpy_helper.to_array(initializer), stored[initializer.name])

    page.click("#reset")
    page.locator("#status", has_text="untrained").wait_for()
    assert _accuracy(page) < 0.5
    with page.expect_file_chooser() as chooser:
        page.click("#choose")
    chooser.value.set_files(weights)
    page.locator("#status", has_text="are in place").wait_for()
    assert _accuracy(page) == pytest.approx((theirs.argmax(1) == labels).mean(), abs=1e-3)
    assert page.inner_text("#memory") == memory


def test_the_page_shows_what_the_model_makes_of_a_digit(page: Page, folder: Path) -> None:
    _opened(page, folder)
    _trained(page, r"^9[7-9]|^100")
    labels = gt.data.digits().valid["y"]
    seen = []
    for label in labels[:20]:
        page.click("#example")
        page.locator("#answer", has_text=f"It is a {label}.").wait_for()
        seen.append(int(page.inner_text("#answer").split()[4].rstrip(".")))
    assert np.mean(np.equal(seen, labels[:20])) >= 0.9
    shares = [float(text.rstrip(" %")) for text in page.locator("#bars .percent").all_inner_texts()]
    assert sum(shares) == pytest.approx(100, abs=0.6)
    assert int(np.argmax(shares)) == seen[-1]


def test_a_digit_is_drawn_with_a_pointer_and_with_keys(page: Page, folder: Path) -> None:
    _opened(page, folder)
    _trained(page, r"^9[7-9]|^100")
    page.locator("#pad").scroll_into_view_if_needed()
    box = page.locator("#pad").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.15)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.85, steps=10)
    page.mouse.up()
    page.locator("#answer", has_text="The model sees a 1.").wait_for()
    page.click("#clear")
    page.locator("#answer", has_text="Draw, or show an example.").wait_for()
    page.focus("#pad")
    for key in [" ", *["ArrowDown"] * 5]:
        page.keyboard.press(key)
    page.locator("#answer", has_text="The model sees a 1.").wait_for()
    page.keyboard.press("Delete")
    page.locator("#answer", has_text="Draw, or show an example.").wait_for()


def test_mistakes_are_told(page: Page, folder: Path, tmp_path: Path) -> None:
    _opened(page, folder)
    (tmp_path / "other.safetensors").write_bytes(b"nothing")
    page.set_input_files("#file", tmp_path / "other.safetensors")
    page.locator("#problem", has_text="the file ends early: 7 of").wait_for()
    page.fill("#rate", "-1")
    page.press("#rate", "Enter")
    page.locator("#problem", has_text="a number from 0 on").wait_for()
    page.click("#run")
    page.locator("#problem", has_text="a number from 0 on").wait_for()
    assert page.inner_text("#run") == "Train"
    page.fill("#rate", "1e30")
    page.press("#rate", "Enter")
    page.click("#run")
    page.locator("#problem", has_text="is NaN or infinite").wait_for()
    assert page.inner_text("#run") == "Go on"


def test_every_control_has_a_name_and_is_reached_by_keys(page: Page, folder: Path) -> None:
    _opened(page, folder)
    names = set()
    for _ in range(12):
        page.keyboard.press("Tab")
        names.add(page.evaluate("document.activeElement.id"))
    assert {"run", "reset", "rate", "pad", "clear", "example", "onnx", "weights", "choose"} <= names
    snapshot = page.locator("body").aria_snapshot()
    for name in ('button "Train"', 'spinbutton "Learning rate"', 'application "Drawing area"', 'img "Loss by step'):
        assert name in snapshot
