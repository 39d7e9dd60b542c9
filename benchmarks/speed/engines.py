"""The engines by name: what they do, and the modules that are imported where they run."""

from __future__ import annotations

OWN = "glowtrain"
OWN_BF16, TORCH_BF16 = "glowtrain-bf16", "torch-bf16"
MODULES = {
    "training": {
        OWN: "training.compiled",
        OWN_BF16: "training.compiled_bf16",
        "torch": "training.pytorch",
        TORCH_BF16: "training.pytorch_autocast",
        "jax": "training.jax_step",
    },
    "inference": {OWN: "inference.compiled", "onnxruntime": "inference.ort", "openvino": "inference.vino"},
}
"""Modules of this folder with a function ``make``, by part and engine."""
NARROW = {OWN_BF16: OWN, TORCH_BF16: "torch"}
"""Engines that multiply in bf16, by those that do the same in f32."""
TITLES = {
    OWN: "Glowtrain",
    OWN_BF16: "Glowtrain bf16",
    "torch": "PyTorch eager",
    TORCH_BF16: "PyTorch autocast",
    "jax": "JAX jit",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
}
"""As tables and plots call them."""
KEEPERS = frozenset({OWN, OWN_BF16, "jax", "openvino"})
"""Engines that keep what they compiled in a folder."""
TOLERANCE = {"training": 1e-4, "inference": 0.05}
"""How far first results may be apart. Quantized models amplify roundings: ``peers/real_models.py`` judges those."""
NARROW_TOLERANCE = 0.01
"""The same for those that multiply in bf16, whose unit is 0.4 %."""


def names(part: str, peers: list[str], *, narrow: bool = False) -> list[str]:
    """Glowtrain, and those of ``peers`` that take part; with ``narrow`` each in bf16 beside itself, too."""
    chosen = {OWN, *peers}
    return [name for name in MODULES[part] if NARROW.get(name, name) in chosen and (narrow or name not in NARROW)]


def tolerance(part: str, name: str) -> float:
    """How far an engine's first result may be from Glowtrain's."""
    return NARROW_TOLERANCE if name in NARROW else TOLERANCE[part]
