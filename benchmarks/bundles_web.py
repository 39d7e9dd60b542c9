"""Training steps of bundles in a browser's tab, beside the same by hand in C and TensorFlow.js.

    npm install --prefix DIR @tensorflow/tfjs @tensorflow/tfjs-backend-wasm
    pip install playwright ziglang wasmtime
    python benchmarks/bundles_web.py --npm DIR [--turns 200] [--output benchmarks/results/bundles_web.md]

All take turns in one tab of Chromium, on one thread; without --npm there is no TensorFlow.js. The mlp is 784-512-512-10
with SGD and momentum, the cnn is the one that comes along for 8×8 digits, with Adam; batch 64. ``web/mlp_step.c`` is
compiled by clang at -O3, with vectors. wasmtime runs the mlp and the C in turns as well.
"""

from __future__ import annotations

import argparse
import base64
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import wasmtime
from playwright.sync_api import sync_playwright

import glowtrain as gt
from glowtrain import models
from glowtrain.graph import Value
from glowtrain.version import __version__

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from tests.targets.in_wasmtime import WasmBundle  # noqa: E402

HAND = ROOT / "benchmarks" / "web" / "mlp_step.c"
MEASURE = ROOT / "benchmarks" / "web" / "measure.js"
BATCH = 64
Times = Mapping[str, list[float]]


@gt.model(x=gt.f32["batch", 784])
def mlp(x: Value) -> Value:
    """784-512-512-10."""
    hidden = gt.nn.relu(gt.nn.linear(gt.nn.relu(gt.nn.linear(x, 512, name="first")), 512, name="second"))
    return gt.nn.linear(hidden, 10, name="scores")


def bundles(folder: Path) -> dict[str, dict[str, str]]:
    """Both bundles: the text in JavaScript and the module."""
    rules = {"mlp": gt.optim.SGD(0.01, momentum=0.9), "cnn": gt.optim.Adam()}
    found = {}
    for name, model in {"mlp": mlp, "cnn": models.build("cnn", (1, 8, 8))}.items():
        given = {"loss": "softmax_cross_entropy", "optimizer": rules[name], "dims": {"batch": BATCH}, "name": name}
        module = gt.bundle(model, folder / name, target="wasm32", **given).module
        library = (folder / name / f"{name}.mjs").read_text(encoding="utf-8")
        file = folder / name / f"{name}.wasm"
        code = file.stat().st_size - len(module.memory.image)
        found[name] = {"library": library, "wasm": _text(file), "code": f"{code:,}"}
    return found


def by_hand(folder: Path) -> Path:
    """The step in C as a module."""
    path = folder / "mlp_step.wasm"
    options = ["-target", "wasm32-freestanding", "-mcpu=generic+simd128", "-O3", "-nostdlib", "-Wl,--no-entry"]
    subprocess.run([sys.executable, "-m", "ziglang", "cc", *options, str(HAND), "-o", str(path)], check=True)
    return path


def in_chromium(made: Any, hand: Path, npm: Path | None, turns: int, slow: int) -> Times:
    """Milliseconds by row."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page()
        tensorflow = None
        if npm is not None:
            packages = npm / "node_modules" / "@tensorflow"
            for script in ("tfjs/dist/tf.min.js", "tfjs-backend-wasm/dist/tf-backend-wasm.min.js"):
                page.add_script_tag(path=packages / script)
            own = packages / "tfjs-backend-wasm" / "dist" / "tfjs-backend-wasm"
            tensorflow = {"plain": _text(Path(f"{own}.wasm")), "simd": _text(Path(f"{own}-simd.wasm"))}
        page.add_script_tag(path=MEASURE)
        given = {"models": made, "hand": _text(hand), "turns": turns, "slow": slow, "tensorflow": tensorflow}
        times: Times = page.evaluate("(given) => measure(given)", given)
        version = browser.version
        browser.close()
    return {f"Chromium {version.partition('.')[0]}, {name}": each for name, each in times.items()}


def in_wasmtime(folder: Path, hand: Path, turns: int) -> Times:
    """Milliseconds by row."""
    bundle, random = WasmBundle(folder / "mlp", "mlp"), np.random.default_rng(0)
    batch = {"x": random.random((BATCH, 784), np.float32), "labels": np.arange(BATCH) % 10}
    step = bundle.prepared(batch)
    store = wasmtime.Store()
    module = wasmtime.Module(store.engine, hand.read_bytes())
    other = wasmtime.Instance(store, module, []).exports(store)
    other["start"](store)
    rows: dict[str, Callable[[], object]] = {
        "mlp: bundle": step, "mlp: C by hand": lambda: other["step"](store, 0.01, 0.9)
    }  # fmt: skip
    times: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(turns):
        for name, call in rows.items():
            began = time.perf_counter()
            call()
            times[name].append(1e3 * (time.perf_counter() - began))
    return {f"wasmtime, {name}": each for name, each in times.items()}


def table(times: Times) -> str:
    """Least and median of each row, and how often the bundle's median of the same model fits into its median."""
    lines = ["| where, what | least ms | median ms | × the bundle |", "|---|---|---|---|"]
    for name, each in times.items():
        own = statistics.median(times[f"{name.partition(':')[0]}: bundle"])
        lines.append(
            f"| {name} | {min(each):.2f} | {statistics.median(each):.2f} | {statistics.median(each) / own:.1f} |"
        )
    return "\n".join(lines)


def _text(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "an unknown processor")


def main() -> None:
    """Measure, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--npm", type=Path, help="where TensorFlow.js is installed")
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--slow", type=int, default=15, help="turns of TensorFlow.js")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        made, hand = bundles(folder), by_hand(folder)
        times = dict(in_chromium(made, hand, options.npm, options.turns, options.slow))
        times |= in_wasmtime(folder, hand, options.turns)
        sizes = ", ".join(f"{name} {each['code']}" for name, each in made.items())
    about = f"Glowtrain {__version__}, {_processor()}, one thread, batch {BATCH}."
    text = f"{about}\n\n{table(times)}\n\nBytes of the modules without weights: {sizes}.\n"
    print(text)
    if options.output:
        options.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
