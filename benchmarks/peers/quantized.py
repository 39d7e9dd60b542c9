"""Int8 models by ONNX Runtime's own quantizer: agreement and time, against ONNX Runtime and OpenVINO. By hand:

    python benchmarks/peers/quantized.py [--models resnet50,mobilenetv2] [--seconds 5] [--peers ort,openvino] [--keep D]

ResNet-50 and MobileNetV2 at 224×224 are exported by PyTorch, quantized per channel by ``onnxruntime.quantization`` as
QDQ and QOperator, and run on one image. Where ONNX Runtime lacks VNNI, its kernels saturate sums of two products in
16 bits unless ``session.x64quantprecision`` is set, with which agreement is measured; both are timed. Engines take
turns on one core; medians. Needs the ``peers`` extra, and openvino for its column, which reads QDQ alone.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

import glowtrain as gt
from glowtrain.onnx_io.checks.other_runtimes import EXACT_BYTES

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.peers import imagenet

SHAPE = (1, 3, 224, 224)

Run = Callable[[], np.ndarray]


class Images(CalibrationDataReader):  # type: ignore[misc]
    """A few images of noise."""

    def __init__(self, count: int = 4) -> None:
        random = np.random.default_rng(0)
        self.images = iter([random.normal(size=SHAPE).astype(np.float32) for _ in range(count)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        image = next(self.images, None)
        return None if image is None else {"x": image}


def export(name: str, folder: Path) -> Path:
    """The float model as ONNX."""
    path = folder / f"{name}.onnx"
    torch.onnx.export(
        imagenet.build(name), (torch.zeros(SHAPE),), str(path),
        dynamo=False, opset_version=17, input_names=["x"], output_names=["y"],
    )  # fmt: skip
    return path


def quantized(source: Path, form: str) -> Path:
    """The int8 model, per channel, unsigned activations and signed weights."""
    target = source.with_suffix(f".{form}.onnx")
    quantize_static(
        source, target, Images(), QuantFormat[form],
        per_channel=True, activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
    )  # fmt: skip
    return target


def session(path: Path, *, precise: bool) -> onnxruntime.InferenceSession:
    """ONNX Runtime on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    options.add_session_config_entry(EXACT_BYTES, "1" if precise else "0")
    return onnxruntime.InferenceSession(str(path), options)


def openvino_run(path: Path, x: np.ndarray) -> Run:
    """OpenVINO on one thread."""
    import openvino

    core = openvino.Core()
    model = core.compile_model(core.read_model(path), "CPU", {"INFERENCE_NUM_THREADS": 1})
    request = model.create_infer_request()
    return lambda: np.array(request.infer({0: x})[0])


def compiled_run(path: Path, x: np.ndarray) -> Run:
    """Glowtrain, which uses one thread."""
    function = gt.compile(gt.load(path))
    return lambda: next(iter(function({"x": x}).values()))


def runtime_run(path: Path, x: np.ndarray, *, precise: bool) -> Run:
    """ONNX Runtime on one thread."""
    run = session(path, precise=precise)
    return lambda: np.asarray(run.run(None, {"x": x})[0])


def units(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Differences in steps of the output's scale."""
    return np.rint((found - expected) / np.diff(np.unique(expected)).min()).astype(int)


def agreement(path: Path, x: np.ndarray) -> str:
    """How far the compiled model is from ONNX Runtime."""
    expected, found = runtime_run(path, x, precise=True)(), compiled_run(path, x)()
    apart = units(found, expected)
    same = "same class" if (found.argmax(1) == expected.argmax(1)).all() else "ANOTHER CLASS"
    return f"{np.count_nonzero(apart)} of {apart.size} outputs differ, by at most {np.abs(apart).max()}; {same}"


def engines(source: Path, path: Path, form: str, x: np.ndarray, peers: list[str]) -> Iterator[tuple[str, Run]]:
    """What is timed, by name."""
    yield "glowtrain f32", compiled_run(source, x)
    yield "glowtrain int8", compiled_run(path, x)
    if "ort" in peers:
        yield "ort int8", runtime_run(path, x, precise=False)
        yield "ort int8 exact", runtime_run(path, x, precise=True)
    if "openvino" in peers and form == "QDQ":
        yield "openvino int8", openvino_run(path, x)


def timed(runs: dict[str, Run], seconds: float) -> dict[str, float]:
    """Median seconds of each, in turns."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, run in runs.items():
            run()
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def report(name: str, folder: Path, seconds: float, peers: list[str]) -> None:
    """Print one model's lines."""
    source = export(name, folder)
    x = np.random.default_rng(1).normal(size=SHAPE).astype(np.float32)
    for form in ("QDQ", "QOperator"):
        path = quantized(source, form)
        print(f"{name} {form}: {agreement(path, x)}", flush=True)
        if seconds:
            runs = dict(engines(source, path, form, x, peers))
            medians = timed(runs, seconds)
            ours, expected = medians["glowtrain int8"], runtime_run(path, x, precise=True)()
            for label, median in medians.items():
                off = "" if "int8" not in label else f"   off by {np.abs(units(runs[label](), expected)).max():3}"
                print(f"    {label:16} {1e3 * median:8.2f} ms   {median / ours:5.2f} of ours{off}", flush=True)


def main() -> int:
    """Print agreement and times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(imagenet.MODELS), help="separated by commas")
    parser.add_argument("--peers", default="ort", help="ort, openvino or both, separated by a comma")
    parser.add_argument("--seconds", type=float, default=5, help="for each model and form; 0: agreement only")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where the models stay; else they are deleted")
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as passing:
        folder = chosen.keep or Path(passing)
        folder.mkdir(parents=True, exist_ok=True)
        for name in chosen.models.split(","):
            report(name, folder, chosen.seconds, chosen.peers.split(","))
    return 0


if __name__ == "__main__":
    sys.exit(main())
