"""Optimizers that take means of gradients as Adam does, and use them otherwise: NAdam, RAdam, Adamax, Lion, Muon."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from glowtrain.graph import Value, Variable
from glowtrain.names import matches
from glowtrain.ops.elementwise.arithmetic import Abs, Pow, Sign, Sqrt
from glowtrain.ops.elementwise.extrema import Max
from glowtrain.ops.elementwise.logic import Where
from glowtrain.ops.reduce.reduction import ReduceSumSquare
from glowtrain.ops.tensor.move import Transpose, reshape
from glowtrain.optim.optimizer import Optimizer, Slots
from glowtrain.optim.rules import AdamW, MomentOptimizer, one_minus_power


@dataclass(frozen=True)
class NAdam(MomentOptimizer):
    """Adam with Nesterov's momentum: μᵗ = β₁ (1 - 0.96^(t momentum_decay) / 2), and in place of m̂ stands
    (1-μᵗ) g / (1 - μ¹…μᵗ) + μᵗ⁺¹ m / (1 - μ¹…μᵗ⁺¹).

    Source: Dozat, Incorporating Nesterov Momentum into Adam (ICLR workshop 2016), as torch.optim.NAdam.
    """

    lr: float = 2e-3
    _: KW_ONLY
    momentum_decay: float = 4e-3

    scalars: ClassVar[tuple[str, ...]] = ("product",)

    def slots(self) -> dict[str, float]:
        return {**super().slots(), "product": 1.0}

    def shared(self, hyper: Mapping[str, Value], t: Value) -> dict[str, Value]:
        decay = [Pow()(0.96, (t + number) * hyper["momentum_decay"]) for number in (1.0, 2.0)]
        now, later = (hyper["beta1"] * (1.0 - 0.5 * each) for each in decay)
        return {**super().shared(hyper, t), "now": now, "later": later}

    def rule(self, p: Value, g: Value, slots: Slots, h: Mapping[str, Value]) -> tuple[Value, Slots]:
        new = {**self.moments(g, slots, h), "product": slots["product"] * h["now"]}
        fresh = (1.0 - h["now"]) / (1.0 - new["product"]) * g
        direction = fresh + h["later"] / (1.0 - new["product"] * h["later"]) * new["m"]
        return p - h["lr"] * (direction / (Sqrt()(new["v"]) * h["root"] + h["eps"])), new


@dataclass(frozen=True)
class RAdam(MomentOptimizer):
    """Adam whose adaptive rate is multiplied by r, and which steps by lr m̂ alone while its variance is unknown (ρ ≤ 5).

    ρ∞ = 2 / (1-β₂) - 1, ρ = ρ∞ - 2 t β₂ᵗ / (1-β₂ᵗ), r² = (ρ-4) (ρ-2) ρ∞ / ((ρ∞-4) (ρ∞-2) ρ). Source: Liu et al., On the
    Variance of the Adaptive Learning Rate and Beyond (ICLR 2020), algorithm 2, as torch.optim.RAdam.
    """

    def shared(self, hyper: Mapping[str, Value], t: Value) -> dict[str, Value]:
        rest = one_minus_power(hyper["beta2"], t + 1.0)
        most = 2.0 / (1.0 - hyper["beta2"]) - 1.0
        length = most - 2.0 * (t + 1.0) * (1.0 - rest) / rest
        sure = length > 5.0
        ratio = (length - 4.0) * (length - 2.0) * most / ((most - 4.0) * (most - 2.0) * length)
        rectified = Sqrt()(Where()(sure, ratio, 1.0) * rest)
        return {**super().shared(hyper, t), "sure": Where()(sure, 1.0, 0.0), "rectified": rectified}

    def rule(self, p: Value, g: Value, slots: Slots, h: Mapping[str, Value]) -> tuple[Value, Slots]:
        new = self.moments(g, slots, h)
        factor = Where()(h["sure"] > 0.5, h["rectified"] / (Sqrt()(new["v"]) + h["eps"]), 1.0)
        return p - h["lr"] * h["rate"] * (new["m"] * factor), new


@dataclass(frozen=True)
class Adamax(MomentOptimizer):
    """Adam with the largest of the gradients, which fade by β₂, in place of √v̂: u = max(β₂ u, |g| + eps),
    p -= lr m̂ / u.

    Source: Kingma and Ba, Adam (ICLR 2015), algorithm 2, as torch.optim.Adamax.
    """

    lr: float = 2e-3

    def slots(self) -> dict[str, float]:
        return {"m": 0.0, "largest": 0.0}

    def rule(self, p: Value, g: Value, slots: Slots, h: Mapping[str, Value]) -> tuple[Value, Slots]:
        m = slots["m"] + (1.0 - h["beta1"]) * (g - slots["m"])
        largest = Max()(h["beta2"] * slots["largest"], Abs()(g) + h["eps"])
        return p - h["lr"] * h["rate"] * (m / largest), {"m": m, "largest": largest}


@dataclass(frozen=True)
class Lion(Optimizer):
    """p -= lr sign(β₁ m + (1-β₁) g), then m = β₂ m + (1-β₂) g, with decoupled weight decay.

    Source: Chen et al., Symbolic Discovery of Optimization Algorithms (arXiv:2302.06675), program 1.
    """

    lr: float = 1e-4
    _: KW_ONLY
    beta1: float = 0.9
    beta2: float = 0.99

    decoupled: ClassVar[bool] = True

    def slots(self) -> dict[str, float]:
        return {"m": 0.0}

    def rule(self, p: Value, g: Value, slots: Slots, h: Mapping[str, Value]) -> tuple[Value, Slots]:
        direction = Sign()(slots["m"] + (1.0 - h["beta1"]) * (g - slots["m"]))
        return p - h["lr"] * direction, {"m": slots["m"] + (1.0 - h["beta2"]) * (g - slots["m"])}


NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
ROUNDS, LEAST_NORM = 5, 1e-7
"""Coefficients of the quintic iteration, how often it is taken, and the least norm that a direction is divided by."""


@dataclass(frozen=True)
class Muon(AdamW):
    """Momentum made orthogonal for matrices, AdamW for all else.

    buf = momentum buf + (1 - momentum) g; the direction (1 - momentum) g + momentum buf, as a matrix of the first axis
    by all others, becomes about U Vᵀ of its singular value decomposition by :data:`ROUNDS` Newton-Schulz steps; p -= lr
    0.2 √max(rows, columns) of it, whose size is that of AdamW's, so that both take one rate. ``adamw`` names those
    weights of rank 2 or more that AdamW updates, too: embeddings and the last layer, say.

    Source: Jordan et al., Muon (2024, kellerjordan.github.io/posts/muon); the scale: Liu et al., Muon is Scalable for
    LLM Training (arXiv:2502.16982), section 2.2, as torch.optim.Muon with adjust_lr_fn="match_rms_adamw".
    """

    _: KW_ONLY
    momentum: float = 0.95
    adamw: tuple[str, ...] | Callable[[Variable], bool] = ()
    weight_decay: float = 0.1

    def slots_of(self, parameter: Variable) -> dict[str, float]:
        return self.slots() if self.by_adamw(parameter) else {"momentum": 0.0}

    def by_adamw(self, parameter: Variable) -> bool:
        """Whether a parameter is updated by AdamW."""
        named = self.adamw(parameter) if callable(self.adamw) else matches(parameter.name, self.adamw)
        return named or parameter.rank < 2

    def rule(self, p: Value, g: Value, slots: Slots, h: Mapping[str, Value]) -> tuple[Value, Slots]:
        if "momentum" not in slots:
            return super().rule(p, g, slots, h)
        buffer = slots["momentum"] + (1.0 - h["momentum"]) * (g - slots["momentum"])
        direction = reshape(g + h["momentum"] * (buffer - g), (g.shape[0], g.type.size // g.shape[0]))
        scale = 0.2 * max(direction.shape) ** 0.5
        return p - h["lr"] * (scale * reshape(orthogonal(direction), p.shape)), {"momentum": buffer}


def orthogonal(x: Value) -> Value:
    """About U Vᵀ for a matrix U S Vᵀ: singular values between 0.7 and 1.2, by a quintic Newton-Schulz iteration."""
    tall = x.shape[0] > x.shape[1]
    x = Transpose(perm=(1, 0))(x) if tall else x
    x = x / Max()(Sqrt()(ReduceSumSquare(axes=None, keepdims=False)(x)), LEAST_NORM)
    a, b, c = NEWTON_SCHULZ
    for _ in range(ROUNDS):
        gram = x @ Transpose(perm=(1, 0))(x)
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    result: Value = Transpose(perm=(1, 0))(x) if tall else x
    return result
