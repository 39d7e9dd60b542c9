"""The folder of models: versions, configurations, loading and unloading while requests come."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnx
import pytest
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http
from tritonclient.utils import InferenceServerException

import glowtrain as gt
from glowtrain.errors import GlowtrainError, InputError, ModelError
from glowtrain.runtime import HostManager
from glowtrain.serving.repository import ModelOptions, Repository
from glowtrain.serving.rpc.schema import message
from glowtrain.serving.server import Server
from glowtrain.serving.status import status_of
from tests.onnx_io.test_host_parts import classifier
from tests.serving.serving_networks import running, scaled, served


def put(folder: Path, name: str, version: str, factor: float = 2.0) -> Path:
    """A version of a model, which multiplies."""
    path = folder / name / version / "model.onnx"
    path.parent.mkdir(parents=True)
    gt.save(scaled(factor), path)
    return path


def config(folder: Path, name: str, text: str) -> None:
    (folder / name / "config.toml").write_text(text)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    put(tmp_path, "double", "1")
    with served(tmp_path, load=False) as both, running(*both) as server:
        yield server


@pytest.fixture(params=["http", "grpc"])
def client(server: Server, request: pytest.FixtureRequest) -> Iterator[Any]:
    module, port = (over_http, server.port) if request.param == "http" else (over_grpc, server.grpc_port)
    address = f"127.0.0.1:{port}"
    with module.InferenceServerClient(address) as client:
        client.module, client.address = module, address
        yield client


def first(client: Any, name: str, version: str = "") -> float:
    """What a model makes of 1."""
    given = client.module.InferInput("x", [1, 4], "FP32")
    given.set_data_from_numpy(np.ones((1, 4), np.float32))
    return float(client.infer(name, [given], version).as_numpy("y")[0, 0])


def index(client: Any) -> dict[tuple[str, str], str]:
    found = client.get_model_repository_index()
    states = found if isinstance(found, list) else [
        {"name": each.name, "version": each.version, "state": each.state} for each in found.models
    ]  # fmt: skip
    return {(each["name"], each["version"]): each["state"] for each in states}


def test_models_are_loaded_and_unloaded(client: Any, tmp_path: Path) -> None:
    put(tmp_path, "triple", "4", 3.0)
    assert index(client) == {("double", "1"): "READY", ("triple", ""): "UNAVAILABLE"}
    assert (client.is_server_ready(), first(client, "double")) == (True, 2.0)
    client.load_model("triple")
    assert (first(client, "triple"), first(client, "triple", "4")) == (3.0, 3.0)
    client.unload_model("double")
    with pytest.raises(InferenceServerException, match="there is no network 'double'"):
        first(client, "double")
    assert index(client) == {("double", "1"): "UNAVAILABLE", ("triple", "4"): "READY"}
    client.load_model("double")
    assert first(client, "double") == 2.0


def test_the_highest_version_is_served_and_replaces_the_one_before(client: Any, tmp_path: Path) -> None:
    put(tmp_path, "double", "10", 10.0)
    put(tmp_path, "double", "9", 9.0)
    client.load_model("double")
    assert (first(client, "double"), first(client, "double", "10")) == (10.0, 10.0)
    with pytest.raises(InferenceServerException, match="no version '1'"):
        first(client, "double", "1")
    assert index(client) == {("double", "10"): "READY"}


def test_folders_that_write_a_version_in_another_way_are_none(tmp_path: Path) -> None:
    """It would be one of them that is served."""
    for version in ("03", "\N{ARABIC-INDIC DIGIT THREE}", "3"):
        put(tmp_path, "double", version)
    with served(tmp_path) as (service, _):
        assert service.model_metadata("double", None)["versions"] == ["3"]


def test_several_versions_by_configuration(client: Any, tmp_path: Path) -> None:
    put(tmp_path, "double", "2", 20.0)
    config(tmp_path, "double", "versions = [2, 1]\nmax_batch = 4\nmax_delay = 0.5\nqueue = 8\n")
    client.load_model("double")
    assert [first(client, "double", version) for version in ("1", "2", "")] == [2.0, 20.0, 20.0]
    said = client.get_model_metadata("double")
    versions = said["versions"] if isinstance(said, dict) else list(said.versions)
    assert versions == ["1", "2"]


def test_a_lower_version_that_comes_later_is_not_the_one_that_is_meant(client: Any, tmp_path: Path) -> None:
    """What a request without a version gets is the same after a load as after a restart."""
    put(tmp_path, "double", "2", 20.0)
    client.load_model("double")
    config(tmp_path, "double", "versions = [1, 2]")
    client.load_model("double")
    assert [first(client, "double", version) for version in ("1", "2", "")] == [2.0, 20.0, 20.0]


def test_a_model_that_cannot_be_loaded_leaves_the_one_that_is(client: Any, tmp_path: Path) -> None:
    path = put(tmp_path, "double", "2")
    path.write_bytes(b"this is no model")
    with pytest.raises(InferenceServerException, match="model.onnx") as caught:
        client.load_model("double")
    assert str(tmp_path) not in str(caught.value)
    assert first(client, "double") == 2.0
    assert index(client)[("double", "2")] == "UNAVAILABLE"
    assert client.is_server_ready()


def test_a_model_of_strings_is_refused(client: Any, tmp_path: Path) -> None:
    path = tmp_path / "words" / "1" / "model.onnx"
    path.parent.mkdir(parents=True)
    onnx.save(classifier(), path)
    with pytest.raises(InferenceServerException, match="take strings and encoded images") as caught:
        client.load_model("words")
    assert caught.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")


def test_open_dimensions_beside_the_batch_are_to_be_bound(client: Any, tmp_path: Path) -> None:
    @gt.model(x=gt.f32["batch", "time"])
    def steps(x: Any) -> Any:
        return {"y": x * 2.0}

    path = tmp_path / "steps" / "1" / "model.onnx"
    path.parent.mkdir(parents=True)
    gt.save(steps, path)
    with pytest.raises(InferenceServerException, match=r"here by --dims NAME=N, or by dims in config\.toml") as caught:
        client.load_model("steps")
    assert caught.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")
    config(tmp_path, "steps", "dims = {time = 3}")
    client.load_model("steps")
    assert client.is_model_ready("steps")


def test_states_after_one_of_two_versions_could_not_be_read(client: Any, tmp_path: Path) -> None:
    put(tmp_path, "other", "1")
    put(tmp_path, "other", "2").write_bytes(b"this is no model")
    config(tmp_path, "other", "versions = [1, 2]")
    with pytest.raises(InferenceServerException, match="model.onnx"):
        client.load_model("other")
    assert {index(client)[("other", version)] for version in ("1", "2")} == {"UNAVAILABLE"}
    with pytest.raises(InferenceServerException, match="there is no network 'other'"):
        first(client, "other")


@pytest.mark.parametrize("name", ["nothing", "..", ".", "double/1", ""])
def test_only_models_of_the_folder_are_loaded(server: Server, name: str) -> None:
    with over_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        with pytest.raises(InferenceServerException, match="the repository has no model") as caught:
            client.load_model(name)
        assert caught.value.status() == "StatusCode.NOT_FOUND"
        with pytest.raises(InferenceServerException, match="is loaded"):
            client.unload_model(name)


def test_who_asks_again_and_again_and_goes_away_takes_no_threads(server: Server) -> None:
    """What has begun is not begun once more beside it."""
    load = message("RepositoryModelLoadRequest")(model_name="double").SerializeToString()
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/RepositoryModelLoad")
        most = 0
        for _ in range(100):
            with contextlib.suppress(grpc.RpcError):
                call(load, timeout=0.005)
            most = max(most, sum(thread.name == "serving: loading" for thread in threading.enumerate()))
        assert call(load, timeout=60) == b""
    assert most < 5  # threads that are about to end among them


def test_configurations_of_clients_are_refused(client: Any) -> None:
    with pytest.raises(InferenceServerException, match="a model is loaded as its folder says"):
        client.load_model("double", config='{"max_batch_size": 4}')


@pytest.mark.parametrize("version", ["1", "2"])
def test_no_request_is_lost_while_a_model_takes_anothers_place(client: Any, tmp_path: Path, version: str) -> None:
    shutil.rmtree(tmp_path / "double")
    put(tmp_path, "double", version, 4.0)
    answers: list[float] = []
    swapped = threading.Event()

    def ask() -> None:
        with client.module.InferenceServerClient(client.address) as own:
            own.module = client.module
            while not swapped.is_set():
                answers.append(first(own, "double"))
            answers.append(first(own, "double"))

    asking = threading.Thread(target=ask)
    asking.start()
    client.load_model("double")
    swapped.set()
    asking.join(30)
    assert not asking.is_alive()
    assert answers[-1] == 4.0
    assert answers == sorted(answers)
    assert set(answers) <= {2.0, 4.0}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("max_batch = ", "this is no TOML"),
        ("max_bach = 4", "no key 'max_bach' (the nearest is 'max_batch')"),
        ('max_batch = "4"', "max_batch cannot be '4' (str)"),
        ("max_batch = true", "max_batch cannot be True (bool)"),
        ("max_batch = 0", "max_batch is a whole number of at least 1"),
        ("max_batch = 1000000000", "a batch has 1,048,576 rows at most, not 1,000,000,000"),
        ("replicas = 5", "there cannot be 5 replicas on 1 device"),
        ("max_delay = -1", "max_delay is a number of seconds from 0"),
        ("queue = 0", "queue is a whole number of at least 1"),
        ("batch_sizes = [0]", "a whole number of rows from 1"),
        ("versions = [7]", "versions is a list of some of ['1'], not [7]"),
        ("versions = []", "versions is a list of some of ['1'], not []"),
        ("dims = {time = 4}", "time"),
        ("dims = " + "[" * 5000, "nested too deeply"),
    ],
)
def test_configurations_that_cannot_be_meant(tmp_path: Path, text: str, told: str) -> None:
    put(tmp_path, "double", "1")
    config(tmp_path, "double", text)
    with HostManager() as host:
        repository = Repository(host, {}, tmp_path)
        with pytest.raises(GlowtrainError) as caught:
            repository.load_all()
        assert told in str(caught.value)
        assert status_of(caught.value).http == 400
        assert (repository.complete, host.networks()) == (False, [])


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_something_else_in_the_place_of_a_configuration(tmp_path: Path, make: Callable[[Path], None]) -> None:
    put(tmp_path, "double", "1")
    make(tmp_path / "double" / "config.toml")
    with HostManager() as host, pytest.raises(InputError, match="config.toml: it cannot be read: it is no file"):
        Repository(host, {}, tmp_path).load_all()


def test_folders_whose_names_no_client_can_say(server: Server, tmp_path: Path) -> None:
    """They are left out of the index, which has all others."""
    os.mkdir(os.fsencode(tmp_path / "no-") + b"\xff")
    with over_http.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        assert [model["name"] for model in client.get_model_repository_index()] == ["double"]


def test_a_file_that_is_gone_when_it_is_read() -> None:
    def gone() -> Any:
        raise FileNotFoundError(2, "No such file or directory", "model.onnx")

    with HostManager() as host, pytest.raises(ModelError, match="cannot be read: .*No such file.*model.onnx"):
        Repository(host, {"double": gone}).load_all()


def test_options_of_the_server_hold_where_a_configuration_says_nothing(tmp_path: Path) -> None:
    put(tmp_path, "double", "1")
    put(tmp_path, "other", "1")
    config(tmp_path, "other", "batch_sizes = [3, 1]\n")
    with HostManager() as host:
        Repository(host, {}, tmp_path, ModelOptions(max_batch=4, max_delay=2.0, queue=7)).load_all()
        double, other = host.network("double"), host.network("other")
        assert (double.sizes, double.max_delay, double.queue.limit) == ((1, 2, 4), 0.002, 7)
        assert (other.sizes, other.max_delay, other.queue.limit) == ((1, 3), 0.002, 7)


def test_folders_without_a_version_and_names_given_twice(tmp_path: Path) -> None:
    (tmp_path / "empty" / "latest").mkdir(parents=True)
    with HostManager() as host:
        with pytest.raises(GlowtrainError, match="no version of the model; put it at"):
            Repository(host, {}, tmp_path).load_all()
        with pytest.raises(InputError, match="a file and a folder of the name 'empty'"):
            Repository(host, {"empty": scaled}, tmp_path).load_all()
        with pytest.raises(GlowtrainError, match="no such folder of models"):
            Repository(host, {}, tmp_path / "nowhere").load_all()
        assert not Repository(host, {}, tmp_path).complete


def test_types_that_the_protocol_cannot_say_are_refused_when_they_are_loaded() -> None:
    @gt.model(x=gt.types.i4["batch", 2])
    def model(x: Any) -> Any:
        return {"y": gt.ops.Cast(to=gt.f32)(x)}

    with HostManager() as host:
        repository = Repository(host, {"small": lambda: model})
        with pytest.raises(InputError, match="has no element type for i4"):
            repository.load_all()
        assert host.networks() == []


def test_what_takes_a_models_place_is_looked_at_before() -> None:
    """One of a type that the protocol cannot say leaves the one that is served."""

    @gt.model(x=gt.f32["batch", 4])
    def eighths(x: Any) -> Any:
        return {"y": gt.ops.Cast(to=gt.types.f8e5m2)(x)}

    models = [scaled(), eighths]
    with HostManager() as host:
        repository = Repository(host, {"double": lambda: models.pop(0)})
        repository.load_all()
        with pytest.raises(InputError, match="has no element type for f8e5m2"):
            repository.load("double")
        assert host.run_sync("double", {"x": np.ones((1, 4), np.float32)})["y"][0, 0] == 2.0
        (state,) = repository.index()
        assert (state.state, "loading anew failed" in state.reason) == ("READY", True)


def test_versions_are_replaced_together_or_not_at_all(tmp_path: Path) -> None:
    """Version 2 can be read, and turns out while it is put onto a device not to be one for batches."""
    for version in ("1", "2"):
        put(tmp_path, "double", version)
    config(tmp_path, "double", "versions = [1, 2]")
    with served(tmp_path) as (service, repository), running(service, repository) as server:
        shutil.rmtree(tmp_path / "double" / "1")
        put(tmp_path, "double", "1", factor=100.0)
        put(tmp_path, "double", "3", factor=3.0)
        gt.save(beside_the_others, tmp_path / "double" / "2" / "model.onnx")
        config(tmp_path, "double", "versions = [1, 2, 3]")
        with pytest.raises(InputError, match="depends on the examples beside it"):
            repository.load("double")
        with over_http.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
            given = over_http.InferInput("x", [1, 4], "FP32")
            given.set_data_from_numpy(np.ones((1, 4), np.float32))
            for version in ("1", "2", ""):
                answer = client.infer("double", [given], version)
                np.testing.assert_array_equal(answer.as_numpy("y"), np.full((1, 4), 2.0))
            assert answer.get_response()["model_version"] == "2"
        states = {state.version: state.state for state in repository.index()}
        assert states == {"1": "READY", "2": "READY", "3": "UNAVAILABLE"}


@gt.model(x=gt.f32["batch", 4])
def beside_the_others(x: Any) -> Any:
    return {"y": x - gt.ops.ReduceMax((0,))(x), "z": x}
