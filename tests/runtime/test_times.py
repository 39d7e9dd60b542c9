"""Times that cannot be meant are refused before anything has begun: nothing is half closed, and no device is lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from glowtrain.errors import InputError
from glowtrain.runtime import HostManager
from tests.runtime.devices import ScriptedDevice, rows, triple, tripled

NO_TIMES = ["1", -1, float("nan"), [1], True, 10**400, 1e300]


def told(time: object) -> str:
    return f"{time!r:.8}"


@pytest.fixture
def host() -> Iterator[HostManager]:
    with HostManager([ScriptedDevice()]) as made:
        made.add_network("net", triple, batch_sizes=[2])
        yield made


@pytest.fixture(autouse=True)
def as_before(host: HostManager) -> Iterator[None]:
    """Afterwards the network answers, and all ends."""
    yield
    np.testing.assert_array_equal(host.run_sync("net", {"x": rows(1, 2)})["y"], tripled(rows(1, 2)))
    host.close()
    assert (host.status()[0].lost, host.status()[0].used) == (None, 0)


@pytest.mark.parametrize("time", NO_TIMES, ids=told)
def test_of_ends(host: HostManager, time: Any) -> None:
    with pytest.raises(InputError, match="timeout is"):
        host.close(timeout=time)
    with pytest.raises(InputError, match="timeout is"):
        host.remove_network("net", timeout=time)


@pytest.mark.parametrize("time", NO_TIMES, ids=told)
def test_of_delays(host: HostManager, time: Any) -> None:
    with pytest.raises(InputError, match="max_delay is"):
        host.add_network("other", triple, max_delay=time)


@pytest.mark.parametrize("time", [*NO_TIMES[:-1], 0, -0.5], ids=told)
def test_of_requests(host: HostManager, time: Any) -> None:
    with pytest.raises(InputError, match="a time-out is a number of seconds above 0"):
        host.run("net", {"x": rows(0, 1)}, timeout=time)


@pytest.mark.parametrize("time", [*NO_TIMES[:-1], 0, -0.5], ids=told)
def test_of_devices(time: Any) -> None:
    with pytest.raises(InputError, match="time_limit is a number of seconds above 0, or None"):
        HostManager(time_limit=time)
