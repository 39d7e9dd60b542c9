"""Which of Glowtrain's modules and functions a call enters, in the thread that makes it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

from glowtrain.backends.cpu.step import generate_together
from glowtrain.compiler import service, walk

ENTRANCES = service.build, service.module


@dataclass
class Route:
    """The modules in the order in which they were entered, how often each function was called, and how often each
    stage's pass ran."""

    modules: dict[str, None] = field(default_factory=dict)
    functions: Counter[CodeType] = field(default_factory=Counter)
    stages: Counter[str] = field(default_factory=Counter)

    def calls(self, function: Callable[..., Any]) -> int:
        """How often a function was called."""
        return self.functions[function.__code__]

    def __str__(self) -> str:
        """The modules, by room."""
        rooms: dict[str, list[str]] = {}
        for module in self.modules:
            _, _, path = module.partition(".")
            room, _, rest = path.partition(".")
            rooms.setdefault(room, []).append(rest)
        lines = [f"{room}: {', '.join(filter(None, modules))}".rstrip(": ") for room, modules in rooms.items()]
        return "\n".join([f"{len(self.modules)} modules", *lines])


def route_of(call: Callable[[], object]) -> Route:
    """What a call enters. It is made twice, as what is imported at its first time would count, too."""
    call()
    route = Route()

    def note(frame: FrameType, event: str, _: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        if event == "call" and module.partition(".")[0] == "glowtrain":
            route.modules.setdefault(module)
            route.functions[frame.f_code] += 1
            if frame.f_code is walk.take.__code__:
                route.stages[frame.f_locals["stage"].name] += 1

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return route


def check(route: Route, entrance: Callable[..., Any], functions: int) -> None:
    """Print the modules. The service was entered there, and only there, once; so many functions went through the walk,
    each stage once for each of them; and their code was written once, as one module."""
    print(route)
    assert [route.calls(each) for each in ENTRANCES] == [int(each is entrance) for each in ENTRANCES]
    assert route.calls(walk.arrive) == functions
    assert {stage.name: route.stages[stage.name] for stage in walk.WALK} == {s.name: functions for s in walk.WALK}
    assert route.calls(generate_together) == 1
