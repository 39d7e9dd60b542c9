"""Variables of bundles: set, got, reset, moved between bundles in files; those that nobody knows yet."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from safetensors.numpy import load as load_safetensors

from glowtrain.bundles.codes import ErrorCode
from glowtrain.bundles.interface.variables import ROLES
from glowtrain.bundles.weights import file_of
from tests.bundles.in_process import Instance, trainer_and_bundle
from tests.bundles.networks import CASES


def instance_of(name: str, *, known: bool = True) -> Instance:
    return trainer_and_bundle(CASES[name]().trainer, known=known)[1].instance()


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", CASES)
def test_what_is_set_is_what_is_got(name: str) -> None:
    instance = instance_of(name)
    random, wanted = np.random.default_rng(0), {}
    for slot in instance.module.memory.slots:
        raw = random.integers(0, 256, slot.type.nbytes, np.uint8)
        wanted[slot.name] = raw.view(slot.type.dtype.numpy).reshape(slot.type.shape)
        assert instance.set(slot.name, wanted[slot.name]) == 0
    assert {n: v.tobytes() for n, v in instance.values().items()} == {n: v.tobytes() for n, v in wanted.items()}


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", CASES)
def test_reset_and_a_file_bring_back_what_was(name: str) -> None:
    case = CASES[name]()
    instance = trainer_and_bundle(case.trainer)[1].instance()
    start = instance.variables.tobytes()
    assert {n: v.tobytes() for n, v in instance.values().items()} == {
        n: case.trainer.variables()[n].tobytes() for n in instance.values()
    }
    instance.run("step", case.batch(np.random.default_rng(1)))
    after, (code, file) = instance.variables.tobytes(), instance.saved()
    assert code == 0
    assert after != start
    assert instance.loaded.call("reset", instance.address) == 0
    assert instance.variables.tobytes() == start
    assert instance.load(file) == 0
    assert instance.variables.tobytes() == after
    assert file == file_of(instance.values())


@pytest.mark.exhaustive
def test_weights_that_were_left_out_are_nan_until_they_are_loaded() -> None:
    case = CASES["cnn"]()
    _, loaded = trainer_and_bundle(case.trainer, known=False)
    instance, batch = loaded.instance(), case.batch(np.random.default_rng(1))
    for slot in loaded.module.memory.slots:
        unknown = slot.role != "state" and slot.type.dtype.is_float
        assert np.isnan(instance.get(slot.name)).all() == unknown, slot.name
    assert {instance.tried(name, batch)[0] for name in ("step", "predict")} == {ErrorCode.NO_WEIGHTS}
    known = trainer_and_bundle(CASES["cnn"]().trainer)[1].instance()
    _, file = known.saved()
    assert instance.load(file) == 0
    assert float(instance.run("step", batch)["loss"]) == case.trainer.step(batch)


@pytest.mark.parametrize("name", ["cnn", "f64", "f16", "bf16"])
def test_nothing_runs_before_all_weights_are_set(name: str) -> None:
    """Also a single one that is missing: an index of the largest would be some number, made of NaN."""
    case = CASES[name]()
    _, loaded = trainer_and_bundle(case.trainer, known=False)
    batch, slots = case.batch(np.random.default_rng(1)), loaded.module.memory.slots
    for missing in (slot for slot in slots if slot.role != "state"):
        instance = loaded.instance()
        for slot in slots:
            if slot is not missing:
                assert instance.set(slot.name, slot.initial) == 0
        assert instance.tried("predict", batch)[0] == ErrorCode.NO_WEIGHTS, missing.name
        one = np.full(missing.type.shape, np.nextafter(missing.initial.dtype.type(1), 0))  # its last bits are ones
        assert instance.set(missing.name, one.astype(missing.initial.dtype)) == 0
        assert instance.tried("predict", batch)[0] == 0


def test_the_object_with_weights_and_without_read_the_same_files() -> None:
    one, two = instance_of("frozen", known=False), instance_of("cnn", known=False)
    names = set(load_safetensors(one.saved()[1]))
    assert {"conv.weight", "linear.weight"} <= names
    assert names < set(load_safetensors(two.saved()[1])) | {"conv.bias"}


def test_what_is_not_trained_is_no_variable() -> None:
    instance = instance_of("frozen")
    names = {slot.name for slot in instance.module.memory.slots}
    assert "linear.weight" in names
    assert not any(name.startswith(("conv", "batch_norm")) for name in names)


def test_the_table_of_variables_says_where_they_are() -> None:
    instance = instance_of("several")
    module = instance.module
    struct, slots = module.interface.variable, module.memory.slots
    library = instance.loaded.exported("variables")
    for number, slot in enumerate(slots):
        row = library + number * struct.size
        read = {name: _field(row + struct.offset(name), type_.text) for name, type_ in struct.fields.items()}
        assert ctypes.string_at(read["name"]).decode() == slot.name
        assert ctypes.string_at(read["type"]).decode() == slot.type.dtype.name
        assert ROLES[read["role"]] == slot.role
        assert (read["size"], read["rank"]) == (slot.type.dtype.size, slot.type.rank)
        assert (read["elements"], read["offset"]) == (slot.type.size, slot.offset)
        shape = (ctypes.c_uint32 * slot.type.rank).from_address(read["shape"])
        assert tuple(shape) == slot.type.shape
        strides = (ctypes.c_uint32 * slot.type.rank).from_address(read["strides"])
        assert tuple(strides) == slot.strides


def _field(address: int, type_: str) -> int:
    kind = ctypes.c_uint32 if type_ == "i32" else ctypes.c_size_t
    return kind.from_address(address).value
