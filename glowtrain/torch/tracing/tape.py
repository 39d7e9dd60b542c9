"""Which leaves autograd would connect with a result: fake tensors of a trace keep a tape as all others do.

What the tape connects gets a gradient in PyTorch, of zeros where a derivative is zero everywhere; what it does not gets
none, and optimizers leave it alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import is_fake
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakTensorKeyDictionary

from glowtrain.errors import ModelError

NORMS = {
    "LinalgVectorNormBackward0": "_saved_ord",
    **dict.fromkeys(["NormBackward0", "NormBackward1", "DistBackward0"], "_saved_p"),
}
"""Nodes of PyTorch's tape, and what they call the order of a norm."""
Names = frozenset[Any]
NO_NAMES: Names = frozenset()


@dataclass(frozen=True)
class Connected:
    """The leaves of one result, by their placeholders. ``inner``: those that it is connected with by gradients within
    the computation alone, of which the tape does not know what they depend on; ``made``: whether there are leaves that
    the computation makes itself."""

    leaves: Names = NO_NAMES
    inner: Names = NO_NAMES
    made: bool = False


class Tape:
    """The tape of a computation while it is traced; ``gradient`` is the operator that it calls for inner gradients."""

    def __init__(self, gradient: str) -> None:
        self._gradient = gradient.replace("::", "_")
        self._results: list[tuple[Names, Names]] = []

    def record(self, results: Any, inputs: Any, parameters: Mapping[str, torch.Tensor]) -> None:
        """Keep what results are connected with: inputs by number, parameters by name, others themselves."""
        names: dict[int, list[Any]] = {}
        tensors = [each for each in pytree.tree_leaves(inputs) if isinstance(each, torch.Tensor)]
        for name, tensor in [*enumerate(tensors), *parameters.items()]:
            names.setdefault(id(tensor), []).append(name)

        def named(result: Any, cut: str | None) -> Names:
            return frozenset(name for leaf in _leaves(result, cut) for name in names.get(id(leaf), (leaf,)))

        self._results = [(named(each, self._gradient), named(each, None)) for each in pytree.tree_leaves(results)]

    def read(self, placeholders: Mapping[str, Any]) -> list[Connected]:
        """What results are connected with, by the placeholders for what was recorded."""
        known = frozenset(placeholders.values())

        def of(names: Names) -> Names:
            return frozenset(placeholder for placeholder, name in placeholders.items() if name in names)

        made = [any(isinstance(name, torch.Tensor) for name in every - known) for _, every in self._results]
        pairs = zip(self._results, made, strict=True)
        return [Connected(of(direct), of(every) - of(direct), own) for (direct, every), own in pairs]


class TapedMemory:
    """The memory of tensors that are on the tape. What is written there where nothing is taped (under no_grad, by
    ``y.detach().mul_()``) changes values and leaves the tape as it was, of which a functional graph knows nothing."""

    def __init__(self) -> None:
        self._memory: set[StorageWeakRef] = set()
        self._detached = WeakTensorKeyDictionary()
        """Tensors that lie in another one's memory and are no views of it to autograd."""

    def take(self, tensors: Sequence[Any]) -> None:
        """Note where those lie that are on the tape."""
        self._memory.update(_memory(each) for each in tensors if _has_memory(each) and each.requires_grad)

    def versions(self, tensors: Sequence[Any]) -> list[tuple[torch.Tensor, int]]:
        """How often each has been written, of those that a call is given."""
        self.take(tensors)
        return [(each, each._version) for each in tensors if _has_memory(each)]

    def alias(self, operands: Sequence[Any], results: Sequence[Any]) -> None:
        """Note which results lie where operands do, with a tape of their own, as ``y.detach()`` does."""
        given = {id(each) for each in operands}
        for result in [each for each in results if _has_memory(each) and id(each) not in given]:
            base, memory = _base(result), _memory(result)
            bases = [_base(each) for each in operands if _has_memory(each) and _memory(each) == memory]
            if bases and not any(each is base for each in bases):
                self._detached[base] = True

    def check(self, before: Sequence[tuple[torch.Tensor, int]]) -> None:
        """Raise :class:`ModelError` where the call has written so, or has put on the tape what is in the memory of a
        tensor with another tape, or none: a trace takes ``y.detach()`` for a view, which follows. What it has written
        to tensors that stay off the tape becomes a constant to differentiation: a functional graph knows of values
        alone, and these may be computed from what is on the tape (under no_grad, or as running statistics)."""
        written = [tensor for tensor, version in before if tensor._version != version]
        untaped = [tensor for tensor in written if not _is_taped(tensor)]
        if any(_is_taped(tensor) and _base(tensor) in self._detached for tensor in written):
            raise ModelError(
                "what requires a gradient is written in place through detach() of a tensor, or to a result of "
                "no_grad: write it to the tensor itself, under no_grad, or to a clone"
            )
        if any(_memory(tensor) in self._memory for tensor in untaped):
            raise ModelError(
                "a tensor through which gradients flow is changed in place where none do (no_grad, detach): "
                "change a clone of it"
            )
        if any(tensor.requires_grad for tensor, _ in before):
            for tensor in untaped:
                tensor.copy_(tensor.detach())


def _is_taped(written: torch.Tensor) -> bool:
    return bool(written.requires_grad and torch.is_grad_enabled())


def _base(tensor: torch.Tensor) -> torch.Tensor:
    """What a tensor is a view of, which shares its tape."""
    return tensor if tensor._base is None else tensor._base


def _has_memory(tensor: Any) -> bool:
    strided = isinstance(tensor, torch.Tensor) and is_fake(tensor) and tensor.layout is torch.strided
    return strided and not tensor.is_inference()  # whose changes are not counted


def _memory(tensor: torch.Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())


def _leaves(result: Any, cut: str | None) -> list[torch.Tensor]:
    """The leaves that a result's tape leads to, but for ways through nodes with ``cut`` in their names."""
    if not isinstance(result, torch.Tensor) or not result.requires_grad:
        return []
    if result.grad_fn is None:
        return [result]
    seen, left = {result.grad_fn}, [result.grad_fn]
    while left:
        node = left.pop()
        if (cut is None or cut not in node.name()) and not _counts(node):
            more = {following for following, _ in node.next_functions if following is not None} - seen
            seen |= more
            left += more
    return [node.variable for node in seen if hasattr(node, "variable")]


def _counts(node: Any) -> bool:
    """Whether a node of the tape is a norm of order 0, which counts elements: PyTorch gives its operand no gradient."""
    order = getattr(node, NORMS.get(node.name(), ""), None)
    return order is not None and order == 0
