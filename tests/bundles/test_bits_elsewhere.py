"""``glowtrain verify`` on other processors and against other machines: what differs is named."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import glowtrain as gt
from glowtrain.backends.cpu.backend import Cpu
from glowtrain.backends.target import Target
from glowtrain.bundles.module import BundleModule
from glowtrain.bundles.verify.example_runner import ExampleRunner, parsed
from glowtrain.bundles.verify.record import Record, check_against, difference, record_of, require_same
from glowtrain.bundles.verify.trace import BatchGenerator, backend_like, checksum, trace_of
from glowtrain.cli import app
from glowtrain.errors import BundleError, VerificationError
from tests.bundles.in_process import Loaded, compiled, contents
from tests.bundles.networks import BATCH, CASES

HERE = Cpu(cache=None)
MLP = contents(CASES["mlp"]().trainer, dims={"batch": BATCH}).fixed()


def test_batches_are_words_of_the_generator() -> None:
    words, last, expected = BatchGenerator(7), 7, []
    for _ in range(24):
        last = (last * 1664525 + 1013904223) % 2**32
        expected.append(last >> 24)
    first, second = words.batch(gt.f32[3, 4]), words.batch(gt.i64[12])
    assert first.ravel().tolist() == [(word - 128) / 64 for word in expected[:12]]
    assert second.tolist() == [word & 1 for word in expected[12:]]
    assert words.batch(gt.f32[0]).size == 0


def test_what_a_program_prints_is_read_back() -> None:
    trace = trace_of(MLP, HERE, 2)
    module = compiled(MLP)
    numbers = {slot.name: number for number, slot in enumerate(module.memory.slots)}
    lines = []
    for line, step in zip(str(trace).splitlines(), (*trace.steps, None), strict=True):
        lines.append(line)
        lines += [f"variable {numbers[name]}: {bits}" for name, bits in (step.variables if step else {}).items()]
    assert parsed("\n".join(lines), module) == trace
    with pytest.raises(BundleError, match="the program printed 'init: too small', which is no result"):
        parsed("init: too small", module)


def printed(steps: int) -> tuple[list[str], BundleModule]:
    """What an example prints line by line, with every variable."""
    trace, module = trace_of(MLP, HERE, steps), compiled(MLP)
    lines = str(trace).splitlines()
    for number, step in reversed(list(enumerate(trace.steps, 1))):
        numbers = {slot.name: each for each, slot in enumerate(module.memory.slots)}
        lines[number:number] = [f"variable {numbers[name]}: {bits}" for name, bits in step.variables.items()]
    return lines, module


def test_a_program_that_ends_early_is_not_one_that_computes_other_bits() -> None:
    lines, module = printed(2)
    assert len(parsed("\n".join(lines), module).steps) == 2
    for kept in range(len(lines)):
        with pytest.raises(BundleError, match="the program ended early, (in|after) .*: it printed no "):
            parsed("\n".join(lines[:kept]), module)
    with pytest.raises(BundleError, match="the program ended early, after 2 steps: it printed no predict: output"):
        parsed("\n".join(lines[:-1]), module)


@pytest.mark.parametrize("lines", [["variable 0: 00000000"], ["step 1: loss 0, variables 0", "variable 99: 00000000"]])
def test_variables_that_are_none(lines: list[str]) -> None:
    with pytest.raises(BundleError, match=r"the program printed 'variable \d+: 00000000', which is no result"):
        parsed("\n".join(lines), compiled(MLP))


def test_a_record_comes_back(tmp_path: Path) -> None:
    record = record_of(MLP, trace_of(MLP, HERE, 2, seed=3), 3)
    record.write(tmp_path / "record.json")
    assert Record.read(tmp_path / "record.json") == record
    check_against(record, record)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": "glowtrain.trace.1"}', '{"format": "other"}', "\x00"])
def test_what_is_no_record_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text(content)
    with pytest.raises(BundleError, match="is no record of glowtrain verify --record"):
        Record.read(tmp_path / "record.json")


def test_records_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="cannot be read: No such file"):
        Record.read(tmp_path / "none.json")
    with pytest.raises(BundleError, match="cannot be written"):
        record_of(MLP, trace_of(MLP, HERE, 1), 0).write(tmp_path)


def test_the_first_difference_is_named() -> None:
    here = trace_of(MLP, HERE, 3)
    assert difference(here, here) == ""
    first, second, third = here.steps
    name = sorted(second.variables)[1]
    other = replace(second, variables={**second.variables, name: "0"}, saved="0")
    changed = replace(here, steps=(first, other, replace(third, loss="0")))
    assert difference(here, changed) == f"function step, step 2: variable {name} differs after it"
    changed = replace(here, steps=(first, second, replace(third, loss="ff")))
    assert difference(here, changed) == f"function step, step 3: the loss is {third.loss} here, ff there"
    assert difference(here, replace(here, steps=(first, second))) == "step 3 is missing there"
    bits = here.outputs["predict"]["output"]
    changed = replace(here, outputs={"predict": {"output": "0"}})
    assert difference(here, changed) == f"function predict, output output: {bits} here, 0 there"
    with pytest.raises(VerificationError, match="mlp: there computes other bits than this machine: function predict"):
        require_same("mlp", here, changed, "there")


@pytest.mark.exhaustive
def test_a_record_of_another_model_seed_or_length_is_refused() -> None:
    record = record_of(MLP, trace_of(MLP, HERE, 2), 0)
    other = contents(CASES["lstm"]().trainer, dims={"batch": BATCH}).fixed()
    with pytest.raises(BundleError, match="the record is of mlp .* this is lstm"):
        check_against(record, record_of(other, trace_of(other, HERE, 2), 0))
    with pytest.raises(BundleError, match="with seed 0, this is mlp .* with seed 1"):
        check_against(record, record_of(MLP, trace_of(MLP, HERE, 2, 1), 1))
    with pytest.raises(BundleError, match="the record has 2 steps: --steps 2"):
        check_against(record, record_of(MLP, trace_of(MLP, HERE, 3), 0))


def test_values_at_the_start_count_in_a_record() -> None:
    trainer = CASES["mlp"]().trainer
    trainer.set_variables({name: np.zeros_like(array) for name, array in trainer.parameters().items()})
    zeros = contents(trainer, dims={"batch": BATCH}).fixed()
    with pytest.raises(BundleError, match="give the same model and options"):
        check_against(record_of(MLP, trace_of(MLP, HERE, 1), 0), record_of(zeros, trace_of(zeros, HERE, 1), 0))


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", ["host", "scalar", "avx2", "sse4", "generic"])
def test_a_target_computes_what_is_expected_of_it(name: str) -> None:
    target = Target.named(name)
    if not target.runs_here:
        return
    instance, words = Loaded(compiled(MLP, target=target)).instance(), BatchGenerator()
    for step in trace_of(MLP, backend_like(target), 3).steps:
        batch = {each.source: words.batch(each.type) for each in instance.function("step").inputs}
        assert instance.run("step", batch)["loss"].tobytes()[::-1].hex() == step.loss
        assert {variable: checksum(value) for variable, value in instance.values().items()} == step.variables


# ---- programs that are built and run


def test_what_cannot_be_built_or_run() -> None:
    module = compiled(MLP)
    with pytest.raises(BundleError, match="no-such-compiler cannot be run: No such file"):
        ExampleRunner("no-such-compiler").trace(module, 1)
    with pytest.raises(BundleError, match="false .* failed with status 1"):
        ExampleRunner("false").trace(module, 1)
    with pytest.raises(BundleError, match="does not say where the program stands"):
        ExampleRunner("true", "emulator").trace(module, 1)
    with pytest.raises(BundleError, match="true ended well and wrote no program"):
        ExampleRunner("true", "{}").trace(module, 1)


COMPILER = shutil.which("cc")
"""Python's own tests need none; on machines that have one the program is run."""


def test_a_program_built_here_computes_what_python_does() -> None:
    if COMPILER is not None:
        there = ExampleRunner(COMPILER).trace(compiled(MLP), 3, seed=5)
        assert difference(trace_of(MLP, HERE, 3, seed=5), there) == ""


# ---- the command


def verify(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["verify", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join(result.output.split())


def test_a_machine_records_and_another_compares(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    assert verify("mlp", "--train", "--steps", 2, "--record", file) == (
        0, f"not bound: batch; taking batch=4 (--dims batch=N for another) {file}: 2 steps and predict"
    )  # fmt: skip
    status, said = verify("mlp", "--train", "--steps", 2, "--against", file)
    assert status == 0
    assert said.endswith(f"mlp: 2 steps and predict: the bits of {file}")
    record = json.loads(file.read_text())
    name = next(iter(record["trace"]["steps"][1]["variables"]))
    record["trace"]["steps"][1]["variables"][name] = "00000000"
    file.write_text(json.dumps(record))
    status, said = verify("mlp", "--train", "--steps", 2, "--against", file)
    assert status == 1
    assert f"function step, step 2: variable {name} differs after it" in said
    assert record["machine"] in said


def test_a_target_needs_a_compiler_and_options_need_a_target() -> None:
    status, said = verify("mlp", "--target", "host", "--cc", "no-such-compiler")
    assert (status, "no-such-compiler cannot be run" in said) == (1, True)
    status, said = verify("mlp", "--target", "z80")
    assert (status, "target 'z80' is unknown" in said) == (1, True)
    status, said = verify("mlp", "--run", "qemu {}")
    assert (status, "--cc and --run are for a bundle: name its --target" in said) == (1, True)


@pytest.mark.parametrize("arguments", [["--optimizer", "sgd"], ["--loss", "mse"], ["--steps", 3, "--target", "host"]])
def test_options_of_training_are_for_what_trains(arguments: list[object]) -> None:
    status, said = verify("mlp", *arguments)
    assert status == 1
    assert f"error: {arguments[0]}: nothing is trained without --train" in said


def test_the_ladder_takes_one_step() -> None:
    status, said = verify("mlp", "--train", "--steps", 3)
    assert (status, "--steps is for --target, --record and --against" in said) == (1, True)


@pytest.mark.exhaustive
def test_several_targets_are_all_looked_at(tmp_path: Path) -> None:
    status, said = verify("mlp", "--target", "z80", "--target", "host")
    assert (status, "target 'z80' is unknown" in said) == (1, True)
    status, said = verify("mlp", "--target", "host", "--target", "sse4", "--record", tmp_path / "record.json")
    assert (status, "give one --target at most" in said) == (1, True)
    if COMPILER is not None:
        given = "--train", "--cc", COMPILER, "--steps", 1, "--batch", 2
        status, said = verify("mlp", "--target", "sse4", "--target", "host", *given)
        assert status == 0, said
        assert [f"the same bits on {name} ({{}}) as here" in said for name in ("sse4", "host")] == [True, True]


@pytest.mark.exhaustive
def test_the_batch_is_chosen(tmp_path: Path) -> None:
    records = []
    for given in (("--batch", 3), ("--dims", "batch=3"), ("--batch", 2)):
        status, said = verify("mlp", *given, "--record", tmp_path / "record.json")
        assert status == 0
        assert "not bound" not in said
        records.append(json.loads((tmp_path / "record.json").read_text())["trace"])
    assert records[0] == records[1] != records[2]
    status, said = verify("mlp", "--batch", 3, "--dims", "batch=3")
    assert (status, "--batch binds the batch, where nothing else is open" in said) == (1, True)


@pytest.mark.exhaustive
def test_a_target_is_compared_with_this_machine() -> None:
    if COMPILER is not None:
        status, said = verify("mlp", "--train", "--target", "host", "--cc", COMPILER, "--steps", 2)
        assert status == 0
        assert said.endswith("mlp: 2 steps and predict: the same bits on host ({}) as here")
