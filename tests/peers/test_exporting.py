"""The exports that docs/exporting.md tells people to write, as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import glowtrain as gt

PAGE = Path(__file__).resolve().parents[2] / "docs" / "exporting.md"
EXPORTS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_there_is_one_of_each_exporter() -> None:
    assert ["dynamo=False" in export for export in EXPORTS] == [False, True]


@pytest.mark.parametrize("export", EXPORTS, ids=["dynamo", "legacy"])
def test_every_parameter_trains_under_its_name(export: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    exec(export, {"torch": torch, "module": module, "x": torch.zeros(2, 1, 8, 8)})
    trainer = gt.Trainer(gt.load("model.onnx"), gt.losses.softmax_cross_entropy(), gt.optim.Adam())
    assert set(trainer.parameters()) == {name for name, _ in module.named_parameters()}
    x, labels = np.ones((5, 1, 8, 8), np.float32), np.arange(5) % 3
    trainer.fit((x, labels), epochs=2, batch_size=3)
    assert trainer.predict(x)["scores"].shape == (5, 3)
