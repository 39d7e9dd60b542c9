"""Random modules from a row of parts, each a function of what is there: layers, functions with gradients of their own,
hooks, regions without gradients, transforms of functorch, operators whose derivative is zero, buffers that change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import nn
from torch.func import grad, jvp, vjp, vmap
from torch.utils.checkpoint import checkpoint

WIDTH, ROWS = 3, 4


class Rounded(torch.autograd.Function):
    """Straight through."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return (x * 4).round() / 4

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g


class Weighted(torch.autograd.Function):
    """A product, with other gradients than a product's; one of them is none."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * y

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None]:
        (x,) = ctx.saved_tensors
        return g * x.cos(), None


def energy(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * x).sum()


def without_gradients(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return x.cos() * 2


def in_part(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        y = x.sin()
        with torch.enable_grad():
            z = x * x
    return y + z


def hooked(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    if y.requires_grad:
        y.register_hook(lambda g: g.clamp(-0.05, 0.05))
    return y


def written_beside(x: torch.Tensor) -> torch.Tensor:
    """What is changed in place by another name has the gradient of before."""
    y = x * 2
    y.detach().mul_(3)
    return y


PLAIN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "sign": torch.sign,
    "round": lambda x: (3 * x).round(),
    "floor division": lambda x: torch.div(x, 0.3, rounding_mode="floor"),
    "power of zero": lambda x: x**0,
    "compared": lambda x: (x > 0.1).to(x.dtype),
    "softmax": lambda x: x.softmax(-1),
    "detached": lambda x: x.detach(),
    "detached in part": lambda x: x + (x.round() - x).detach(),
    "no_grad": without_gradients,
    "no_grad in part": in_part,
    "checkpoint": lambda x: checkpoint(in_part, x, use_reentrant=False),
    "sorted": lambda x: x.sort(-1).values,
    "largest": lambda x: x.max(0).values.expand_as(x),
    "a view": lambda x: x.t().reshape(x.shape),
}
OWN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "straight through": Rounded.apply,
    "weighted": lambda x: Weighted.apply(x, x.tanh()),
    "hooked": hooked,
    "written beside the tape": written_beside,
    "grad": grad(energy),
    "vmap": vmap(lambda row: row.softmax(0) * row.sum()),
    "vmap of grad": vmap(grad(energy)),
    "vjp": lambda x: vjp(torch.sin, x)[1](x)[0],
    "jvp": lambda x: jvp(torch.sin, (x,), (x.detach(),))[1],
}
"""Functions that PyTorch differentiates in ways of its own."""
LAYERS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "batch norm": lambda: nn.BatchNorm1d(WIDTH),
    "gated": lambda: nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GLU()),
}
JOINED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "product": torch.mul,
    "choice": lambda x, y: torch.where(x > y, x, y * 2),
    "sign of": torch.copysign,
}
MEMORY = ("read", "changed", "changed, and read")
HOOKS = ("none", "of results", "of arguments", "of a parameter's gradient")


@dataclass(frozen=True)
class Part:
    """One step: what is done, to which earlier results; a hook of the layer, whether its result is left unread."""

    kind: str
    name: str
    at: tuple[int, int]
    hook: str = "none"
    unread: bool = False


@dataclass(frozen=True)
class Design:
    """A module, which of its results the loss reads, and which parameters are frozen."""

    parts: tuple[Part, ...]
    read: tuple[int, ...]
    frozen: tuple[int, ...]
    tied: bool

    @property
    def has_own_gradients(self) -> bool:
        return any(part.kind == "own" or part.hook == HOOKS[3] for part in self.parts)


class Random(nn.Module):
    """The module of a design: all results of its parts that are read by the loss, and the last one."""

    def __init__(self, design: Design) -> None:
        super().__init__()
        self.design = design
        self.unused = nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.linspace(-1.2, 1.7, WIDTH))
        self.register_buffer("memory", torch.linspace(0.1, 0.4, WIDTH))
        self.layers = nn.ModuleDict()
        for number, part in enumerate(design.parts):
            if part.kind == "layer":
                self.layers[str(number)] = _hooked(LAYERS[part.name](), part.hook)
        linear = [layer for layer in self.layers.values() if isinstance(layer, nn.Linear)]
        if design.tied and len(linear) > 1:
            linear[1].weight = linear[0].weight
        for number, parameter in enumerate(self.parameters()):
            parameter.requires_grad_(number not in design.frozen)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = [x, x * self.scale]
        for number, part in enumerate(self.design.parts):
            one, other = (values[at % len(values)] for at in part.at)
            result = self._result(number, part, one, other)
            if not part.unread:
                values.append(result)
        return (*(values[at % len(values)] for at in self.design.read), values[-1])

    def _result(self, number: int, part: Part, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        if part.kind == "layer":
            return self.layers[str(number)](one)
        if part.kind == "memory":
            return self._remembered(part.name, one)
        if part.kind == "joined":
            return JOINED[part.name](one, other)
        return {**PLAIN, **OWN}[part.name](one)

    def _remembered(self, name: str, x: torch.Tensor) -> torch.Tensor:
        if "changed" in name:
            with torch.no_grad():
                self.memory.mul_(0.5).add_(x.mean(0))
        return x * self.memory.clone() if "read" in name else x


def _hooked(layer: nn.Module, hook: str) -> nn.Module:
    if hook == "of results":
        layer.register_forward_hook(_doubled_result)
    elif hook == "of arguments":
        layer.register_forward_pre_hook(_doubled_arguments)
    elif hook == "of a parameter's gradient":
        next(layer.parameters()).register_hook(_tripled)
    return layer


def _doubled_result(layer: nn.Module, arguments: Any, result: torch.Tensor) -> torch.Tensor:
    return 2 * result


def _doubled_arguments(layer: nn.Module, arguments: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return tuple(2 * each for each in arguments)


def _tripled(gradient: torch.Tensor) -> torch.Tensor:
    return 3 * gradient


def parts() -> st.SearchStrategy[Part]:
    at = st.tuples(st.integers(0, 7), st.integers(0, 7))
    unread = st.sampled_from((False, False, False, True))
    kinds = {"plain": PLAIN, "own": OWN, "joined": JOINED, "memory": MEMORY}
    plain = [
        st.builds(Part, st.just(kind), st.sampled_from(list(names)), at, unread=unread) for kind, names in kinds.items()
    ]
    layers = st.builds(Part, st.just("layer"), st.sampled_from(list(LAYERS)), at, st.sampled_from(HOOKS), unread)
    return st.one_of(plain[0], layers, *plain[1:])


def designs() -> st.SearchStrategy[Design]:
    return st.builds(
        Design,
        st.lists(parts(), min_size=1, max_size=6).map(tuple),
        st.lists(st.integers(0, 7), max_size=2).map(tuple),
        st.lists(st.integers(0, 5), max_size=2).map(tuple),
        st.booleans(),
    )


def module_of(design: Design) -> nn.Module:
    torch.manual_seed(0)
    return Random(design).double()
