"""Contractions of products, convolutions and their gradients, and the same ones with operands of bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glowtrain.backends.cpu.contraction import Contraction, EpilogueClip, Operand, OperandAccess


def matmul(m: int, n: int, k: int, form: str = "NN", **options: object) -> Contraction:
    """C[m, n] = A[m, k] B[k, n], with A stored as [k, m] for T?, B as [n, k] for ?T."""
    a = (k, 0, 1) if form[0] == "N" else (1, 0, m)
    b = (0, 1, n) if form[1] == "N" else (0, k, 1)
    return Contraction(
        ("m", "n", "k"), (m, n, k), OperandAccess(0, (n, 1, 0)), OperandAccess(0, a), OperandAccess(0, b), **options
    )  # type: ignore[arg-type]


@dataclass(frozen=True)
class Image:
    """A 2-d convolution: batch, output height and width, channels in and out, kernel, stride, padding, dilation."""

    n: int
    y: int
    x: int
    i: int
    o: int
    k: int
    stride: int = 1
    pad: int = 1
    dilation: int = 1

    @property
    def height(self) -> int:
        return (self.y - 1) * self.stride + (self.k - 1) * self.dilation + 1 - 2 * self.pad

    @property
    def width(self) -> int:
        return (self.x - 1) * self.stride + (self.k - 1) * self.dilation + 1 - 2 * self.pad

    @property
    def clips(self) -> tuple[EpilogueClip, EpilogueClip]:
        start, s, d = -self.pad, self.stride, self.dilation
        return EpilogueClip((0, s, 0, 0, 0, d, 0), start, self.height), EpilogueClip(
            (0, 0, s, 0, 0, 0, d), start, self.width
        )

    def accesses(self, order: str) -> tuple[OperandAccess, OperandAccess, OperandAccess]:
        """Image, weights and result over the loops n, y, x, o, i, kh, kw."""
        h, w, i, o, k, s, d = self.height, self.width, self.i, self.o, self.k, self.stride, self.dilation
        if order == "last":
            image, result = (h * w * i, w * i, i, 1), (self.y * self.x * o, self.x * o, o, 1)
            weights = (0, 0, 0, 1, o, k * i * o, i * o)
        else:
            image, result = (h * w * i, w, 1, h * w), (self.y * self.x * o, self.x, 1, self.y * self.x)
            weights = (0, 0, 0, i * k * k, k * k, k, 1)
        moves = (image[0], s * image[1], s * image[2], 0, image[3], d * image[1], d * image[2])
        corner = -self.pad * (image[1] + image[2])
        return OperandAccess(corner, moves), OperandAccess(0, weights), OperandAccess(0, (*result, 0, 0, 0))

    def contraction(self, kind: str = "forward", order: str = "last", **options: object) -> Contraction:
        image, weights, result = self.accesses(order)
        c, a, b = (result, image, weights) if kind == "forward" else (weights, image, result)
        extents = (self.n, self.y, self.x, self.o, self.i, self.k, self.k)
        return Contraction(("n", "y", "x", "o", "i", "kh", "kw"), extents, c, a, b, self.clips, **options)  # type: ignore[arg-type]


def data_gradient(n: int, h: int, w: int, i: int, o: int, k: int, pad: int) -> Contraction:
    """dX[y, x, i] = sum dY[y + pad - kh, x + pad - kw, o] W[kh, kw, i, o] at stride 1; weights as stored for the
    forward.
    """
    height, width = h + 2 * pad - k + 1, w + 2 * pad - k + 1
    c = OperandAccess(0, (h * w * i, w * i, i, 1, 0, 0, 0))
    a = OperandAccess(pad * (width + 1) * o, (height * width * o, width * o, o, 0, 1, -width * o, -o))
    b = OperandAccess(0, (0, 0, 0, o, 1, k * i * o, i * o))
    clips = EpilogueClip((0, 1, 0, 0, 0, -1, 0), pad, height), EpilogueClip((0, 0, 1, 0, 0, 0, -1), pad, width)
    return Contraction(("n", "y", "x", "i", "o", "kh", "kw"), (n, h, w, i, o, k, k), c, a, b, clips)


def depthwise(n: int, y: int, c: int, k: int, kind: str) -> Contraction:
    """The forward or the weight gradient of a padded depthwise convolution at stride 1, channels last."""
    pad = k // 2
    image = OperandAccess(-pad * (y * c + c), (y * y * c, y * c, c, 1, y * c, c))
    weights, result = OperandAccess(0, (0, 0, 0, 1, k * c, c)), OperandAccess(0, (y * y * c, y * c, c, 1, 0, 0))
    out, other = (result, weights) if kind == "forward" else (weights, result)
    clips = EpilogueClip((0, 1, 0, 0, 1, 0), -pad, y), EpilogueClip((0, 0, 1, 0, 0, 1), -pad, y)
    return Contraction(("n", "y", "x", "c", "kh", "kw"), (n, y, y, c, k, k), out, image, other, clips)


SHAPES = {
    **{f"matmul {form}": matmul(37, 50, 75, form) for form in ("NN", "NT", "TN", "TT")},
    "matmul long": matmul(33, 40, 2000, "TN"),
    "matmul blocked": matmul(130, 40, 500, accumulate=True),
    "matmul packed": matmul(40, 128, 300, "NT", dtype="f64"),
    "vector matrix": matmul(1, 100, 130),
    "matrix vector": matmul(100, 1, 130),
    "dot": matmul(1, 1, 1001),
    "outer": matmul(19, 37, 1),
    "conv": Image(2, 9, 9, 8, 24, 3).contraction(),
    "conv stride 2": Image(2, 8, 7, 3, 16, 7, stride=2, pad=3).contraction(),
    "conv dilated": Image(1, 11, 12, 4, 8, 3, dilation=2, pad=2).contraction(),
    "conv channels first": Image(1, 9, 18, 4, 6, 3).contraction(order="first"),
    "conv 1x1": Image(2, 7, 7, 24, 40, 1, pad=0).contraction(),
    "weights": Image(2, 9, 9, 8, 24, 3).contraction("weights"),
    "weights stride 2": Image(2, 8, 7, 3, 16, 3, stride=2, pad=1).contraction("weights"),
    "weights channels first": Image(1, 9, 18, 4, 6, 3).contraction("weights", order="first"),
    "data": data_gradient(2, 9, 8, 16, 12, 3, 1),
    "depthwise": depthwise(2, 9, 40, 3, "forward"),
    "depthwise weights": depthwise(2, 9, 40, 5, "weights"),
    "attention": Contraction(
        ("b", "q", "k", "d"), (3, 20, 20, 24),
        OperandAccess(0, (400, 20, 1, 0)), OperandAccess(0, (480, 24, 0, 1)), OperandAccess(0, (480, 0, 24, 1)),
    ),
}  # fmt: skip

BYTES = {
    "right": ("", "i8", False), "right, known": ("", "i8", True), "left": ("i8", "", False),
    "left, known": ("u8", "", True), "both": ("u8", "i8", True),
}  # fmt: skip
"""Types of A and B, where they are not that of the sums, and whether bytes are known when code is generated."""


def of_bytes(contraction: Contraction, how: str) -> Contraction:
    *types, known = BYTES[how]
    a, b = (Operand(type_ or contraction.dtype, constant=known and bool(type_)) for type_ in types)
    return replace(contraction, operands=(a, b))
