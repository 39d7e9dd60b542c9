"""PyTorch's own samples of its operators (``op_db``) through torch.compile with our backend, beside eager PyTorch:
results, gradients and gradients of gradients.

``op_db`` says which operators there are, how they are called, and which of them have gradients.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from glowtrain.torch.dynamo.backend import FallbackWarning, glowtrain

Call = Callable[..., Any]
Tensors = list[torch.Tensor]
Gradients = list[torch.Tensor | None]
COMPILED, FALLS_BACK, RAISES, DIFFERS = "compiled", "falls back", "raises", "differs"

ENTRIES = {
    "_batch_norm_with_update_functional.default": "_batch_norm_with_update",
    "_unsafe_index.Tensor": "_unsafe_masked_index", "acos.default": "acos", "angle.default": "angle",
    "asin.default": "asin", "atanh.default": "atanh", "cholesky.default": "cholesky", "dist.default": "dist",
    "frexp.Tensor": "frexp", "nextafter.default": "nextafter",
    "special_spherical_bessel_j0.default": "special.spherical_bessel_j0",
    "grid_sampler_2d.default": "grid_sampler_2d", "grid_sampler_3d.default": "grid_sampler_3d",
    "hypot.default": "hypot", "i0.default": "i0", "ldexp.Tensor": "ldexp", "lerp.Tensor": "quantile",
    "logaddexp.default": "logaddexp",
    "max_pool2d_with_indices_backward.default": "max_pool2d_with_indices_backward",
    "permute_copy.default": "permute_copy",
    "pixel_shuffle.default": "nn.functional.pixel_shuffle", "prelu.default": "nn.functional.prelu",
    "searchsorted.Tensor": "searchsorted", "tan.default": "tan", "xlogy.Tensor": "xlogy",
}  # fmt: skip
"""Entries of the table that no sample of test_aten.py reaches, and operators of op_db that do."""

# op_db seeds random operators by a function that Dynamo refuses to look into; here each run is seeded as a whole.
common_methods_invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)


@dataclass(frozen=True)
class Outcome:
    """What became of a sample, and why."""

    state: str
    why: str = ""


def name_of(operator: Any) -> str:
    """``linalg.norm``, or of a variant that op_db tests apart ``linalg.norm.subgradients_at_zero``."""
    variant = operator.variant_test_name
    return f"{operator.name}.{variant}" if variant else str(operator.name)


def _is_specified(name: str, results: Tensors, again: Tensors) -> bool:
    """Whether the numbers of results are: neither random ones nor what lay in memory before."""
    same = not any(_apart(*both) for both in zip(results, again, strict=True))
    return same and "empty" not in name and not name.startswith("resize_")


OPERATORS = {name_of(operator): operator for operator in op_db}


def samples(name: str, dtype: torch.dtype) -> Iterator[Any]:
    """An operator's samples of dense tensors, the same ones each time."""
    operator = OPERATORS[name]
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(0)
    wanted = operator.supports_autograd and dtype.is_floating_point
    for sample in operator.sample_inputs("cpu", dtype, requires_grad=wanted):
        if _is_dense(sample.input, sample.args, sample.kwargs):
            yield sample


def _is_dense(*tree: Any) -> bool:
    return all(each.layout is torch.strided for each in _tensors(tree))


def _tensors(tree: Any) -> Tensors:
    return [each for each in pytree.tree_leaves(tree) if isinstance(each, torch.Tensor)]


def check(name: str, sample: Any, *, second: bool = False) -> Outcome | None:
    """Compare a sample compiled with eager, ``second`` derivatives too; None where eager PyTorch refuses it, or gives
    what is not dense."""
    operator = OPERATORS[name]

    def call(given: Any, args: Any, kwargs: Any) -> Any:
        return operator.op(given, *args, **kwargs)

    eager = _run_or_none(call, sample, None, None if second else ())
    if eager is None or not _is_dense(eager.results):
        return None
    exact = _run_or_none(call, sample, torch.float64, eager.inner) or eager
    again = _run(call, sample, None, (), seed=1)
    torch._dynamo.reset()
    try:
        ours, why = _compiled(call, sample, eager.inner)
    except Exception as error:  # noqa: BLE001  (what raises where eager does not is looked for)
        return None if _dynamo_raises(call, sample) else Outcome(RAISES, f"{type(error).__name__}: {_headline(error)}")
    if wrong := _difference(ours, eager, exact, values=_is_specified(name, eager.results, again.results)):
        return Outcome(DIFFERS, wrong)
    return Outcome(FALLS_BACK, why) if why else Outcome(COMPILED)


def _compiled(call: Call, sample: Any, inner: Sequence[int]) -> tuple[Run, str]:
    """What the compiled function gives, and why PyTorch computed some of it."""
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        try:
            whole = torch.compile(call, backend=glowtrain, fullgraph=True, dynamic=False)
            run, why = _run(whole, sample, None, inner), ""
        except torch._dynamo.exc.TorchDynamoException as error:
            torch._dynamo.reset()
            parts = torch.compile(call, backend=glowtrain, dynamic=False)
            run, why = _run(parts, sample, None, inner), f"Dynamo: {_headline(error)}"
    said = [str(each.message) for each in noted if each.category is FallbackWarning]
    return run, said[0] if said else why


def _dynamo_raises(call: Call, sample: Any) -> bool:
    """Whether torch.compile fails whatever the backend is."""
    torch._dynamo.reset()
    return _run_or_none(torch.compile(call, backend="eager", dynamic=False), sample, None, ()) is None


def _headline(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")


# --- a run ------------------------------------------------------------------------------------------------------------


@dataclass
class Run:
    """What a call gave: tensors, their gradients, and the gradients of those gradients whose numbers are ``inner``."""

    results: Tensors
    first: Gradients = field(default_factory=list)
    inner: Sequence[int] = ()
    second: Gradients = field(default_factory=list)


def _run_or_none(call: Call, sample: Any, dtype: torch.dtype | None, inner: Sequence[int] | None) -> Run | None:
    try:
        return _run(call, sample, dtype, inner)
    except Exception:  # noqa: BLE001  (whatever eager PyTorch raises, it raises to everybody)
        return None


def _run(call: Call, sample: Any, dtype: torch.dtype | None, inner: Sequence[int] | None, seed: int = 0) -> Run:
    """A call with copies of a sample's tensors, floats in ``dtype``; where ``inner`` is None, all gradients that have
    gradients are differentiated again."""
    given = (sample.input, sample.args, sample.kwargs)
    arguments = pytree.tree_map_only(torch.Tensor, lambda each: _copy(each, dtype), given)
    wrt = [each for each in _tensors(arguments) if each.requires_grad]
    torch.manual_seed(seed)
    run = Run(_tensors(call(*arguments)))
    numbers = [number for number, each in enumerate(run.results) if each.requires_grad]
    if not wrt or not numbers:
        return run
    run.first = _gradients(run.results, wrt, numbers, again=inner is None or bool(inner))
    if inner is None:
        inner = [number for number, each in enumerate(run.first) if each is not None and each.requires_grad]
    run.inner = inner
    if inner and all(each is not None and each.requires_grad for each in map(run.first.__getitem__, inner)):
        run.second = _gradients(run.first, wrt, inner, again=False)
    return run


def _copy(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    to = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
    return tensor.detach().clone().to(to).requires_grad_(tensor.requires_grad)


def _gradients(outputs: Sequence[Any], wrt: Tensors, chosen: Sequence[int], again: bool) -> Gradients:
    """By cotangents that are the same for the same number and shape."""
    generators = [torch.Generator().manual_seed(number) for number in chosen]
    kept = [outputs[number] for number in chosen]
    cotangents = [
        torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y.dtype)
        for y, generator in zip(kept, generators, strict=True)
    ]
    return list(torch.autograd.grad(kept, wrt, cotangents, allow_unused=True, create_graph=again))


# --- comparing --------------------------------------------------------------------------------------------------------


def _apart(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether calls with two seeds gave different numbers."""
    return one.shape != other.shape or not torch.equal(_real(one).nan_to_num(), _real(other).nan_to_num())


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """Its real numbers, without a gradient."""
    constant = tensor.detach().resolve_conj().resolve_neg()
    return torch.view_as_real(constant) if constant.is_complex() else constant


def _difference(ours: Run, eager: Run, exact: Run, *, values: bool) -> str:
    """In what our run differs from eager PyTorch's; '' if in nothing."""
    for what in ("results", "first", "second"):
        runs = zip_longest(*(getattr(run, what) for run in (ours, eager, exact)))
        for number, (mine, theirs, right) in enumerate(runs):
            if what == "second" and (mine is None or theirs is None):  # zeros
                continue
            if what != "results" and mine is not None and theirs is not None:  # PyTorch's NaN bind nobody
                mine = torch.where(theirs.isnan(), theirs, mine) if mine.shape == theirs.shape else mine
            if wrong := _one_difference(mine, theirs, right, values):
                return f"{what} {number}: {wrong}"
    return ""


def _one_difference(mine: Any, theirs: Any, right: Any, values: bool) -> str:
    if mine is None or theirs is None:
        return "" if mine is theirs else f"{'None' if mine is None else 'a tensor'}, and not so in eager PyTorch"
    if (mine.shape, mine.dtype) != (theirs.shape, theirs.dtype):
        return f"{mine.dtype}{list(mine.shape)} instead of {theirs.dtype}{list(theirs.shape)}"
    if not values or not mine.numel():
        return ""
    inexact = theirs.is_floating_point() or theirs.is_complex()
    exact = right if inexact and right is not None and right.shape == theirs.shape else theirs
    return _numbers(_real(mine), _real(theirs), _real(exact))


def _numbers(mine: torch.Tensor, theirs: torch.Tensor, right: torch.Tensor) -> str:
    """Floats may be off by what single precision costs PyTorch itself; what overflows there may overflow here."""
    if not theirs.is_floating_point():
        return "" if torch.equal(mine, theirs) else f"{int((mine != theirs).sum())} of {mine.numel()} elements"
    one, two, exact = mine.double(), theirs.double(), right.double()
    finite = two.isfinite() & exact.isfinite()
    same = _same(one, two) | _same(one, exact)
    if (strange := torch.where(finite, ~one.isfinite(), ~same)).any():
        return f"{one[strange][0].item()} instead of {two[strange][0].item()}"
    if not finite.any():
        return ""
    one, two, exact = one[finite], two[finite], exact[finite]
    scale, own, off = (float(each.abs().max()) for each in (exact, two - exact, one - exact))
    allowed = torch.finfo(theirs.dtype).eps * (100 * scale + 1) + 16 * own
    return "" if off <= allowed else f"off by {off:.3g} of {scale:.3g}, where eager PyTorch is by {own:.3g}"


def _same(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return (one == other) | (one.isnan() & other.isnan())
