"""Bundles in Python: they train as trainers do, give and take weights, and say what is wrong."""

from __future__ import annotations

import ast
import ctypes
import json
import subprocess
import sys
import threading
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import glowtrain as gt
from glowtrain.bundles.faces.python import loader
from glowtrain.errors import BundleError
from tests.bundles.small_bundles import BATCH, digits, halves, odd_batch, odd_names, same, trainer, written
from tests.compiler.networks import mlp


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("mlp"))


def test_steps_and_predictions_are_the_trainer_s(folder: Path) -> None:
    own, loaded = trainer(), gt.load_bundle(folder)
    for seed, lr in ((1, 0.01), (2, 0.1), (3, 0.01)):
        own.hyper["lr"] = lr
        assert loaded.step(**digits(seed), lr=lr) == own.step(digits(seed))
    assert same(dict(loaded.variables), own.variables())
    x = digits(4)["x"]
    (expected,) = gt.compile(own.model())({"x": x}).values()
    (found,) = loaded.predict(x=x).values()
    assert found.dtype == expected.dtype
    assert found.tobytes() == expected.tobytes()


def test_instances_share_nothing(folder: Path) -> None:
    one = gt.load_bundle(folder)
    start = dict(one.variables)
    other = one.another()
    loss = one.step(**digits(1))
    assert same(dict(other.variables), start)
    assert other.step(**digits(1)) == loss
    one.step(**digits(2))
    assert not same(dict(one.variables), dict(other.variables))
    one.reset()
    assert same(dict(one.variables), start)


def test_hyperparameters_stay_or_are_for_one_step(folder: Path) -> None:
    one, other = gt.load_bundle(folder), gt.load_bundle(folder)
    assert one.hyper["lr"] == 0.01
    one.step(**digits(1), lr=0.5)
    other.hyper["lr"] = 0.5
    other.step(**digits(1))
    assert same(dict(one.variables), dict(other.variables))
    one.step(**digits(2))
    other.step(**digits(2))
    assert not same(dict(one.variables), dict(other.variables))


def test_weights_go_from_a_bundle_to_a_trainer_and_back(folder: Path, tmp_path: Path) -> None:
    loaded, own = gt.load_bundle(folder), trainer()
    loaded.step(**digits(1))
    loaded.save(tmp_path / "trained.safetensors")
    own.set_variables(load_file(tmp_path / "trained.safetensors"))
    assert same(dict(loaded.variables), own.variables())
    own.step(digits(2))
    gt.save_bundle_weights(folder, own.variables(), tmp_path / "more.safetensors")
    loaded.load(tmp_path / "more.safetensors")
    assert same(dict(loaded.variables), own.variables())
    loaded.reset()
    loaded.variables.update(own.variables())
    assert same(dict(loaded.variables), own.variables())
    assert {path.name for path in tmp_path.iterdir()} == {"trained.safetensors", "more.safetensors"}


def test_weights_of_a_trainer_whose_layers_are_frozen(tmp_path: Path) -> None:
    own = gt.Trainer(mlp, "softmax_cross_entropy", gt.optim.SGD(0.1), trainable=["head.*"])
    loaded = gt.load_bundle(written(tmp_path / "b", own, dims={"batch": BATCH}))
    assert "hidden.weight" not in loaded.variables
    own.step(digits(1))
    gt.save_bundle_weights(tmp_path / "b", own.variables(), tmp_path / "w")
    loaded.load(tmp_path / "w")
    (expected,) = gt.compile(own.model())({"x": digits(2)["x"]}).values()
    (found,) = loaded.predict(x=digits(2)["x"]).values()
    assert found.tobytes() == expected.tobytes()


def test_variables_are_a_mapping(folder: Path) -> None:
    variables = gt.load_bundle(folder).variables
    assert len(variables) == len(list(variables)) == len(variables.roles)
    assert "head.bias" in variables
    assert variables.roles["head.bias"] == "parameter"
    assert variables.roles["head.bias.adam.m"] == "state"
    assert variables["optimizer.step"].shape == ()
    variables["head.bias"] = np.arange(10, dtype=np.float32)
    copy = variables["head.bias"]
    copy[...] = 0
    assert variables["head.bias"].tolist() == list(range(10))
    assert "parameter  head.bias: f32[10]" in repr(variables)
    with pytest.raises(KeyError):
        variables["head"]


def test_nothing_is_set_where_one_does_not_fit(folder: Path) -> None:
    variables = gt.load_bundle(folder).variables
    before = dict(variables)
    good = {"head.bias": np.ones(10, np.float32)}
    with pytest.raises(BundleError, match=r"'hidden.bias' must be f32\[24\], not float32\[10\]"):
        variables.update({**good, "hidden.bias": np.ones(10, np.float32)})
    with pytest.raises(BundleError, match=r"no variable 'head.bia'; did you mean 'head.bias'\?"):
        variables.update({**good, "head.bia": np.ones(10, np.float32)})
    assert same(dict(variables), before)


def test_hyperparameters_that_there_are_not(folder: Path) -> None:
    loaded = gt.load_bundle(folder)
    before = dict(loaded.variables)
    for assign in (lambda hyper: hyper.update(lr=0.1, lrr=0.1), lambda hyper: hyper.__setitem__("lrr", 0.1)):
        with pytest.raises(BundleError, match="no hyperparameter 'lrr'; it has lr, weight_decay, beta1, beta2, eps"):
            assign(loaded.hyper)
    assert "lrr" not in loaded.hyper
    assert same(dict(loaded.variables), before)
    loaded.step(**digits(1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": None}, r"mlp.step: input 'labels' is missing, i64\[4\]"),
        ({"x": np.zeros((4, 64), np.float32)}, r"mlp.step: 'x' must be f32\[4,1,8,8\], not float32\[4, 64\]"),
        ({"x": np.zeros((4, 1, 8, 8))}, r"mlp.step: 'x' must be f32\[4,1,8,8\], not float64\[4, 1, 8, 8\]"),
        ({"labels": ["one", "two", "three", "four"]}, r"mlp.step: 'labels' must be i64\[4\]: "),
        ({"labels": [1, 2, 3]}, r"mlp.step: 'labels' must be i64\[4\], not int64\[3\]"),
        ({"rate": 0.1}, r"mlp.step: unknown 'rate'; it takes x, labels, lr, "),
        ({"lr": "fast"}, r"mlp.step: 'lr' must be f32\[\]: "),
        ({"lr": [0.1, 0.2]}, r"mlp.step: 'lr' must be f32\[\], not float32\[2\]"),
    ],
)
def test_inputs_are_checked(folder: Path, change: dict[str, Any], message: str) -> None:
    loaded = gt.load_bundle(folder)
    before = dict(loaded.variables)
    given = {name: value for name, value in {**digits(1), **change}.items() if value is not None}
    with pytest.raises(BundleError, match=message):
        loaded.step(**given)
    assert same(dict(loaded.variables), before)


def test_numbers_and_lists_are_taken(folder: Path) -> None:
    one, other = gt.load_bundle(folder), gt.load_bundle(folder)
    x, labels = digits(1)["x"], digits(1)["labels"]
    assert one.step(x=x.tolist(), labels=labels.tolist(), lr=1) == other.step(x=np.asfortranarray(x), labels=labels)


def test_error_codes_are_raised_by_name(folder: Path, tmp_path: Path) -> None:
    loaded = gt.load_bundle(folder)
    before = dict(loaded.variables)
    with pytest.raises(BundleError, match="mlp: NOT_FINITE: the loss or a hyperparameter is NaN") as failure:
        loaded.step(x=np.full((4, 1, 8, 8), np.nan, np.float32), labels=digits(1)["labels"])
    assert failure.value.code == "NOT_FINITE"  # type: ignore[attr-defined]
    loaded.save(tmp_path / "w")
    (tmp_path / "short").write_bytes((tmp_path / "w").read_bytes()[:-1])
    (tmp_path / "other").write_bytes(b"?" * 100_000)
    for name, code in (("short", "READ_FAILED"), ("other", "OTHER_WEIGHTS")):
        with pytest.raises(BundleError, match=f"{name}: {code}: ") as failure:
            loaded.load(tmp_path / name)
        assert failure.value.code == code  # type: ignore[attr-defined]
    assert same(dict(loaded.variables), before)


def test_files_that_cannot_be_read_or_written(folder: Path, tmp_path: Path) -> None:
    loaded = gt.load_bundle(folder)
    with pytest.raises(BundleError, match="absent: cannot be read: No such file"):
        loaded.load(tmp_path / "absent")
    with pytest.raises(BundleError, match="cannot be written: No such file"):
        loaded.save(tmp_path / "absent" / "w")
    with pytest.raises(BundleError, match="cannot be written: No such file"):
        gt.save_bundle_weights(folder, trainer().variables(), tmp_path / "absent" / "w")


def test_weights_must_be_complete_and_fit(folder: Path, tmp_path: Path) -> None:
    variables = trainer().variables()
    del variables["head.bias"]
    with pytest.raises(BundleError, match="needs values for all of its variables; missing: head.bias"):
        gt.save_bundle_weights(folder, variables, tmp_path / "w")
    with pytest.raises(BundleError, match=r"'head.bias' must be f32\[10\], not float64\[10\]"):
        gt.save_bundle_weights(folder, {**variables, "head.bias": np.zeros(10)}, tmp_path / "w")
    assert not (tmp_path / "w").exists()


def test_a_bundle_that_predicts_only(tmp_path: Path) -> None:
    loaded = gt.load_bundle(written(tmp_path, mlp, dims={"batch": 2}))
    assert len(loaded.variables) == 0
    (scores,) = loaded.predict(x=np.zeros((2, 1, 8, 8), np.float32)).values()
    assert scores.shape == (2, 10)
    with pytest.raises(BundleError, match="mlp has no step; it has predict"):
        loaded.step(x=np.zeros((2, 1, 8, 8), np.float32))


def test_inputs_go_by_their_name_in_the_model_or_in_c(tmp_path: Path) -> None:
    one = gt.load_bundle(written(tmp_path, odd_names()))
    other, batch = one.another(), odd_batch(3)
    in_c = {**batch, "first_input": batch["first/input"]}
    del in_c["first/input"]
    assert one.step(**batch) == other.step(**in_c) == odd_names().step(batch)
    assert 'the "state"' in one.predict(**batch)


def test_element_types_that_numpy_does_not_have(tmp_path: Path) -> None:
    own = gt.Trainer(halves, "mse", gt.optim.SGD(0.1))
    loaded = gt.load_bundle(written(tmp_path, own, dims={"batch": 2}))
    random = np.random.default_rng(5)
    x = random.normal(size=(2, 5)).astype(gt.bf16.numpy)
    target = random.normal(size=(2, 3)).astype(np.float32)
    assert loaded.step(x=x, target=target) == own.step({"x": x, "target": target})
    assert same(dict(loaded.variables), own.variables())
    (bits,) = (each for each in loader.Signature(loaded.manifest["functions"]["predict"], loader.NUMPY).inputs)
    assert bits.dtype == np.uint16
    with pytest.raises(BundleError, match=r"'x' is bf16\[2,5\], passed as its bits: an array of uint16"):
        bits.as_array([[1] * 5] * 2, "", BundleError)


def test_threads_give_the_same_bits_and_calls_take_turns(tmp_path: Path) -> None:
    written(tmp_path, threads=3)
    alone, together = gt.load_bundle(tmp_path), gt.load_bundle(tmp_path, threads=3)
    losses = [alone.step(**digits(1)) for _ in range(6)]
    found: list[float] = []
    threads = [threading.Thread(target=lambda: found.append(together.step(**digits(1)))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted(losses)
    assert same(dict(alone.variables), dict(together.variables))
    with pytest.raises(BundleError, match="mlp was made for 3 threads at most, not 4: bundle it with --threads 4"):
        gt.load_bundle(tmp_path, threads=4)


@pytest.mark.parametrize(("tasks", "each"), [(0, 1), (1, 1), (10, 3), (100, 1), (5, 100)])
def test_work_is_shared_out_once(tasks: int, each: int) -> None:
    """Each task is run once, by threads with numbers of their own, and none in the thread that waits."""
    pool = loader._Pool(3)
    counts, callers, at_once, overlaps = [0] * tasks, set[int](), set[int](), list[int]()

    def body(_: int, thread: int, begin: int, end: int) -> None:
        if thread in at_once:
            overlaps.append(thread)
        at_once.add(thread)
        callers.add(threading.get_ident())
        for task in range(begin, end):
            counts[task] += 1
        at_once.remove(thread)

    native = loader._BODY(body)
    address = ctypes.cast(native, ctypes.c_void_p).value
    assert address is not None
    share = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, *[ctypes.c_size_t] * 2)(
        ctypes.cast(pool.parallel_for, ctypes.c_void_p).value  # type: ignore[arg-type]
    )

    def call() -> int:
        share(None, address, None, tasks, each)
        return 0

    assert pool.call(call) == 0
    assert counts == [1] * tasks
    assert overlaps == []
    assert threading.get_ident() not in callers


def test_folders_without_a_bundle_or_with_several(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="holds no bundle"):
        gt.load_bundle(tmp_path)
    (tmp_path / "settings.json").write_text("[1]")
    for name in ("one", "two"):
        written(tmp_path, mlp, dims={"batch": 2}, name=name)
    with pytest.raises(BundleError, match="holds several bundles, one, two: say which"):
        gt.load_bundle(tmp_path)
    assert gt.load_bundle(tmp_path, "two").name == "two"
    with pytest.raises(BundleError, match="holds no bundle 'three'; it holds one, two$"):
        gt.load_bundle(tmp_path, "three")
    with pytest.raises(BundleError, match="settings.json describes no bundle: it is damaged, or another program's$"):
        gt.load_bundle(tmp_path, "settings")
    with pytest.raises(BundleError, match="absent: there is no such folder$"):
        gt.load_bundle(tmp_path / "absent")
    wrong: Any = None
    with pytest.raises(BundleError, match="the folder of a bundle must be a path, not NoneType"):
        gt.load_bundle(wrong)
    with pytest.raises(loader.CallError, match="one has no shared library: bundle it with --shared"):
        loader.load(tmp_path, "one")


def changed(folder: Path, to: Path, **changes: Any) -> Path:
    """A copy of a bundle whose description says something else."""
    said = json.loads((folder / "mlp.json").read_text())
    to.mkdir()
    (to / "mlp.o").write_bytes((folder / "mlp.o").read_bytes())
    (to / "mlp.json").write_text(json.dumps({**said, **changes}))
    return to


def machine(name: str) -> dict[str, str]:
    return {"name": name, "triple": "other", "cpu": "some"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"interface": 7}, "mlp has version 7 of the interface, not 1: bundle the model again"),
        ({"version": 7}, "mlp.json is of another bundle or version than the machine code"),
        (
            {"target": {"name": "neon", "triple": "aarch64-x", "cpu": "generic"}},
            "mlp is for neon, generic of aarch64-x",
        ),
        (
            {"target": {"name": "host", "triple": "x86", "cpu": "older"}},
            "mlp is for host, older of x86, which .* cannot",
        ),
        ({"target": {"name": "pdp11", "triple": "pdp11", "cpu": "11"}}, "mlp: target 'pdp11' is unknown"),
        ({"files": {"libmlp.so": {}}}, "libmlp.so: cannot be read: "),
    ],
)
def test_bundles_that_do_not_fit(folder: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BundleError, match=message):
        gt.load_bundle(changed(folder, tmp_path / "b", **changes))


def test_an_object_file_that_is_gone(folder: Path, tmp_path: Path) -> None:
    (changed(folder, tmp_path / "b") / "mlp.o").unlink()
    with pytest.raises(BundleError, match="mlp.o: cannot be read: No such file"):
        gt.load_bundle(tmp_path / "b")


def test_the_loader_imports_the_standard_library_and_numpy_alone() -> None:
    tree = ast.parse(Path(loader.__file__).read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert {str(name).partition(".")[0] for name in modules} - sys.stdlib_module_names == {"numpy"}


def test_the_loader_is_imported_without_site_packages(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_bytes(Path(loader.__file__).read_bytes())
    (tmp_path / "numpy").symlink_to(Path(np.__file__).parent, target_is_directory=True)
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import net\n"
        "try: net.load()\n"
        "except net.CallError as error: print(error)\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True)
    said, modules = done.stdout.splitlines()
    assert said == f"{tmp_path} holds no bundle 'net'"
    assert {name for name in modules.split() if not name.startswith("_")} <= {"net", "numpy"}


@pytest.mark.spread(1)
@pytest.mark.parametrize("shared", [False, True])
def test_a_bundle_that_was_made_anew_is_the_new_one(shared: bool, tmp_path: Path) -> None:
    own = trainer()
    for _ in range(2):
        gt.bundle(own, tmp_path, dims={"batch": BATCH}, shared=shared)
        assert same(dict(gt.load_bundle(tmp_path).variables), own.variables())
        own.step(digits(1))


@pytest.mark.parametrize("name", ["lr", "beta1"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_hyperparameters_that_are_no_numbers_change_nothing(folder: Path, name: str, value: float) -> None:
    loaded = gt.load_bundle(folder)
    start = dict(loaded.variables)
    with pytest.raises(BundleError, match="NOT_FINITE"):
        loaded.step(**digits(1), **{name: value})
    assert same(dict(loaded.variables), start)


def test_damaged_code_is_not_loaded(tmp_path: Path) -> None:
    code = written(tmp_path) / "mlp.o"
    content = bytearray(code.read_bytes())
    content[len(content) // 2] ^= 1
    code.write_bytes(content)
    with pytest.raises(BundleError, match="is damaged, or of another bundle"):
        gt.load_bundle(tmp_path)


def test_floats_are_no_labels_and_numpy_s_numbers_are_rates(folder: Path) -> None:
    loaded, batch = gt.load_bundle(folder), digits(1)
    with pytest.raises(BundleError, match="must be i64"):
        loaded.step(x=batch["x"], labels=[0.0, 1.0, 2.5, 3.0])
    for number in ("1", None, Decimal("1.7"), Fraction(3, 2), 1 << 70, 1j):
        with pytest.raises(BundleError, match=r"'labels' must be i64\[4\]: numbers are taken, not text or objects"):
            loaded.step(x=batch["x"], labels=[number] * 4)
        with pytest.raises(BundleError, match="'lr' must be f32"):
            loaded.step(**batch, lr=number)
    tensor = loader.NamedTensor({"name": "mask", "dtype": "bool", "shape": [2]}, loader.NUMPY)
    assert list(tensor.as_array([True, 0], "", BundleError)) == [True, False]
    with pytest.raises(BundleError, match=r"'mask' must be bool\[2\]: numbers are taken, not floats"):
        tensor.as_array([0.5, 0.0], "", BundleError)
    with pytest.raises(BundleError, match=r"'mask' must be bool\[2\]: 2 is out of range"):
        tensor.as_array([2, 0], "", BundleError)
    with pytest.raises(BundleError, match=r"'x' must be f32\[4,1,8,8\]: 1e\+39 is out of range"):
        loaded.step(x=np.full((4, 1, 8, 8), 1e39).tolist(), labels=batch["labels"])
    with pytest.raises(BundleError, match="what is masked has no value"):
        loaded.step(x=np.ma.masked_less(batch["x"], 0.5), labels=batch["labels"])
    assert loaded.step(**batch, lr=np.float64(0.01)) == trainer().step(batch)


def test_trainers_with_metrics(tmp_path: Path) -> None:
    own = gt.Trainer(mlp, "softmax_cross_entropy", gt.optim.Adam(1e-2), metrics=True)
    loaded = gt.load_bundle(written(tmp_path, own, dims={"batch": BATCH}))
    assert loaded.step(**digits(1)) == own.step(digits(1))
    assert loaded.measured == own.measured


def test_other_faces_have_no_metrics(tmp_path: Path) -> None:
    own = gt.Trainer(mlp, "softmax_cross_entropy", gt.optim.Adam(1e-2), metrics=True)
    with pytest.raises(BundleError, match="faces for rust take steps without metrics"):
        written(tmp_path, own, dims={"batch": BATCH}, faces=["rust"])
