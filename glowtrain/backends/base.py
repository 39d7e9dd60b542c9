"""The interface of a backend, which states facts, makes artifacts of planned programs, and loads them.

    plan --compile--> Artifact --load--> Executable --bind--> Instance --run--> outputs

An artifact can be made for any machine, kept on disk and read again; an executable is loaded into this process; an
instance has memory of its own and runs over a state of variables.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from glowtrain.backends.cache.folder import Cache
from glowtrain.backends.faults import Faults
from glowtrain.backends.state import State
from glowtrain.errors import BackendError
from glowtrain.stages import Facts, Options, Stage
from glowtrain.types import Array, TensorType

if TYPE_CHECKING:
    from glowtrain.backends.cache.location import CacheChoice
    from glowtrain.backends.limits import MachineLimits
    from glowtrain.backends.table import LinkableModule
    from glowtrain.backends.target import Target
    from glowtrain.program.memory.plan import Plan

Types = Mapping[str, TensorType]
Completed = Callable[[Sequence[str]], None]
"""Called between two segments of a run and behind the last, with the names of outputs that have become complete since
the last call: the run neither reads nor writes them any more. All outputs are named once."""


class Artifact(ABC):
    """What a backend made of a graph: immutable, and free of the compiler's data structures."""

    @property
    def portable(self) -> bool:
        """Whether it can be written to a file: not if it calls functions of this process."""
        return True

    def fits(self, inputs: Types, variables: Types, outputs: Types) -> bool:
        """Whether it can be of a graph with these types, as far as it says."""
        return True

    @abstractmethod
    def to_bytes(self) -> bytes:
        """The artifact as a file; :meth:`Backend.read` is the inverse. Raises :class:`ArtifactError` if it is not
        :attr:`portable`."""


WHOLE_CALL = -1
"""In place of the thread in a span: all of a call, as the thread that runs the step sees it."""
SPAN_FIELDS = "thread", "call", "begin", "end", "first", "behind"
SPAN = np.dtype([(name, np.int64) for name in SPAN_FIELDS])
"""A record of profiled code: ``thread`` ran tasks ``first`` to before ``behind`` of a call, by its number, from
``begin`` to ``end`` in ticks of a counter that runs steadily."""


@dataclass(frozen=True)
class StepProfile:
    """One run of a step, which takes its own times if it was compiled to.

    ``calls`` are the names of kernels, in order. ``spans``, records of :data:`SPAN`, has each time that a call was
    made and the ranges of tasks that threads took where they shared it; and the whole step, with ``len(calls)`` as its
    call. ``seconds`` is what the run took for its caller, ``ended`` the clock (``time.perf_counter``) after it.
    """

    calls: tuple[str, ...]
    spans: Array
    seconds: float
    ended: float

    @property
    def whole(self) -> Any:
        """The record of the whole step."""
        return self.spans[self.spans["call"] == len(self.calls)][0]


@dataclass(frozen=True)
class Batches:
    """The inputs of several runs in a row, all of the same types.

    ``rows``: arrays by name whose first axis holds those of all runs, one behind the other: each run has its equal part
    of them. ``shared``: what is the same in all runs. ``watched`` names a scalar output: the run in which it is NaN or
    infinite is the last.
    """

    count: int
    rows: Mapping[str, Array]
    shared: Mapping[str, Array]
    watched: str

    def __getitem__(self, run: int) -> dict[str, Array]:
        """The inputs of one run."""
        own = {}
        for name, array in self.rows.items():
            size = len(array) // self.count
            own[name] = array[run * size : (run + 1) * size]
        return {**own, **self.shared}


def one_by_one(run: Callable[[Mapping[str, Array]], Mapping[str, Array]], batches: Batches) -> dict[str, Array]:
    """The outputs of runs in a row, one behind the other on a first axis.

    An error in the first run is raised. One in a later run ends the row before it: what has run counts, and whoever
    goes on from there meets it again.
    """
    outputs: list[Mapping[str, Array]] = []
    for number in range(batches.count):
        try:
            outputs.append(run(batches[number]))
        except Exception:
            if not outputs:
                raise
            break
        if not np.isfinite(outputs[-1][batches.watched]):
            break
    return {name: np.stack([each[name] for each in outputs]) for name in outputs[0]}


class Instance(ABC):
    """An executable bound to a state, with memory of its own. It must not be called from two threads at once."""

    arena: Array | None = None
    """The memory of activations, where it can be inspected."""

    @abstractmethod
    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs for inputs that have the graph's types exactly; variables are updated."""

    def run_fitting(self, inputs: Mapping[str, Any]) -> dict[str, Array] | None:
        """What :meth:`run` gives, for a call's inputs that nobody has looked at. ``None``, before anything has run,
        unless they are a dict of just the graph's inputs, contiguous arrays of its types. By default always: a backend
        may look at inputs while it takes their addresses, where that is faster than looking twice."""
        return None

    def run_at(
        self, inputs: Mapping[str, int], outputs: Mapping[str, int], completed: Completed | None = None
    ) -> float | None:
        """A run over memory at addresses, by the names of all inputs and outputs: row-major, of the graph's types
        exactly; outputs overlap with nothing else. With ``completed`` it is made in segments, of which there are
        several in executables compiled with ``Options(segmented=True)``. The seconds that it took, once the addresses
        were where they are read; ``None``, before anything has run, where the backend has no addresses, as by
        default."""
        return None

    def run_many(self, batches: Batches) -> dict[str, Array]:
        """What :func:`one_by_one` gives for :meth:`run`, to the same bits, for contiguous arrays; a backend may do it
        in one call."""
        return one_by_one(self.run, batches)

    def profile(self, inputs: Mapping[str, Array]) -> StepProfile:
        """One run, which hands no outputs over; with the times of its calls for executables compiled with
        ``Options(profile=True)``. Raises :class:`BackendError` where the backend has no counters, as by default."""
        raise BackendError(f"{type(self).__name__} takes no times of kernels; use backend cpu")


class AddressInstance(ABC):
    """An executable with memory for activations of its own, while inputs, variables and outputs lie where each call
    says. It must not be called from two threads at once."""

    @abstractmethod
    def run(self, addresses: Sequence[int]) -> None:
        """One run over memory at ``addresses``, in the order that :meth:`Executable.at_addresses` was given: row-major,
        of the graph's types exactly. Outputs must not overlap with anything else."""


@dataclass(frozen=True)
class ExecutableMemory:
    """The bytes that an executable has in memory beside its code: for each instance an ``arena`` of activations, the
    ``workspace`` of all its ``threads`` together, and the ``outputs``; ``constants``, and copies of variables in
    another form, once for all instances."""

    arena: int
    workspace: int
    outputs: int
    constants: int
    threads: int = 1


class Executable(ABC):
    """A loaded artifact: immutable, shareable."""

    layouts: Mapping[str, tuple[int, ...]] = MappingProxyType({})
    """The layout that instances want for each variable, where they run over the state's own memory."""

    @abstractmethod
    def bind(self, state: State) -> Instance:
        """An instance over a state that holds all variables."""

    @property
    def memory(self) -> ExecutableMemory:
        """What it takes in memory. Raises :class:`BackendError` for a backend that plans none, as by default."""
        raise BackendError(f"{type(self).__name__} has no planned memory; use backend cpu")

    def at_addresses(self, names: Sequence[str]) -> AddressInstance:
        """An instance over memory that each call names, by addresses in the order of ``names``: those of all inputs,
        variables and outputs, no two of them the same; compiled with ``Options(row_major_variables=True)``. Raises
        :class:`BackendError` where the backend has no addresses."""
        raise BackendError(f"{type(self).__name__} does not run on addresses; use backend cpu")


class Backend(ABC):
    """A way to run graphs. Another package can bring one: an entry point of the group ``glowtrain.backends`` names a
    class that can be made without arguments."""

    name: ClassVar[str]
    threaded: ClassVar[bool] = False
    """Whether its code can run on several threads (see :meth:`with_threads`), with the same bits for any number of
    them."""
    facts: Facts = Facts()
    cache: Cache | None = None
    """Where artifacts are kept, if anywhere."""
    target: Target | None = None
    """The processor that its code is for, where it makes code for one."""
    tools: str = ""
    """The versions of what makes its code, in words."""

    def __str__(self) -> str:
        return self.name

    def with_threads(self, threads: int) -> Backend:
        """The same backend on this many threads. Raises :class:`BackendError` where it has only one."""
        if threads != 1:
            raise BackendError(f"backend {self.name} runs on one thread, not on {threads}; use backend cpu")
        return self

    def for_checks(self, threads: int) -> Backend:
        """The same backend on this many threads, which share out whatever can be shared, however small, and cache
        nothing."""
        return self.with_threads(threads)

    def bit_equal(self) -> Mapping[str, Backend]:
        """For checks: backends that run here too and whose code must give the same bits as this one's, by what they are
        for, in words; the most different last. They cache nothing."""
        return {}

    def with_cache(self, cache: CacheChoice) -> Backend:
        """The same backend with another cache, or with none. Raises :class:`BackendError` where it caches nothing."""
        if cache:
            raise BackendError(f"backend {self.name} compiles nothing that could be cached; use backend cpu")
        return self

    def stages(self, walk: Sequence[Stage]) -> tuple[Stage, ...]:
        """The whole walk for this backend, from the neutral stages ``walk``; the last one makes an artifact."""
        return (*walk, Stage("compiled", f"what backend {self.name} makes of it", lambda o: Compile(self, o)))

    def expect(self) -> None:  # noqa: B027 - most backends need nothing
        """Something is about to be compiled, and then loaded: a backend may begin beside with what it needs for that,
        whatever it is. By default nothing."""

    def limits(self, kinds: Collection[str]) -> MachineLimits:
        """How fast its threads can do operations of these kinds, and move bytes: measured, in half a second. Raises
        :class:`BackendError` where the backend cannot."""
        raise BackendError(f"backend {self.name} has no loops that measure the machine; use backend cpu")

    def module(self, plans: Mapping[str, Plan], options: Options) -> LinkableModule:
        """Planned functions over the same variables as one module, for an object file. Raises :class:`CodegenError` for
        what the target cannot run, :class:`BackendError` for a backend that writes no such text, as by default."""
        raise BackendError(f"backend {self.name} makes no object files; use backend cpu")

    def device(self) -> str:
        """The device that it runs on in this process, in words; empty where that is the processor, as by default.
        Raises :class:`GlowtrainError` where it cannot run here, which says what is missing."""
        return ""

    @property
    def faults(self) -> Faults:
        """Failures that tests can inject (:mod:`glowtrain.kit`, level 3); by default none."""
        return Faults()

    @property
    def fingerprint(self) -> str:
        """What determines artifacts besides graph, options and Glowtrain itself: processor, versions of tools."""
        return self.name

    @abstractmethod
    def compile(self, subject: Any, options: Options) -> Artifact:
        """The artifact of the previous stage's result, a :class:`~glowtrain.program.memory.plan.Plan` unless
        :meth:`stages` says otherwise. Nothing is loaded."""

    @abstractmethod
    def read(self, data: bytes) -> Artifact:
        """The artifact of :meth:`Artifact.to_bytes`. Raises :class:`ArtifactError` for anything else."""

    @abstractmethod
    def load(self, artifact: Artifact) -> Executable:
        """The artifact, ready to run in this process. Raises :class:`ArtifactError` where that is impossible."""


@dataclass(frozen=True)
class Compile:
    """The pass from a plan to a backend's artifact."""

    backend: Backend
    options: Options

    def run(self, subject: Any) -> Artifact:
        """The artifact."""
        return self.backend.compile(subject, self.options)
