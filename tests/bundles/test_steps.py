"""Steps of bundles have the bits of the trainer's, and touch no memory but what they were given."""

from __future__ import annotations

import numpy as np
import pytest

from tests.bundles.in_process import trainer_and_bundle
from tests.bundles.networks import CASES, Case
from tests.cpu.native_program import Canaries

STEPS = 5


def train_both(case: Case, memory: object = Canaries, threads: int = 1) -> None:
    trainer, loaded = trainer_and_bundle(case.trainer, threads=threads)
    instance = loaded.instance(memory)
    random = np.random.default_rng(1)
    for _ in range(STEPS):
        batch = case.batch(random)
        loss = trainer.step(batch)
        found = instance.run("step", batch)["loss"]
        assert float(found) == loss
        expected = trainer.variables()
        for name, value in instance.values().items():
            assert value.tobytes() == expected[name].tobytes(), name
    inputs = {name: array for name, array in case.batch(random).items() if name in trainer.graphs.specs}
    predicted = trainer.predict(inputs)
    expected_outputs = predicted if isinstance(predicted, dict) else {None: predicted}
    found_outputs = instance.run("predict", inputs)
    for name, array in zip(found_outputs, expected_outputs.values(), strict=True):
        assert found_outputs[name].tobytes() == array.tobytes(), name


@pytest.mark.parametrize("name", CASES)
def test_five_steps_and_a_prediction_have_the_bits_of_the_trainer(name: str) -> None:
    train_both(CASES[name]())
