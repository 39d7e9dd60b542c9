"""What a trace does in place of PyTorch's functions that it cannot follow.

Some ask for the elements of tensors, and do as well without: ``nn.Transformer`` and its parts compare a mask with the
causal one, to name it so to faster kernels; ``gaussian_nll_loss`` refuses negative variances. Others say how gradients
are computed, which a trace of the forward computation would lose: they are refused.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from threading import get_ident
from typing import Any

import torch
from torch._export.passes import lift_constants_pass
from torch.autograd import function
from torch.distributions import Distribution
from torch.fx import traceback
from torch.fx._symbolic_trace import _orig_module_call as UNTRACED
from torch.nn.functional import batch_norm
from torch.nn.modules import transformer
from torch.nn.modules.batchnorm import _BatchNorm

from glowtrain.errors import ModelError
from glowtrain.torch.tracing.packed import PACKED


@contextmanager
def traceable(*, forward_only: bool) -> Iterator[None]:
    """Within, transformers believe what their callers say of masks, and BatchNorm averages by tensors.
    Gradients of one's own are refused, unless the computation is wanted ``forward_only``. Distributions look at no
    elements, but where they are asked to (``validate_args=True``). Other threads compute as before."""
    asked = function._is_setup_context_defined
    replaced: list[tuple[Any, str, Callable[..., Any], Callable[..., Any]]] = [
        (transformer, "_detect_is_causal_mask", _said_to_be_causal, transformer._detect_is_causal_mask),
        (function, "_is_setup_context_defined", asked if forward_only else _refused, asked),
        (_BatchNorm, "forward", _averaging(_BatchNorm.forward), _BatchNorm.forward),
        (lift_constants_pass, "_unused_constant", _unused_constant, UNUSED),
        (traceback, "annotate", traceback.annotate, _unannotated),  # as calls of compiled modules do during an export
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _, _ in replaced]
    for owner, name, here, elsewhere in replaced:
        setattr(owner, name, _by_thread(here, elsewhere))
    validated = Distribution._validate_args
    Distribution.set_default_validate_args(value=False)
    try:
        yield
    finally:
        for owner, name, original in before:
            setattr(owner, name, original)
        Distribution.set_default_validate_args(validated)


def _by_thread(here: Callable[..., Any], elsewhere: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is ``here`` in this thread, and ``elsewhere`` in all others."""
    own = get_ident()

    @wraps(elsewhere)
    def called(*arguments: Any, **named: Any) -> Any:
        return (here if get_ident() == own else elsewhere)(*arguments, **named)

    return called


UNUSED = lift_constants_pass._unused_constant


def _unused_constant(node: torch.fx.Node) -> list[torch.fx.Node] | None:
    """PyTorch's own asks for the first user of a tensor that has none, as one that a loss has only detached."""
    return UNUSED(node) if node.users else [node]


def _unannotated(_: Any) -> AbstractContextManager[None]:
    return nullcontext()


@contextmanager
def calls_observed(tell: Callable[[torch.nn.Module], None]) -> Iterator[None]:
    """Within, ``tell`` is given each module that this thread calls. Calls of other threads stay out of the trace."""
    call = torch.nn.Module.__call__

    def observed(self: torch.nn.Module, *arguments: Any, **named: Any) -> Any:
        tell(self)
        return call(self, *arguments, **named)

    torch.nn.Module.__call__ = _by_thread(observed, UNTRACED)
    try:
        yield
    finally:
        torch.nn.Module.__call__ = call


@contextmanager
def unseeded() -> Iterator[None]:
    """Within, no function of ``torch.random`` that this thread calls seeds PyTorch's generator."""
    generator = torch.random.default_generator
    instead: Any = _Unseeded(generator)
    torch.random.default_generator = instead
    try:
        yield
    finally:
        torch.random.default_generator = generator


def _averaging(forward: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """BatchNorm's forward, which for ``momentum=None`` does not ask for the number of batches: running statistics are
    the mean of all batches'."""

    def normalized(self: _BatchNorm, x: torch.Tensor) -> torch.Tensor:
        mean, variance, count = self.running_mean, self.running_var, self.num_batches_tracked
        if self.momentum is not None or not self.training or mean is None or variance is None or count is None:
            return forward(self, x)
        self._check_input_dim(x)
        count.add_(1)
        own = mean.clone(), variance.clone()
        result = batch_norm(x, *own, self.weight, self.bias, True, 1.0, self.eps)
        for running, present in zip((mean, variance), own, strict=True):
            running.add_((present - running) / count)
        return result

    return normalized


def _said_to_be_causal(mask: torch.Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
    return is_causal is True


def _refused(setup: Any) -> bool:
    """Called in place of what ``torch.autograd.Function.apply`` asks first, of its class.

    ``apply`` itself may have been taken long before, ``rounded = Rounded.apply``, so that another one in its place
    would not be called. Functions that PyTorch makes to call operators are not a person's.
    """
    frame = inspect.currentframe()
    while frame is not None and "cls" not in frame.f_locals:
        frame = frame.f_back
    cls = frame.f_locals["cls"] if frame else torch.autograd.Function
    if cls.__module__.startswith("torch._"):
        return bool(setup != function._SingleLevelFunction.setup_context)
    raise ModelError(
        f"the gradient of {cls.__qualname__}, a torch.autograd.Function, is not followed: write what it does by "
        "operators, x + (f(x) - x).detach() for a result f(x) with the gradient of x"
    )


def _hooked(tensor: torch.Tensor, *_: Any) -> Any:
    raise ModelError("hooks of tensors (register_hook) are not followed: change the gradient by operators")


class _Unseeded:
    """PyTorch's generator, which one thread cannot seed. Functions find it when they are called,
    also those that somebody has taken before (``from torch import manual_seed``)."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator
        for name in ("manual_seed", "seed"):
            setattr(self, name, _by_thread(_seeding, getattr(generator, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.generator, name)


def _seeding(*_: Any) -> Any:
    raise ModelError(
        "the module or the loss seeds PyTorch's generator (torch.manual_seed), which compiled code does not draw from: "
        "seed it between calls, or draw outside and pass tensors"
    )


def gaussian_nll_loss(
    mean: torch.Tensor, target: torch.Tensor, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> torch.Tensor:
    """torch.nn.functional.gaussian_nll_loss, which does not look for negative variances: (log v + (x - y)² / v) / 2,
    where v is ``eps`` at least, which gradients pass as if it were not."""
    variance = _variances(mean, var)
    raised = variance + (variance.clamp(min=eps) - variance).detach()
    losses = 0.5 * (raised.log() + (mean - target) ** 2 / raised)
    if full:
        losses = losses + 0.5 * torch.log(torch.tensor(2 * torch.pi, dtype=losses.dtype))
    reductions: dict[str, Callable[[], torch.Tensor]] = {"none": lambda: losses, "mean": losses.mean, "sum": losses.sum}
    if reduction not in reductions:
        raise ModelError(f"gaussian_nll_loss has no reduction {reduction!r}; there are {', '.join(reductions)}")
    return reductions[reduction]()


def _variances(mean: torch.Tensor, var: Any) -> torch.Tensor:
    """One for all, one for each element, or one for each row."""
    if not isinstance(var, torch.Tensor):
        return torch.full_like(mean, var)
    return var.unsqueeze(-1) if var.shape != mean.shape and var.shape == mean.shape[:-1] else var


def instance_norm(
    x: torch.Tensor, running_mean: torch.Tensor | None = None, running_var: torch.Tensor | None = None,
    weight: torch.Tensor | None = None, bias: torch.Tensor | None = None, use_input_stats: bool = True,
    momentum: float = 0.1, eps: float = 1e-5,
) -> torch.Tensor:  # fmt: skip
    """torch.nn.functional.instance_norm, which updates running statistics by operators: ATen's writes them without
    saying so, and a trace leaves it out where nobody reads its result."""
    running = running_mean, running_var
    if use_input_stats and running_mean is not None and running_var is not None:
        variance, mean = torch.var_mean(x.detach(), tuple(range(2, x.dim())))
        for kept, present in ((running_mean, mean), (running_var, variance)):
            kept.copy_((1 - momentum) * kept + momentum * present.mean(0))
        running = None, None
    return torch.nn.functional.instance_norm(x, *running, weight, bias, use_input_stats, momentum, eps)


def _instance_norm(
    x: torch.Tensor, weight: Any, bias: Any, mean: Any, variance: Any, use_input_stats: bool, momentum: float,
    eps: float, _: bool = True,
) -> torch.Tensor:  # fmt: skip
    """torch.instance_norm, whose operands are in another order."""
    return instance_norm(x, mean, variance, weight, bias, use_input_stats, momentum, eps)


def cov(
    x: torch.Tensor, *, correction: int = 1, fweights: torch.Tensor | None = None, aweights: torch.Tensor | None = None
) -> torch.Tensor:
    """torch.cov, which compares its weights by their elements."""
    x = (x if x.is_floating_point() else x.to(torch.get_default_dtype())).reshape(-1, x.shape[-1] if x.dim() else 1)
    given = [weights for weights in (fweights, aweights) if weights is not None]
    weights = math.prod(given[1:], start=given[0]).to(x.dtype) if given else x.new_ones(x.shape[1])
    total = weights.sum()
    spread = 1.0 if aweights is None else (weights * aweights).sum() / total
    divisor = (total - correction * spread).clamp(min=0)
    centred = x - ((x * weights).sum(1) / total)[:, None]
    return (centred @ (centred * weights).T / divisor).squeeze()


def corrcoef(x: torch.Tensor) -> torch.Tensor:
    """torch.corrcoef, by :func:`cov`."""
    found = cov(x)
    if not found.dim():
        return found / found
    deviations = found.diagonal().sqrt()
    return (found / deviations[:, None] / deviations).clip(-1, 1)


INSTEAD: dict[Any, Callable[..., Any]] = {
    torch.nn.functional.instance_norm: instance_norm,
    torch.instance_norm: _instance_norm,
    torch.nn.functional.gaussian_nll_loss: gaussian_nll_loss,
    **PACKED,
    **dict.fromkeys((torch.cov, torch.Tensor.cov), cov),
    **dict.fromkeys((torch.corrcoef, torch.Tensor.corrcoef), corrcoef),
}
"""What is traced in place of functions."""
REFUSED: dict[Any, Callable[..., Any]] = {torch.Tensor.register_hook: _hooked}
"""Functions that say how gradients are computed."""
