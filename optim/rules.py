"""The optimizers. Formulas are those of the PyTorch 2 documentation (torch.optim), and the papers named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from glowtrain.errors import InputError
from glowtrain.graph import Value
from glowtrain.ops.elementwise.arithmetic import Reciprocal, Sqrt
from glowtrain.ops.elementwise.extrema import Max
from glowtrain.ops.elementwise.logic import Where
from glowtrain.ops.elementwise.transcendental import Log, Tanh
from glowtrain.optim.optimizer import Optimizer, Slots


@dataclass(frozen=True)
class SGD(Optimizer):
    """Gradient descent: buf = momentum buf + (1 - dampening) g, p -= lr buf (Nesterov: p -= lr (g + momentum buf)).

    The first update sets buf = g. Source: Sutskever et al., On the importance of initialization and momentum in deep
    learning (ICML 2013), as torch.optim.SGD writes it.
    """

    lr: float = 1e-2
    _: KW_ONLY
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise InputError("sgd: nesterov=True needs a momentum above 0 and no dampening")

    def uses(self, name: str) -> bool:
        if name == "dampening":
            return self.momentum != 0 and not self.nesterov
        return name != "momentum" or self.momentum != 0

    def slots(self) -> dict[str, float]:
        return {"momentum": 0.0} if self.momentum != 0 else {}

    def shared(self, hyper: Mapping[str, Value], t: Value) -> dict[str, Value]:
        if "dampening" not in hyper:
            return {}
        return {"gain": Where()(t < 0.5, 1.0, 1.0 - hyper["dampening"])}

    def rule(self, p: Value, g: Value, slots: Slots, h: Mapping[str, Value]) -> tuple[Value, Slots]:
        if not slots:
            return p - h["lr"] * g, {}
        fresh = g if self.nesterov else h["gain"] * g
        buffer = h["momentum"] * slots["momentum"] + fresh
        direction = g + h["momentum"] * buffer if self.nesterov else buffer
        return p - h["lr"] * direction, {"momentum": buffer}


@dataclass(frozen=True)
class MomentOptimizer(Optimizer):
    """What takes means of gradients and of their squares: m = β₁ m + (1-β₁) g, v = β₂ v + (1-β₂) g²; updates count from
    t = 1, m̂ = m / (1-β₁ᵗ), v̂ = v / (1-β₂ᵗ)."""

    _: KW_ONLY
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def slots(self) -> dict[str, float]:
        return {"m": 0.0, "v": 0.0}

    def shared(self, hyper: Mapping[str, Value], t: Value) -> dict[str, Value]:
        updates = t + 1.0
        return {
            "rate": Reciprocal()(one_minus_power(hyper["beta1"], updates)),
            "root": Reciprocal()(Sqrt()(one_minus_power(hyper["beta2"], updates))),
        }

    def moments(self, g: Value, slots: Slots, h: Mapping[str, Value]) -> Slots:
        """The new means."""
        m = slots["m"] + (1.0 - h["beta1"]) * (g - slots["m"])
        return {"m": m, "v": h["beta2"] * slots["v"] + (1.0 - h["beta2"]) * (g * g)}


@dataclass(frozen=True)
class Adam(MomentOptimizer):
    """p -= lr m̂ / (√v̂ + eps); with ``amsgrad`` the largest v so far stands for v.

    Source: Kingma and Ba, Adam (ICLR 2015), algorithm 1; epsilon is added after the bias correction, as in
    torch.optim.Adam (ONNX's preview operator adds it before). amsgrad: Reddi et al., On the Convergence of Adam and
    Beyond (ICLR 2018).
    """

    _: KW_ONLY
    amsgrad: bool = False

    def slots(self) -> dict[str, float]:
        return {**super().slots(), **({"largest": 0.0} if self.amsgrad else {})}

    def rule(self, p: Value, g: Value, slots: Slots, h: Mapping[str, Value]) -> tuple[Value, Slots]:
        new = self.moments(g, slots, h)
        if self.amsgrad:
            new["largest"] = Max()(slots["largest"], new["v"])
        divisor = Sqrt()(new["largest"] if self.amsgrad else new["v"]) * h["root"] + h["eps"]
        return p - h["lr"] * h["rate"] * (new["m"] / divisor), new


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay: p -= lr weight_decay p before Adam's own update.

    Source: Loshchilov and Hutter, Decoupled Weight Decay Regularization (ICLR 2019), as torch.optim.AdamW.
    """

    _: KW_ONLY
    weight_decay: float = 1e-2

    decoupled: ClassVar[bool] = True


@dataclass(frozen=True)
class RMSProp(Optimizer):
    """v = α v + (1-α) g², p -= lr g / (√v + eps); ``centered`` subtracts the square of the mean gradient from v.

    With momentum: buf = momentum buf + g / (√v + eps), p -= lr buf. Source: Tieleman and Hinton, Lecture 6.5 (Coursera,
    2012); centered: Graves, arXiv:1308.0850; as torch.optim.RMSprop.
    """

    lr: float = 1e-2
    _: KW_ONLY
    alpha: float = 0.99
    eps: float = 1e-8
    momentum: float = 0.0
    centered: bool = False

    def uses(self, name: str) -> bool:
        return name != "momentum" or self.momentum != 0

    def slots(self) -> dict[str, float]:
        return {
            "square": 0.0,
            **({"mean": 0.0} if self.centered else {}),
            **({"momentum": 0.0} if self.momentum != 0 else {}),
        }

    def rule(self, p: Value, g: Value, slots: Slots, h: Mapping[str, Value]) -> tuple[Value, Slots]:
        new = {"square": h["alpha"] * slots["square"] + (1.0 - h["alpha"]) * (g * g)}
        variance = new["square"]
        if self.centered:
            new["mean"] = slots["mean"] + (1.0 - h["alpha"]) * (g - slots["mean"])
            variance = variance - new["mean"] * new["mean"]
        direction = g / (Sqrt()(variance) + h["eps"])
        if "momentum" in slots:
            direction = new["momentum"] = h["momentum"] * slots["momentum"] + direction
        return p - h["lr"] * direction, new


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """s = s + g², p -= lr / (1 + t lr_decay) g / (√s + eps), where t counts updates from 0.

    ``initial`` fills s at the start. Source: Duchi et al., Adaptive Subgradient Methods (JMLR 2011), as
    torch.optim.Adagrad.
    """

    lr: float = 1e-2
    _: KW_ONLY
    lr_decay: float = 0.0
    eps: float = 1e-10
    initial: float = 0.0

    def uses(self, name: str) -> bool:
        return name != "initial"

    def slots(self) -> dict[str, float]:
        return {"sum": self.initial}

    def shared(self, hyper: Mapping[str, Value], t: Value) -> dict[str, Value]:
        return {"slowed": Reciprocal()(1.0 + t * hyper["lr_decay"])}

    def rule(self, p: Value, g: Value, slots: Slots, h: Mapping[str, Value]) -> tuple[Value, Slots]:
        total = slots["sum"] + g * g
        return p - h["lr"] * h["slowed"] * (g / (Sqrt()(total) + h["eps"])), {"sum": total}


@dataclass(frozen=True)
class Adadelta(Optimizer):
    """v = ρ v + (1-ρ) g², d = √(u + eps) / √(v + eps) g, u = ρ u + (1-ρ) d², p -= lr d.

    Source: Zeiler, ADADELTA (arXiv:1212.5701), algorithm 1, as torch.optim.Adadelta.
    """

    lr: float = 1.0
    _: KW_ONLY
    rho: float = 0.9
    eps: float = 1e-6

    def slots(self) -> dict[str, float]:
        return {"square": 0.0, "delta": 0.0}

    def rule(self, p: Value, g: Value, slots: Slots, h: Mapping[str, Value]) -> tuple[Value, Slots]:
        square = h["rho"] * slots["square"] + (1.0 - h["rho"]) * (g * g)
        change = Sqrt()(slots["delta"] + h["eps"]) / Sqrt()(square + h["eps"]) * g
        delta = h["rho"] * slots["delta"] + (1.0 - h["rho"]) * (change * change)
        return p - h["lr"] * change, {"square": square, "delta": delta}


def one_minus_power(base: Value, exponent: Value) -> Value:
    """1 - baseᵗ, to full relative precision also where the power is near 1.

    With x = t log(base): 1 - eˣ = -2 tanh(x/2) / (1 - tanh(x/2)).
    """
    half = Tanh()(Log()(base) * exponent * 0.5)
    result: Value = -2.0 * half / (1.0 - half)
    return result
