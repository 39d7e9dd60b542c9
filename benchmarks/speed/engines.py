"""The engines by name: what they do, and the modules that are imported where they run."""

from __future__ import annotations

OWN = "glowtrain"
MODULES = {
    "training": {OWN: "training.compiled", "torch": "training.pytorch", "jax": "training.jax_step"},
    "inference": {OWN: "inference.compiled", "onnxruntime": "inference.ort", "openvino": "inference.vino"},
}
"""Modules of this folder with a function ``make``, by part and engine."""
TITLES = {
    OWN: "Glowtrain",
    "torch": "PyTorch eager",
    "jax": "JAX jit",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
}
"""As tables and plots call them."""
KEEPERS = frozenset({OWN, "jax", "openvino"})
"""Engines that keep what they compiled in a folder."""
TOLERANCE = {"training": 1e-4, "inference": 0.05}
"""How far first results may be apart. Quantized models amplify roundings: ``peers/real_models.py`` judges those."""


def names(part: str, peers: list[str]) -> list[str]:
    """Glowtrain, and those of ``peers`` that take part."""
    return [name for name in MODULES[part] if name == OWN or name in peers]
