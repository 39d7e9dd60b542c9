"""Every error code of the C interface: what provokes it, and that nothing has changed then."""

from __future__ import annotations

import ctypes
import json
from functools import cache

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.bundles.codes import ErrorCode
from glowtrain.graph import Graph, Input
from glowtrain.types import Array
from tests.bundles.in_process import READ, WRITE, Instance, Loaded, compiled, contents, trainer_and_bundle
from tests.bundles.networks import CASES, Batch

NAME = "head.weight"


@cache
def loaded() -> Loaded:
    return trainer_and_bundle(CASES["mlp"]().trainer)[1]


@cache
def other() -> Loaded:
    return trainer_and_bundle(CASES["lstm"]().trainer)[1]


def batch(seed: int = 3) -> Batch:
    return CASES["mlp"]().batch(np.random.default_rng(seed))


def bits(instance: Instance) -> bytes:
    """All that an instance knows."""
    return instance.handle.tobytes() + instance.variables.tobytes()


def trained() -> Instance:
    """An instance after a step."""
    instance = loaded().instance()
    instance.run("step", batch())
    return instance


@pytest.mark.parametrize("code", [*ErrorCode, 99])
def test_every_code_has_a_text(code: int) -> None:
    text = loaded().call("error", ctypes.c_uint32(code), result=ctypes.c_char_p).decode()
    assert text == (ErrorCode(code).text if code in set(ErrorCode) else "no error code")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"version": 0}, ErrorCode.OTHER_VERSION),
        ({"variables": 0}, ErrorCode.NULL_POINTER),
        ({"arena": 0}, ErrorCode.NULL_POINTER),
    ],
)
def test_memory_that_init_refuses(changes: dict[str, int], code: ErrorCode) -> None:
    instance = Instance(loaded())
    before = bits(instance)
    assert instance.init(**changes) == code
    assert bits(instance) == before


@pytest.mark.parametrize("which", ["variables", "arena"])
def test_memory_that_is_too_small_or_misaligned(which: str) -> None:
    instance = Instance(loaded())
    before, piece = bits(instance), getattr(instance, which)
    assert instance.init(**{f"{which}_bytes": piece.nbytes - 1}) == ErrorCode.TOO_SMALL
    for beside in (1, 4, 32):
        assert instance.init(**{which: piece.ctypes.data + beside}) == ErrorCode.MISALIGNED
    assert bits(instance) == before
    assert instance.init(**{f"{which}_bytes": piece.nbytes + 1}) == ErrorCode.OK


def test_variables_and_arena_that_overlap_are_refused() -> None:
    instance = Instance(loaded())
    line, variables, arena = (loaded().module.memory.alignment, instance.variables.nbytes, instance.arena.nbytes)
    room = np.zeros(2 * (variables + arena) + line, np.uint8)
    begin = -(-(room.ctypes.data + arena) // line) * line
    for beside, apart in (
        (0, False),
        (variables - line, False),
        (variables, True),
        (line - arena, False),
        (-arena, True),
    ):
        code = instance.init(variables=begin, arena=begin + beside)
        assert code == (ErrorCode.OK if apart else ErrorCode.OVERLAP), beside


def test_the_memory_of_another_bundle_is_refused() -> None:
    assert Instance(loaded()).init(version=other().module.version) == ErrorCode.OTHER_VERSION


def test_null_pointers_are_refused() -> None:
    instance = trained()
    before, at = bits(instance), instance.address
    room = np.zeros(1 << 16, np.uint8).ctypes.data
    one, size = ctypes.c_uint32(0), ctypes.c_size_t(4)
    calls = [
        ("init", None, room), ("init", at, None), ("reset", None), ("get", None, one, room, size),
        ("get", at, one, None, size), ("set", at, one, None, size), ("save", None, WRITE(_none), None),
        ("save", at, None, None), ("load", None, READ(_none), None), ("load", at, None, None),
        ("step", None, room, room, None, None), ("step", at, None, room, None, None),
        ("step", at, room, None, None, None), ("predict", at, None, room), ("predict", at, room, None),
    ]  # fmt: skip
    for name, *arguments in calls:
        assert loaded().call(name, *arguments) == ErrorCode.NULL_POINTER, (name, arguments)
    assert bits(instance) == before


def test_arrays_without_elements_may_be_null() -> None:
    """As those of an empty vector of C++ are."""
    x = Input(gt.f32[0, 3], "x")
    instance = Loaded(compiled(contents(Graph((x,), {"y": x * x}, {}, name="empty")))).instance()
    assert instance.loaded.call("predict", instance.address, None, None) == ErrorCode.OK


def _none(*_: int) -> int:
    raise AssertionError("the callback was called")


def test_a_handle_that_was_not_made_ready_is_refused() -> None:
    instance = Instance(loaded())
    before = bits(instance)
    room = np.zeros(1 << 16, np.uint8).ctypes.data
    one, size = ctypes.c_uint32(0), ctypes.c_size_t(4)
    calls = [
        ("reset",), ("get", one, room, size), ("set", one, room, size), ("save", WRITE(_none), None),
        ("load", READ(_none), None), ("step", room, room, None, None), ("predict", room, room),
    ]  # fmt: skip
    for name, *arguments in calls:
        assert loaded().call(name, instance.address, *arguments) == ErrorCode.NOT_INITIALISED, name
    assert bits(instance) == before


def test_a_handle_of_another_bundle_is_refused() -> None:
    assert loaded().call("reset", other().instance().address) == ErrorCode.NOT_INITIALISED


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_a_loss_that_is_not_finite_changes_no_variable(number: float) -> None:
    instance = trained()
    before = bits(instance)
    bad = {**batch(), "x": np.full((4, 1, 8, 8), number, np.float32)}
    code, outputs = instance.tried("step", bad)
    assert code == ErrorCode.NOT_FINITE
    assert not np.isfinite(outputs["loss"])
    assert bits(instance) == before
    assert instance.tried("step", batch())[0] == ErrorCode.OK


def test_a_step_needs_no_place_for_its_loss() -> None:
    one, two = trained(), trained()
    arrays = [np.ascontiguousarray(batch(5)["x"], np.float32), np.ascontiguousarray(batch(5)["labels"], np.int64)]
    assert loaded().call("step", one.address, *(array.ctypes.data for array in arrays), None, None) == ErrorCode.OK
    two.run("step", batch(5))
    assert one.variables.tobytes() == two.variables.tobytes()
    arrays[0][...] = np.nan
    code = loaded().call("step", one.address, *(array.ctypes.data for array in arrays), None, None)
    assert code == ErrorCode.NOT_FINITE


def test_variables_that_there_are_not_and_other_sizes() -> None:
    instance = trained()
    before, place = bits(instance), loaded().module.memory.by_name[NAME]
    room = np.zeros(place.type.nbytes, np.uint8)
    number, size = ctypes.c_uint32(instance.find(NAME)), place.type.nbytes
    count = len(loaded().module.memory.slots)
    for name in ("get", "set"):
        for wrong in (count, count + 1, 0xFFFFFFFF):
            arguments = ctypes.c_uint32(wrong), room.ctypes.data, ctypes.c_size_t(size)
            assert loaded().call(name, instance.address, *arguments) == ErrorCode.NO_SUCH_VARIABLE
        for bytes_ in (0, size - 1, size + 1, size + (1 << 32)):
            arguments = number, room.ctypes.data, ctypes.c_size_t(bytes_)
            assert loaded().call(name, instance.address, *arguments) == ErrorCode.WRONG_SIZE
    assert bits(instance) == before
    assert not room.any()


def test_names_that_no_variable_has() -> None:
    instance, count = trained(), len(loaded().module.memory.slots)
    for name in (None, "", NAME[:-1], f"{NAME}s", "unknown"):
        assert instance.find(name) == count
    numbers = [instance.find(place.name) for place in loaded().module.memory.slots]
    assert numbers == list(range(count))


# ---- files


def header(file: bytes) -> int:
    return 8 + int.from_bytes(file[:8], "little")


def places(file: bytes) -> list[int]:
    """Numbers of bytes at which a file may break: all of the header's end, and some of each part."""
    end = header(file)
    return sorted({*range(0, 20), *range(end - 20, end + 20), *range(end, len(file), 251), len(file) - 1})


def test_a_callback_that_writes_no_more_ends_saving() -> None:
    instance = trained()
    before, (code, file) = bits(instance), instance.saved()
    assert code == ErrorCode.OK
    for at in places(file):
        assert instance.saved(fails_at=at) == (ErrorCode.WRITE_FAILED, file[:at])
    assert bits(instance) == before


def test_a_file_that_ends_early_changes_nothing() -> None:
    _, file = trained().saved()
    instance = loaded().instance()
    before = bits(instance)
    for at in places(file):
        assert instance.load(file[:at]) == ErrorCode.READ_FAILED
    assert bits(instance) == before
    assert instance.load(file) == ErrorCode.OK
    assert instance.variables.tobytes() == trained().variables.tobytes()


def test_a_callback_that_fails_before_all_was_seen_changes_nothing() -> None:
    _, file = trained().saved()
    instance = loaded().instance()
    before = bits(instance)
    for at in places(file):
        assert instance.load(file, fails_at=at) == ErrorCode.READ_FAILED
    assert bits(instance) == before
    assert instance.load(file, fails_at=2 * len(file) - header(file) - 1) == ErrorCode.READ_FAILED
    assert bits(instance) != before


def test_files_of_other_models_change_nothing() -> None:
    _, file = trained().saved()
    _, of_other = other().instance().saved()
    instance = loaded().instance()
    before = bits(instance)
    assert instance.load(of_other) == ErrorCode.OTHER_WEIGHTS
    for at in range(header(file)):
        changed = file[:at] + bytes([file[at] ^ 1]) + file[at + 1 :]
        assert instance.load(changed) == ErrorCode.OTHER_WEIGHTS, at
    assert bits(instance) == before


def test_a_saved_file_is_safetensors() -> None:
    instance = trained()
    _, file = instance.saved()
    said = json.loads(file[8 : header(file)])
    data = file[header(file) :]
    for place in loaded().module.memory.slots:
        begin, end = said[place.name]["data_offsets"]
        array: Array = np.frombuffer(data[begin:end], place.type.dtype.numpy).reshape(said[place.name]["shape"])
        assert array.tobytes() == instance.get(place.name).tobytes()
