import pytest

from tests.fleet.thread_ranks import present_ranks


@pytest.fixture(autouse=True)
def threads_for_ranks(monkeypatch):
    """Ranks are the threads of :func:`~tests.fleet.thread_ranks.on_ranks`."""
    monkeypatch.setattr("glowtrain.fleet.fleet.mpi_ranks", present_ranks)
