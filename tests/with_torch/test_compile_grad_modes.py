"""Writes, views and results under no_grad in torch.compile: values, buffers and gradients are those of eager PyTorch.

A functional graph has neither writes nor grad modes: a value that is written under no_grad must be cut off in it.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import pytest
import torch
from compiled import close, compiled, ramp, same_gradients
from torch import nn
from torch.nn import functional as F

import glowtrain.torch
from glowtrain.torch.dynamo.backend import FallbackWarning

Tensor = torch.Tensor
Write = Callable[["Averaged"], None]
Body = Callable[["Averaged", Tensor], Tensor]


class Averaged(nn.Module):
    """Buffers beside parameters from which ``body`` writes them."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)
        self.matrix: Tensor
        self.row: Tensor
        self.register_buffer("matrix", torch.randn(3, 3))
        self.register_buffer("row", torch.randn(3).abs())
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self, x)

    def read(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.row + x @ self.matrix


def part(module: Averaged) -> None:
    module.matrix[:, 1:].mul_(module.layer.weight[:, 1:])


def element(module: Averaged) -> None:
    module.matrix[1] = module.layer.bias


def indexed(module: Averaged) -> None:
    module.matrix.index_put_((torch.tensor([0, 2]),), module.layer.weight[:2], accumulate=True)


def scattered(module: Averaged) -> None:
    module.matrix.scatter_add_(0, torch.tensor([[0, 2, 1]]), module.layer.weight[:1])


def two_outputs(module: Averaged) -> None:
    torch.max(module.layer.weight, dim=0, out=(module.row, torch.zeros(3, dtype=torch.long)))


def result_of_out(module: Averaged) -> None:
    torch.mul(module.matrix, module.layer.weight, out=module.matrix).add_(module.layer.weight)


def many(module: Averaged) -> None:
    buffers, parameters = [module.matrix, module.row], [module.layer.weight, module.layer.bias]
    torch._foreach_mul_(buffers, 0.5)
    torch._foreach_add_(buffers, parameters, alpha=0.5)


WRITES: dict[str, Write] = {
    "mul_, add_": lambda m: m.matrix.mul_(0.5).add_(m.layer.weight, alpha=0.5),
    "+=": lambda m: m.matrix.__iadd__(m.layer.weight),
    "lerp_": lambda m: m.matrix.lerp_(m.layer.weight, 0.3),
    "copy_": lambda m: m.matrix.copy_(m.layer.weight),
    "clamp_": lambda m: m.matrix.clamp_(max=m.layer.weight),
    "addmm_": lambda m: m.matrix.addmm_(m.layer.weight, m.layer.weight),
    "addcmul_": lambda m: m.row.addcmul_(m.layer.bias, m.layer.bias),
    "out=": lambda m: torch.mul(m.matrix, m.layer.weight, out=m.matrix),
    "out= of two": two_outputs,
    "result of out=": result_of_out,
    "a part": part,
    "setitem": element,
    "index_put_": indexed,
    "scatter_add_": scattered,
    "set_": lambda m: m.matrix.set_(m.layer.weight * 2),
    "assigned": lambda m: setattr(m, "matrix", m.matrix * 0.5 + m.layer.weight * 0.5),
    "foreach": many,
    "foreach lerp": lambda m: torch._foreach_lerp_([m.matrix, m.row], [m.layer.weight, m.layer.bias], 0.5),
    "foreach copy": lambda m: torch._foreach_copy_([m.matrix, m.row], [m.layer.weight, m.layer.bias]),
    "data=": lambda m: setattr(m.matrix, "data", m.layer.weight * 2),
    "a parameter": lambda m: m.layer.weight.mul_(0.5),
    "a parameter by another": lambda m: m.layer.weight.copy_(m.layer.bias[None] * 2),
    "data of a parameter": lambda m: m.layer.weight.data.mul_(0.5),
}
"""Each is made under no_grad, and read afterwards where gradients flow."""
LEFT = frozenset(
    {"foreach", "foreach lerp", "foreach copy", "data=", "a parameter", "a parameter by another", "data of a parameter"}
)
"""Writes that are left to PyTorch, which says so."""


def written(write: Write) -> Body:
    def body(module: Averaged, x: Tensor) -> Tensor:
        with torch.no_grad():
            write(module)
        return module.read(x)

    return body


@torch.no_grad()
def follow(mean: Tensor, new: Tensor) -> None:
    mean.add_(new)


def decorated(module: Averaged, x: Tensor) -> Tensor:
    follow(module.matrix, module.layer.weight)
    return module.read(x)


def nested(module: Averaged, x: Tensor) -> Tensor:
    with torch.no_grad():
        module.matrix.add_(module.layer.weight)
        with torch.enable_grad():
            y = module.layer(x)
        module.matrix.add_(module.layer.weight)
    return y + module.read(x)


def disabled_within(module: Averaged, x: Tensor) -> Tensor:
    with torch.enable_grad():
        with torch.set_grad_enabled(False):
            module.matrix.add_(module.layer.weight)
        y = module.layer(x)
    return y + module.read(x)


def disabled_between(module: Averaged, x: Tensor) -> Tensor:
    torch.set_grad_enabled(False)
    module.matrix.add_(module.layer.weight)
    torch.set_grad_enabled(True)
    return module.read(x)


def written_in_both(module: Averaged, x: Tensor) -> Tensor:
    """The second write is differentiated, the first is not."""
    h = torch.zeros(3, 3)
    with torch.no_grad():
        h.add_(module.layer.weight)
        with torch.enable_grad():
            h.add_(module.layer.weight)
    return module.read(x) + x @ h


def made_within(module: Averaged, x: Tensor) -> Tensor:
    h = torch.zeros(3, 3)
    with torch.no_grad():
        h += module.layer.weight
        row = h[0]
        row *= module.layer.bias
    return module.read(x) + x @ h + row


def view_from_before(module: Averaged, x: Tensor) -> Tensor:
    row = module.matrix[0]
    with torch.no_grad():
        row.mul_(module.layer.bias)
    return module.read(x) + row


def views(module: Averaged, x: Tensor) -> Tensor:
    weight = module.layer.weight
    with torch.no_grad():
        turned, row, wide = weight.T, weight[0], module.layer.bias.expand(3, 3)
        first, second, _ = weight.unbind()
    return x @ turned + row + x @ wide + first * second + module.read(x)


def the_same(module: Averaged, x: Tensor) -> Tensor:
    """What is given back as it is keeps its gradient."""
    with torch.no_grad():
        same, cast = module.layer.weight.contiguous(), module.layer.weight.to(torch.float32)
    return x @ same + x @ cast


def activations(module: Averaged, x: Tensor) -> Tensor:
    h = torch.full((4, 3), 2.0)
    with torch.no_grad():
        h.mul_(module.layer(x))
        F.relu(h, inplace=True)
    return module.layer(x) * h


def running_statistics(module: Averaged, x: Tensor) -> Tensor:
    norm = module.norm
    return norm(module.layer(x)) + norm.running_mean + norm.running_var * x


def average_of_statistics(module: Averaged, x: Tensor) -> Tensor:
    y = module.norm(module.layer(x))
    with torch.no_grad():
        module.row.lerp_(module.norm.running_mean, 0.5)
    return y * module.row


def statistics_of_a_function(module: Averaged, x: Tensor) -> Tensor:
    h = module.layer(x)
    F.batch_norm(h, module.row, module.norm.running_var, training=True)
    return h * module.row + x * module.norm.running_var


def statistics_without_gradients(module: Averaged, x: Tensor) -> Tensor:
    with torch.no_grad():
        y = module.norm(module.layer(x))
    return y + module.norm.running_mean * module.layer(x)


def inference_mode(module: Averaged, x: Tensor) -> Tensor:
    with torch.inference_mode():
        module.matrix.add_(module.layer.weight)
    return module.read(x)


def taped(module: Averaged, x: Tensor) -> Tensor:
    h = module.layer(x)
    with torch.no_grad():
        h.mul_(2)
    return h * h


def taped_through_detach(module: Averaged, x: Tensor) -> Tensor:
    part = module.matrix.detach()[1:]
    part.mul_(module.layer.weight[1:])
    return module.read(x)


def taped_through_two(module: Averaged, x: Tensor) -> Tensor:
    h = module.layer(x)
    h.detach().view(-1).detach().mul_(module.layer.bias.sum())
    return h + x


def taped_copy(module: Averaged, x: Tensor) -> Tensor:
    own = (x * 2).detach()
    own.mul_(module.layer.weight[0])
    return module.read(x) + own


def taped_after_no_grad(module: Averaged, x: Tensor) -> Tensor:
    with torch.no_grad():
        own = x * 2
    own.mul_(module.layer.weight[0])
    return module.read(x) + own


def taped_beside_detach(module: Averaged, x: Tensor) -> Tensor:
    """What is off the tape follows what is on it, and a clone is another tensor."""
    h = module.layer(x)
    before, own = h.detach(), x.detach().clone()
    h.mul_(module.layer.bias)
    own.mul_(module.layer.weight[0])
    return h + before + own


BODIES: dict[str, Body] = {
    **{name: written(write) for name, write in WRITES.items()},
    **{
        body.__name__: body
        for body in (
            decorated, nested, disabled_within, disabled_between, written_in_both, made_within, view_from_before,
            views, the_same, activations, running_statistics, average_of_statistics, statistics_of_a_function,
            statistics_without_gradients, inference_mode, taped, taped_through_detach,
            taped_through_two, taped_copy, taped_after_no_grad, taped_beside_detach,
        )
    },
}  # fmt: skip
LEFT |= {"inference_mode", "taped", "taped_through_detach", "taped_through_two", "taped_copy", "taped_after_no_grad"}


def step(call: Callable[..., Tensor], module: nn.Module, x: Tensor) -> Tensor:
    """Gradients, and a descent after them: a wrong one changes the values of the next call."""
    module.zero_grad()
    y = call(x)
    y.square().sum().backward()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=0.01)
    return y


@pytest.mark.parametrize("name", BODIES)
def test_writes_and_results_off_the_tape(name: str) -> None:
    torch._dynamo.reset()
    eager = Averaged(BODIES[name])
    other = copy.deepcopy(eager)
    ours = compiled(other)
    compiles = warnings.catch_warnings(action="error", category=FallbackWarning)
    with pytest.warns(FallbackWarning) if name in LEFT else compiles:
        for _ in range(2):
            x = torch.randn(4, 3)
            close(step(ours, other, x), step(eager, eager, x))
            same_gradients(other, eager)


def test_a_teacher_that_is_captured() -> None:
    """A tensor of no module, which a call updates and reads."""
    found = []
    for make in (nn.Sequential, lambda *layers: compiled(nn.Sequential(*layers))):
        torch.manual_seed(0)
        student, teacher = nn.Linear(3, 2), nn.Linear(3, 2).requires_grad_(requires_grad=False)
        call = make(Taught(student, [teacher]))
        results = [step(call, student, ramp(4, 3)) for _ in range(3)]
        found.append([*results, *teacher.parameters(), *student.parameters(), student.weight.grad, student.bias.grad])
    for theirs, mine in zip(*found, strict=True):
        close(mine.detach(), theirs.detach())


class Taught(nn.Module):
    """``teachers``: layers that are no parts of the module; they follow the student."""

    def __init__(self, student: nn.Linear, teachers: list[nn.Linear]) -> None:
        super().__init__()
        self.student = student
        self.teachers = teachers

    def forward(self, x: Tensor) -> Tensor:
        (teacher,) = self.teachers
        with torch.no_grad():
            for mean, new in zip(teacher.parameters(), self.student.parameters(), strict=True):
                mean.mul_(0.5).add_(new, alpha=0.5)
        return self.student(x) + teacher(x)


@pytest.mark.parametrize("name", ["mul_, add_", "out=", "index_put_", "nested", "running_statistics"])
def test_a_compiled_step_of_them(name: str) -> None:
    eager = Averaged(BODIES[name])
    other = copy.deepcopy(eager)
    descents = [torch.optim.SGD(module.parameters(), lr=0.01) for module in (eager, other)]
    ours = glowtrain.torch.compile_step(other, F.mse_loss, descents[1])
    for _ in range(3):
        x, y = torch.randn(4, 3), torch.randn(4, 3)
        descents[0].zero_grad()
        F.mse_loss(eager(x), y).backward()
        descents[0].step()
        ours(x, y)
    for mine, theirs in zip(other.state_dict().values(), eager.state_dict().values(), strict=True):
        close(mine, theirs)


class Switching(nn.Module):
    """Turns gradients off, and on again where Dynamo's next graph ends."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor, last: bool) -> Tensor:
        torch.set_grad_enabled(False)
        h = self.layer(x)
        torch._dynamo.graph_break()
        h = self.layer(h)
        torch.set_grad_enabled(last)
        return self.layer(h)


@pytest.mark.parametrize("last", [True, False])
def test_gradients_that_a_call_leaves_turned_off(last: bool) -> None:
    torch._dynamo.reset()
    eager = Switching()
    other = copy.deepcopy(eager)
    results, modes = [], []
    for call in (eager, compiled(other)):
        try:
            with pytest.warns(FallbackWarning) if call is not eager else warnings.catch_warnings():
                results.append(call(ramp(4, 3), last))
            modes.append(torch.is_grad_enabled())
        finally:
            torch.set_grad_enabled(True)
        if last:
            results[-1].sum().backward()
    assert modes == [last, last]
    assert results[0].requires_grad == results[1].requires_grad == last
    close(results[1], results[0])
    same_gradients(other, eager)
