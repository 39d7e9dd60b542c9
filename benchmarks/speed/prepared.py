"""What all engines of a row start from, as files: so that none needs another engine's packages in its process."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]
MODEL, ARRAYS, FACTS = "model.onnx", "arrays.npz", "facts.json"


@dataclass(frozen=True)
class Prepared:
    """A row's model (a file that some rows do not have), initial parameters and running statistics, and batches.

    ``layers``: what parameters do not say of the PyTorch module, such as strides, for engines that are written by hand.
    ``dynamic``: engines that can do so quantize rows that are multiplied with weights of integers, each in its own way.
    """

    folder: Path
    batches: list[Arrays]
    parameters: Arrays = field(default_factory=dict)
    statistics: Arrays = field(default_factory=dict)
    layers: dict[str, Any] = field(default_factory=dict)
    dynamic: bool = False

    @property
    def model(self) -> Path:
        """The ONNX file."""
        return self.folder / MODEL

    def write(self, model: bytes | None) -> None:
        """Write everything into the folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        groups = {"parameters": self.parameters, "statistics": self.statistics}
        groups |= {str(index): batch for index, batch in enumerate(self.batches)}
        arrays = {f"{group} {name}": array for group, named in groups.items() for name, array in named.items()}
        with (self.folder / ARRAYS).open("wb") as file:  # names of arrays may be those of arguments of savez
            np.savez(file, allow_pickle=False, **arrays)
        facts = {"layers": self.layers, "dynamic": self.dynamic}
        (self.folder / FACTS).write_text(json.dumps(facts), encoding="utf-8")
        if model is not None:
            self.model.write_bytes(model)

    @classmethod
    def read(cls, folder: Path) -> Prepared:
        """What :meth:`write` wrote."""
        groups: dict[str, Arrays] = {"parameters": {}, "statistics": {}}
        with np.load(folder / ARRAYS) as arrays:
            for key in arrays.files:
                group, _, name = key.partition(" ")
                groups.setdefault(group, {})[name] = arrays[key]
        facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
        parameters, statistics = groups.pop("parameters"), groups.pop("statistics")
        batches = [groups[key] for key in sorted(groups, key=int)]
        return cls(folder, batches, parameters, statistics, facts["layers"], facts["dynamic"])
