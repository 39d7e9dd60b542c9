"""Where the time of a fleet's steps goes."""

import io
import re
import time

import pytest

from glowtrain.fleet.communicator import Pending
from glowtrain.fleet.times import StepTimes
from tests.fleet.test_fleet_training import dropped, examples, trainer
from tests.fleet.thread_ranks import ThreadCommunicator, Threads, on_ranks


@pytest.fixture
def clock(monkeypatch):
    """The time in ns, which stands still."""
    now = [0]
    monkeypatch.setattr("glowtrain.fleet.times.time.perf_counter_ns", lambda: now[0])
    return now


def test_time_is_what_ranks_do_and_waiting_for_the_slowest_and_messages(clock):
    times = StepTimes(ThreadCommunicator(Threads(2), 0))
    assert str(times) == ""
    clock[0] = 40  # this rank comes to the exchange, the other one after 80, and it is over after 100
    busy = [times.busy, 80]
    clock[0] = 100
    times.exchanged(busy)
    assert (times.computing, times.waiting, times.communicating) == (60, 20, 20)
    clock[0] = 150
    times.resume()
    clock[0] = 250
    times.exchanged([100, 100])
    assert (times.computing, times.waiting, times.communicating) == (160, 20, 20)
    assert str(times) == "compute 80 %, messages 10 %, waiting 10 %"
    times.restart()
    assert str(times) == ""


def test_waits_in_the_middle_of_what_ranks_do_are_of_messages(clock):
    ranks = ThreadCommunicator(Threads(2), 0)
    times = StepTimes(ranks)
    clock[0] = 40
    ranks.waited += 30  # of these
    assert times.busy == 10
    times.exchanged([times.busy, 10])
    assert (times.computing, times.waiting, times.communicating) == (10, 0, 30)
    assert times.busy == 0


def test_a_wait_is_counted(clock):
    class Late(Pending):
        def missing(self):
            clock[0] += 7
            return [1] if clock[0] < 21 else []

    ranks = ThreadCommunicator(Threads(2), 0)
    ranks.wait(Late())
    assert ranks.waited == 21


def lines(rank, slow):
    """What a training prints, on which a rank is slow after each batch."""

    def dawdle(_):
        if rank == slow:
            time.sleep(0.05)

    made, out = trainer(), io.StringIO()
    made.fit(examples(dropped, 240), epochs=2, batch_size=48, progress=out, callbacks=[dawdle])
    return out.getvalue()


def test_lines_of_epochs_say_where_the_time_went():
    """With two ranks of which one is always late: half of the time of the other, and a quarter of all, is waiting."""
    said, silent = on_ranks(2, lambda rank: lines(rank, slow=1))
    assert silent == ""
    shares = re.findall(r"examples/s  compute (\d+) %, messages (\d+) %, waiting (\d+) %", said)
    assert len(shares) == 2
    assert int(shares[1][2]) >= 15
    (alone,) = on_ranks(1, lambda rank: lines(rank, slow=1))
    assert "examples/s" in alone
    assert "waiting" not in alone
