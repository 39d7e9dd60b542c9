"""Losses beside PyTorch's: values and gradients, in f64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

import glowtrain as gt
from glowtrain.backends.interpreter import evaluate
from glowtrain.losses import Loss

RANDOM = np.random.default_rng(7)
SCORES, OTHERS, THIRD = RANDOM.standard_normal((3, 6, 4))
LABELS, SIGNS = np.array([0, 3, 1, 3, 2, 0]), np.array([1.0, -1, -1, 1, -1, 1])
IGNORED = np.array([0, 3, -100, 3, -100, 0])
SHARES = RANDOM.dirichlet(np.ones(4), 6) * np.array([1, 1, 1, 0])
HALVES = RANDOM.random((6, 4))
WEIGHTS, POSITIVE, EXAMPLES = [0.5, 2.0, 0.0, 1.5], [1.0, 3.0, 0.5, 2.0], np.array([1.0, 0.0, 2.0, 0.5, 3.0, 1.0])

Peer = Callable[..., Tensor]
Case = tuple[Loss, Peer, list[np.ndarray], list[np.ndarray]]


def focal_loss(scores: Tensor, labels: Tensor, gamma: float, weight: Tensor | None = None) -> Tensor:
    each = functional.cross_entropy(scores, labels, reduction="none")
    counts = torch.ones(len(labels)) if weight is None else weight[labels]
    return ((1 - torch.exp(-each)) ** gamma * each * counts).sum() / counts.sum()


def cross_entropy(**settings: Any) -> Peer:
    if "weight" in settings:
        settings["weight"] = torch.tensor(settings["weight"], dtype=torch.float64)
    return lambda scores, labels: functional.cross_entropy(scores, labels, **settings)


def by_example(each: Peer) -> Peer:
    """PyTorch's losses of examples, as their weighted mean."""

    def loss(*tensors: Tensor) -> Tensor:
        *others, weight = tensors
        values = each(*others).reshape(len(weight), -1)
        return (values * weight[:, None]).sum() / (weight.sum() * values.shape[1])

    return loss


def of_both_weights(scores: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """The mean over what labels count by their classes, times the weights of the examples."""
    classes = torch.tensor(WEIGHTS, dtype=torch.float64)
    each = functional.cross_entropy(scores, labels, classes, ignore_index=-100, reduction="none")
    counts = torch.where(labels == -100, 0.0, classes[labels.clamp(min=0)])
    return (each * weight).sum() / (counts * weight).sum()


losses = gt.losses
CASES: dict[str, Case] = {
    "class weights": (
        losses.softmax_cross_entropy(class_weight=WEIGHTS), cross_entropy(weight=WEIGHTS), [SCORES], [LABELS],
    ),
    "smoothing": (
        losses.softmax_cross_entropy(label_smoothing=0.1), cross_entropy(label_smoothing=0.1), [SCORES], [LABELS],
    ),
    "smoothing, weights and ignored": (
        losses.softmax_cross_entropy(label_smoothing=0.3, class_weight=WEIGHTS, ignore_index=-100),
        cross_entropy(label_smoothing=0.3, weight=WEIGHTS, ignore_index=-100), [SCORES], [IGNORED],
    ),
    "smoothing, sum": (
        losses.softmax_cross_entropy(label_smoothing=0.3, class_weight=WEIGHTS, reduction="sum"),
        cross_entropy(label_smoothing=0.3, weight=WEIGHTS, reduction="sum"), [SCORES], [LABELS],
    ),
    "smoothing along axis 1": (
        losses.softmax_cross_entropy(axis=1, label_smoothing=0.2, class_weight=WEIGHTS),
        cross_entropy(label_smoothing=0.2, weight=WEIGHTS), [SCORES.reshape(2, 3, 4).transpose(0, 2, 1)],
        [LABELS.reshape(2, 3)],
    ),
    "nll": (
        losses.nll(class_weight=WEIGHTS),
        lambda y, z: functional.nll_loss(y, z, torch.tensor(WEIGHTS, dtype=torch.float64)), [SCORES], [LABELS],
    ),
    "positive weight": (
        losses.bce_with_logits(pos_weight=3),
        lambda y, z: functional.binary_cross_entropy_with_logits(y, z, pos_weight=torch.tensor(3.0)),
        [SCORES], [HALVES],
    ),
    "positive weights": (
        losses.bce_with_logits(pos_weight=POSITIVE),
        lambda y, z: functional.binary_cross_entropy_with_logits(y, z, pos_weight=torch.tensor(POSITIVE)),
        [SCORES], [HALVES],
    ),
    "focal": (losses.focal(), lambda y, z: focal_loss(y, z, 2.0), [SCORES], [LABELS]),
    "focal, weights": (
        losses.focal(gamma=0.5, class_weight=WEIGHTS),
        lambda y, z: focal_loss(y, z, 0.5, torch.tensor(WEIGHTS, dtype=torch.float64)), [SCORES], [LABELS],
    ),
    "kl": (
        losses.kl(), lambda y, z: functional.kl_div(y, z, reduction="batchmean"), [SCORES], [SHARES],
    ),
    "kl, sum": (losses.kl(reduction="sum"), lambda y, z: functional.kl_div(y, z, reduction="sum"), [SCORES], [SHARES]),
    "cosine": (
        losses.cosine(), lambda y, z: (1 - functional.cosine_similarity(y, z)).mean(), [SCORES], [OTHERS],
    ),
    "cosine embedding": (
        losses.cosine_embedding("y0", "y1", margin=0.1),
        lambda a, b, z: functional.cosine_embedding_loss(a, b, z, margin=0.1), [SCORES, OTHERS], [SIGNS],
    ),
    "triplet": (
        losses.triplet("y0", "y1", "y2", margin=0.7),
        lambda a, p, n: functional.triplet_margin_loss(a, p, n, margin=0.7), [SCORES, OTHERS, THIRD], [],
    ),
    "sum": (
        losses.softmax_cross_entropy(output="y0") + 0.5 * losses.mse("z", "y1") + losses.l1("z", "y2") * 2,
        lambda a, b, c, labels, z: (
            functional.cross_entropy(a, labels) + 0.5 * functional.mse_loss(b, z) + 2 * functional.l1_loss(c, z)
        ),
        [SCORES, OTHERS, THIRD], [LABELS, HALVES],
    ),
    "weighted mse": (
        losses.weighted(losses.mse()), by_example(lambda y, z: (y - z) ** 2), [SCORES], [OTHERS, EXAMPLES],
    ),
    "weighted cross entropy": (
        losses.weighted("softmax_cross_entropy"), by_example(cross_entropy(reduction="none")),
        [SCORES], [LABELS, EXAMPLES],
    ),
    "weighted, weights of classes and ignored": (
        losses.weighted(losses.softmax_cross_entropy(class_weight=WEIGHTS, ignore_index=-100)), of_both_weights,
        [SCORES], [IGNORED, EXAMPLES],
    ),
    "weighted triplet": (
        losses.weighted(losses.triplet("y0", "y1", "y2"), "w"),
        by_example(lambda a, p, n: functional.triplet_margin_loss(a, p, n, reduction="none")),
        [SCORES, OTHERS, THIRD], [EXAMPLES],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str) -> None:
    loss, peer, outputs, targets = CASES[name]
    inputs = tuple(gt.Input(gt.f64[array.shape], f"y{number}") for number, array in enumerate(outputs))
    attached = loss.attach(gt.Graph(inputs, {value.name: value for value in inputs}, name="model"))
    gradients = gt.gradients(attached.value, inputs)
    results = {"loss": attached.value, **{f"d{n}": value for n, value in enumerate(gradients)}}
    feeds = {value.name: array for value, array in zip((*inputs, *attached.targets), [*outputs, *targets], strict=True)}
    values = evaluate(gt.Graph((*inputs, *attached.targets), results), feeds)
    tensors = [torch.tensor(array, requires_grad=True) for array in outputs]
    expected = peer(*tensors, *map(torch.tensor, targets))
    expected.backward()  # type: ignore[no-untyped-call]
    assert float(values[attached.value]) == pytest.approx(expected.item(), rel=1e-6, abs=1e-12)
    for gradient, tensor in zip(gradients, tensors, strict=True):
        assert tensor.grad is not None
        np.testing.assert_allclose(values[gradient], tensor.grad.numpy(), rtol=1e-6, atol=1e-9)
