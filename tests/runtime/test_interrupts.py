"""A host in a child of fork, and after Ctrl-C at any moment."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from inspect import CO_GENERATOR
from threading import Event, Thread
from types import FrameType

import numpy as np
import pytest

from glowtrain.errors import UnavailableError
from glowtrain.runtime import HostManager
from tests.runtime.devices import Gate, ask, rows, triple, tripled


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_a_child_of_fork_is_told(host: HostManager, gate: Gate) -> None:
    """It has none of the threads; nothing there waits for them, whatever locks they had."""
    gate.close()
    running = ask(host, 0)
    assert gate.reached.wait(60)
    network, held, done = host.network("net"), Event(), Event()

    def hold() -> None:
        registry, retiring = host._registry._lock, host._retiring._lock
        with host.managers["cpu"]._changed, network._changed, network.counts._lock, registry, retiring:
            held.set()
            assert done.wait(60)

    holding = Thread(target=hold)
    holding.start()
    assert held.wait(60)
    child = os.fork()
    if not child:
        os._exit(_wrong_in_the_child(host))
    done.set(), holding.join()
    gate.open()
    assert os.waitpid(child, 0)[1] == 0
    assert set(running.result()) == {"y", "z"}


def _wrong_in_the_child(host: HostManager) -> int:
    """The number of what went wrong."""
    x = {"x": rows(0, 1)}
    tries = [lambda: host.run("net", x), lambda: host.run_sync("net", x), lambda: host.add_network("a", triple)]
    for number, attempt in enumerate(tries, 1):
        try:
            attempt()
        except UnavailableError:
            continue
        except BaseException:  # noqa: BLE001 - a child does not go on into pytest
            return number
        return number
    host.status(), host.metrics(), host.close()
    return 0


class Interrupt:
    """Ctrl-C at the number-th time that this thread enters or leaves a function of the runtime, which is when Python
    looks for it."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, frame: FrameType, event: str, argument: object) -> Interrupt | None:
        near = any(f"glowtrain{os.sep}runtime" in each.f_code.co_filename for each in (frame, frame.f_back) if each)
        if not near or frame.f_code.co_flags & CO_GENERATOR:
            return None
        self.left -= event in ("call", "return")
        if not self.left:
            raise KeyboardInterrupt
        return self

    def during(self, call: Callable[[], object]) -> bool:
        """Whether the call was interrupted."""
        before = sys.gettrace()
        sys.settrace(self)
        try:
            call()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return False


@pytest.mark.parametrize("later", [False, True])
def test_interrupted_anywhere(host: HostManager, later: bool) -> None:
    """At every call, one after the other: network and device are then as if nobody had asked. ``later``: in
    requests that another thread runs."""
    number, x = 1, {"x": rows(1, 1)}
    while Interrupt(number).during(lambda: host.run_sync("net", x, timeout=60 if later else None)):
        number += 1
        np.testing.assert_array_equal(ask(host, 2).result(60)["y"], tripled(rows(2, 1)))
    assert number > 50
    host.close()
    assert host.status()[0].lost is None
    assert host.status()[0].used == 0
