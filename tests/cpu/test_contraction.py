"""Contractions of every kind against the sum written out in NumPy, in float64, index by index."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from glowtrain.backends.cpu.contraction import Contraction, EpilogueClip, Operand, OperandAccess, generate, rates
from glowtrain.backends.cpu.contraction.describe import Coordinates, FarLine
from glowtrain.backends.cpu.threads.count import GRAIN
from glowtrain.backends.cpu.threads.share import chunk_of
from glowtrain.backends.llvm.target import Target
from glowtrain.backends.llvm.text import LlvmFunction
from glowtrain.backends.llvm.toolchain import build
from glowtrain.backends.llvm.values import LlvmType, LlvmValue, Number, number, pointer, zero
from glowtrain.loops.functions import fused_multiply_add

WIDTHS = {
    "512": replace(Target.host(), vector_bits=512, vector_registers=32),
    "256": Target.named("avx2"),
    "128": Target.named("sse4"),
    "scalar": Target.named("scalar"),
}
UNTOUCHED = 12345.0
TYPES = {"f32": np.float32, "f64": np.float64, "i8": np.int8, "u8": np.uint8}


def addresses(access: OperandAccess, extents: Sequence[int]) -> np.ndarray:
    """The element address at every index of the nest."""
    total = np.full(tuple(extents), access.offset)
    for grid, stride in zip(np.indices(tuple(extents), sparse=True), access.strides, strict=True):
        total = total + grid * stride
    return total


def inside(contraction: Contraction) -> np.ndarray:
    """Which products count."""
    keep = np.full(contraction.extents, True)
    for clip in contraction.clips:
        value = addresses(OperandAccess(clip.offset, clip.coefficients), contraction.extents)
        keep &= (value >= 0) & (value < clip.extent)
    return keep


@dataclass
class Buffers:
    """Operands; what no valid index touches is NaN in A and B, so that a read of it shows (in bytes there is none)."""

    contraction: Contraction
    a: np.ndarray = field(init=False)
    b: np.ndarray = field(init=False)
    c: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        contraction, rng = self.contraction, np.random.default_rng(0)
        keep, dtype = inside(contraction), TYPES[contraction.dtype]
        for name in "ab":
            places = addresses(getattr(contraction, name), contraction.extents)[keep]
            buffer = np.full(places.max(initial=0) + 1, np.nan, dtype)
            buffer[places] = rng.standard_normal(len(buffer))[places]
            stored = contraction.types[name]
            if stored in ("i8", "u8"):
                low, high = (-128, 128) if stored == "i8" else (0, 256)
                buffer = rng.integers(low, high, len(buffer)).astype(TYPES[stored])
            setattr(self, name, buffer)
        places = addresses(contraction.c, contraction.extents)
        self.c = np.full(places.max() + 9, UNTOUCHED, dtype)
        if contraction.accumulate:
            self.c[places] = rng.standard_normal(len(self.c))[places]

    def expected(self) -> tuple[np.ndarray, np.ndarray]:
        """C by definition, and the sum of magnitudes as the scale of rounding errors."""
        contraction, keep = self.contraction, inside(self.contraction)
        a, b, c = (addresses(x, contraction.extents) for x in (contraction.a, contraction.b, contraction.c))
        products = self.a[a[keep]].astype(np.float64) * self.b[b[keep]]
        result, scale = self.c.astype(np.float64), np.abs(self.c).astype(np.float64)
        if not contraction.accumulate:
            result[c], scale[c] = 0, 0
        np.add.at(result, c[keep], products)
        np.add.at(scale, c[keep], np.abs(products))
        return result, scale


def execute(
    contraction: Contraction, target: Target, buffers: Buffers, epilogue: Bias | None = None, *more: np.ndarray
) -> np.ndarray:
    """C after all tasks, which has the same bits after some ranges of them, each with a workspace of its own."""
    kernel = generate(contraction, "contract", target, epilogue)
    function = build(kernel.text, target, ["contract"]).function("contract", 6 + len(more))
    operands = [buffers.a, buffers.b]
    if kernel.packed is not None:
        at, packing = kernel.packed
        operands[at] = packing.apply(operands[at])
    found = []
    for ranges in ([(0, kernel.work.tasks)], pieces(kernel.work.tasks)):
        result = buffers.c.copy()
        for begin, end in ranges:
            workspace = np.full(kernel.workspace // 4 + 64, np.nan, np.float32)
            arrays = (result, *operands, *more, workspace)
            function(*(array.ctypes.data for array in arrays), begin, end)
        found.append(result)
    np.testing.assert_array_equal(*(result.view(np.uint8) for result in found), err_msg=kernel.plan)
    return found[0]


def pieces(tasks: int) -> list[tuple[int, int]]:
    """Uneven ranges, the last ones first."""
    edges = sorted({0, tasks // 7, tasks // 2, tasks - tasks // 5, tasks})
    return list(pairwise(edges))[::-1]


def check(contraction: Contraction, target: Target) -> None:
    buffers = Buffers(contraction)
    expected, scale = buffers.expected()
    result = execute(contraction, target, buffers)
    terms = math.prod(e for e, s in zip(contraction.extents, contraction.c.strides, strict=True) if s == 0)
    tolerance = np.finfo(result.dtype).eps * (terms + 4)
    assert np.all(np.abs(result - expected) <= tolerance * scale + 1e-30), contraction


def dense(extents: Sequence[int], order: Sequence[int], moved: Sequence[int]) -> tuple[int, ...]:
    """Strides of an array with the axes ``moved`` laid out in ``order``, the last one contiguous; 0 for other loops."""
    strides, step = [0] * len(extents), 1
    for loop in reversed(order):
        if loop in moved:
            strides[loop], step = step, step * extents[loop]
    return tuple(strides)


ROLES = {
    "row": "ca",
    "column": "cb",
    "batch": "cab",
    "sum": "ab",
    "left": "a",
    "right": "b",
    "spread": "c",
    "scale": "",
}


@st.composite
def strided(draw: st.DrawFn, extents: Sequence[int], moved: Sequence[int], turn: bool) -> OperandAccess:
    """An array over the moved loops in any order, with gaps; some axes backwards if ``turn``."""
    order = draw(st.permutations(list(moved)))
    gap = draw(st.sampled_from([1, 1, 1, 2, 3]))
    strides = [stride * gap for stride in dense(extents, order, moved)]
    offset = draw(st.sampled_from([0, 0, 5]))
    for loop in moved:
        if turn and draw(st.integers(0, 4)) == 0:
            offset += strides[loop] * (extents[loop] - 1)
            strides[loop] = -strides[loop]
    return OperandAccess(offset, tuple(strides))


@st.composite
def clipped(draw: st.DrawFn, extents: Sequence[int], outputs: Sequence[int], sums: Sequence[int]) -> EpilogueClip:
    coefficients = [0] * len(extents)
    for loops in (outputs, sums):
        if loops and draw(st.integers(0, 7)) > 0:
            place = draw(st.integers(0, len(loops) - 1))
            coefficients[loops[place]] = draw(st.sampled_from([1, 1, 2, -1, 3, -2]))
    span = [coefficient * (extent - 1) for coefficient, extent in zip(coefficients, extents, strict=True)]
    low, high = sum(min(0, s) for s in span), sum(max(0, s) for s in span)
    cut = draw(st.integers(0, 3))
    return EpilogueClip(tuple(coefficients), -low - cut, max(1, high - low + 1 - cut - draw(st.integers(0, 3))))


@st.composite
def contractions(draw: st.DrawFn) -> Contraction:
    roles = draw(st.lists(st.sampled_from([*["row", "column", "sum"] * 3, *ROLES]), min_size=1, max_size=5))
    extents, room = [], 6000
    for _ in roles:
        extent = min(room, draw(st.sampled_from([1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 33, 40])))
        extents.append(extent)
        room = max(1, room // extent)
    moved = {x: [i for i, role in enumerate(roles) if x in ROLES[role]] for x in "cab"}
    accesses = {x: draw(strided(extents, moved[x], True)) for x in "cab"}
    sums = [i for i in range(len(roles)) if i not in moved["c"]]
    clips = draw(st.lists(clipped(extents, moved["c"], sums), max_size=2))
    names = tuple(f"{role[0]}{i}" for i, role in enumerate(roles))
    return Contraction(
        names, tuple(extents), accesses["c"], accesses["a"], accesses["b"], tuple(clips),
        draw(st.sampled_from(["f32", "f32", "f64"])), draw(st.booleans()),
        resident=(draw(st.booleans()), draw(st.booleans())),
    )  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(contraction=contractions(), width=st.sampled_from(sorted(WIDTHS)))
def test_random(contraction: Contraction, width: str) -> None:
    check(contraction, WIDTHS[width])


BYTES = {
    "right": ("", "i8", False), "right, known": ("", "i8", True), "left": ("i8", "", False),
    "left, known": ("u8", "", True), "both": ("u8", "i8", True),
}  # fmt: skip
"""Types of A and B, where they are not that of the sums, and whether bytes are known when code is generated."""


def of_bytes(contraction: Contraction, how: str) -> Contraction:
    *types, known = BYTES[how]
    a, b = (Operand(type_ or contraction.dtype, constant=known and bool(type_)) for type_ in types)
    return replace(contraction, operands=(a, b))


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(contraction=contractions(), how=st.sampled_from(sorted(BYTES)), width=st.sampled_from(sorted(WIDTHS)))
def test_random_bytes(contraction: Contraction, how: str, width: str) -> None:
    check(of_bytes(contraction, how), WIDTHS[width])


AVX2 = Target.named("avx2")
FUSED = {
    "512": WIDTHS["512"],
    "256": AVX2,
    "128": replace(AVX2, vector_bits=128, vector_registers=32, families=frozenset(), l1=4 << 10, l2=16 << 10),
    "scalar": WIDTHS["scalar"],
}
"""Targets of all widths of vectors with fused multiply-add; one has small caches."""


def check_bits(contraction: Contraction) -> None:
    """All targets give the same bits: those of one order, whatever they block, pack and keep in registers."""
    buffers = Buffers(contraction)
    found = {name: execute(contraction, target, buffers).tobytes() for name, target in FUSED.items()}
    assert not [name for name in found if found[name] != found["scalar"]], contraction


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(contraction=contractions())
def test_random_on_every_target(contraction: Contraction) -> None:
    check_bits(contraction)


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


@pytest.mark.parametrize("width", sorted(WIDTHS))
@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_shapes(shape: str, width: str) -> None:
    check(SHAPES[shape], WIDTHS[width])


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_shapes_on_every_target(shape: str) -> None:
    check_bits(SHAPES[shape])


@pytest.mark.parametrize("form", ["NN", "NT"])
@pytest.mark.parametrize(("m", "n"), [(1, 1), (3, 5), (4, 4), (1, 40), (5, 300)])
def test_few_rows_on_every_target(m: int, n: int, form: str) -> None:
    """Sums along the lanes, several sums for each of few results, and how each of them ends."""
    for k in (15, 16, 17, 40, 300):
        check_bits(matmul(m, n, k, form))


def test_sums_have_the_order_that_shapes_say() -> None:
    """One after another; in 16 partial sums where no loop over results finds neighbours; in 4 for few results."""
    for contraction, partials in ((matmul(20, 30, 100), 1), (matmul(2, 30, 100, "NT"), 16), (matmul(2, 5, 100), 4)):
        buffers = Buffers(contraction)
        m, n, k = contraction.extents
        a, b = buffers.a.reshape(m, k), buffers.b.reshape((k, n) if contraction.b.strides[1] == 1 else (n, k))
        b = b if contraction.b.strides[1] == 1 else b.T
        sums = np.zeros((partials, m, n), np.float32)
        for at in range(k):
            sums[at % partials] = fused_multiply_add(a[:, at, None], b[None, at], sums[at % partials])
        while len(sums) > 1:
            sums = sums[: len(sums) // 2] + sums[len(sums) // 2 :]
        result = execute(contraction, WIDTHS["scalar"], buffers)[: m * n].reshape(m, n)
        np.testing.assert_array_equal(result, sums[0])


def test_a_sum_in_parts_keeps_the_sign_of_zero() -> None:
    """Products that underflow leave -0, which is what the next part begins with."""
    product = matmul(8, 16, 512)
    whole, parted = WIDTHS["256"], replace(WIDTHS["256"], l1=4096, l2=16384)
    assert "chunk" in generate(product, "contract", parted).plan
    buffers = Buffers(product)
    a, b = buffers.a.reshape(8, 512), buffers.b.reshape(512, 16)
    a[:], b[:] = -0.0, 1
    a[:, 0], b[0] = -1e-30, 1e-30
    sums = [execute(product, target, buffers)[: 8 * 16] for target in (whole, parted)]
    assert all(np.signbit(each).all() and not each.any() for each in sums)


@pytest.mark.parametrize("width", sorted(WIDTHS))
@pytest.mark.parametrize("how", sorted(BYTES))
@pytest.mark.parametrize("shape", ["matmul NN", "matmul NT", "matmul packed", "vector matrix", "conv", "attention"])
def test_floats_times_bytes(shape: str, how: str, width: str) -> None:
    check(of_bytes(SHAPES[shape], how), WIDTHS[width])


@pytest.mark.parametrize("rows", [1, 7, 16, 128])
@pytest.mark.parametrize("form", ["NN", "NT"])
def test_known_bytes_are_packed_ahead(rows: int, form: str) -> None:
    """They are read one after another, and made floats in the kernel, or once for many rows."""
    contraction = of_bytes(matmul(rows, 130, 300, form), "right, known")
    kernel = generate(contraction, "contract", WIDTHS["512"])
    assert kernel.packed is not None
    assert ("pack_b" in kernel.plan) is (rows == 128)
    check(contraction, WIDTHS["512"])


def test_blocks_follow_the_caches_of_the_target() -> None:
    """A product whose A stays in the second level, or does not, by what the target says and not by its vectors."""
    avx2, contraction = Target.named("avx2"), matmul(512, 512, 512)
    plain = generate(contraction, "f", avx2).plan
    assert plain == generate(contraction, "f", replace(avx2, name="other")).plan
    assert plain != generate(contraction, "f", replace(avx2, l2=avx2.l2 // 16)).plan
    strided = SHAPES["conv 1x1"]
    assert generate(strided, "f", avx2).plan != generate(strided, "f", replace(avx2, l1=avx2.l1 // 16)).plan


def test_rows_that_others_wrote_are_copied_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of a weight takes a few columns of each example: that is slow where another core wrote them."""
    product = matmul(512, 128, 2048, "TN")
    assert "pack_a" in generate(product, "f", WIDTHS["512"]).plan
    monkeypatch.setattr(rates, "FIRST_RUN", 0)
    assert "pack_a" not in generate(product, "f", WIDTHS["512"]).plan


@pytest.mark.parametrize("width", ["256", "512"])
@pytest.mark.parametrize("rows", [1, 2, 4])
def test_a_matrix_from_memory_is_read_over_few_pages_at_once(rows: int, width: str) -> None:
    """Where few rows use it nothing is copied first; many rows have it packed, one that caches hold needs neither."""
    product, small, large = (
        matmul(rows, 1024, 96),
        replace(WIDTHS[width], l2=1 << 17),
        replace(WIDTHS[width], l2=1 << 20),
    )
    few = generate(product, "contract", small).plan
    assert f"chunk k/{rates.FOLLOWED}" in few
    assert "pack" not in few
    assert "pack_b" in generate(matmul(64, 1024, 96), "contract", small).plan
    assert f"chunk k/{rates.FOLLOWED}" not in generate(product, "contract", large).plan
    check(product, small)


def test_ranges_of_a_matrix_from_memory_have_many_columns() -> None:
    """Each begins anew on every page, so it is worth few of them; not where caches hold the matrix."""
    small, large = replace(WIDTHS["512"], l2=1 << 17), replace(WIDTHS["512"], l2=1 << 25)
    from_memory, held = (generate(matmul(8, 2048, 2048), "contract", target).work for target in (small, large))
    assert from_memory.shared >= 2048 * rates.NEW_PAGE > 8 * held.shared
    assert -(-from_memory.tasks // chunk_of(from_memory, GRAIN)) <= 8


def written_by(contraction: Contraction, target: Target, tasks: int) -> np.ndarray:
    """Which results the first tasks compute, by the indices of the nest."""
    kernel, buffers = generate(contraction, "contract", target), Buffers(contraction)
    function = build(kernel.text, target, ["contract"]).function("contract", 6)
    workspace = np.empty(kernel.workspace, np.uint8)
    function(*(array.ctypes.data for array in (buffers.c, buffers.a, buffers.b, workspace)), 0, tasks)
    return buffers.c[addresses(contraction.c, contraction.extents)[..., 0]] != UNTOUCHED


SHARED_BY_ROWS = {
    "a few columns": matmul(90, 40, 200),
    "little to pack again": matmul(288, 96, 32, "NT"),
    "a matrix that stays": matmul(18, 200, 100, resident=(False, True)),
}


@pytest.mark.parametrize("name", sorted(SHARED_BY_ROWS))
def test_tasks_next_to_each_other_have_rows_in_common(name: str) -> None:
    """Where each thread may well read all of B, what a thread writes are whole rows, whose lines no other one has."""
    contraction, target = SHARED_BY_ROWS[name], WIDTHS["256"]
    tiles = -(-contraction.extents[0] // 6)
    columns, rest = divmod(generate(contraction, "contract", target).work.tasks, tiles)
    assert columns > 1
    assert not rest
    found = written_by(contraction, target, 2 * columns)
    assert np.all(found[:12])
    assert not np.any(found[12:])


def test_tasks_next_to_each_other_have_images_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although the loop over the columns of an image stands around them: one of the phases of a depthwise gradient."""
    monkeypatch.setattr(rates, "ABOUT_THE_SAME", 1.0)
    rows, columns, channels = 192, 12, 40
    every_other = OperandAccess(0, (4 * columns * channels, 1, 2 * channels, 0))
    image, weights = OperandAccess(0, (columns * channels, 1, channels, 0)), OperandAccess(0, (0, 1, 0, channels))
    phase = Contraction(("r", "c", "x", "k"), (rows, channels, columns, 1), every_other, image, weights)
    kernel = generate(phase, "contract", WIDTHS["512"])
    assert kernel.plan.index("each x") < kernel.plan.index("tile r/28")
    tiles, groups = -(-rows // 28), -(-channels // 16)
    assert kernel.work.tasks == tiles * groups
    found = written_by(phase, WIDTHS["512"], 2 * groups)
    assert np.all(found[:55])
    assert not np.any(found[56:])


def test_threads_can_share_out_images_where_that_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tile of one point of all eight images would be a little faster on one core."""
    product, target = depthwise(8, 6, 192, 3, "forward"), Target.named("avx512")
    assert generate(product, "f", target).plan.startswith("6xx2y by 2 vectors of cx16; sum kh,kw; each n/1 > ")
    monkeypatch.setattr(rates, "SCATTERED", 1.0)
    assert generate(product, "f", target).plan.startswith("8n by 3 vectors of cx16; sum kh,kw; each y/1 > each x/1 > ")


def test_tasks_of_a_large_matrix_have_columns_in_common() -> None:
    """Each thread would bring all of it."""
    found = written_by(matmul(18, 200, 100), WIDTHS["256"], 2)
    assert np.all(found[:12, 0])
    assert not np.any(found[:, 100:])


@pytest.mark.parametrize("width", ["256", "512"])
@pytest.mark.parametrize("columns", [200, 210])
@pytest.mark.parametrize("form", ["NN", "NT", "TN"])
def test_columns_are_packed_in_blocks(form: str, columns: int, width: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many at once as may be, each block by one task: the same bits in less of a workspace."""
    product, target = matmul(300, columns, 130, form), replace(WIDTHS[width], l1=4096, l2=16384)
    buffers, whole = Buffers(product), generate(product, "contract", target)
    assert "columns" not in whole.plan
    expected = execute(product, target, buffers)
    monkeypatch.setattr(rates, "PACKED_AT_ONCE", 1 << 15)
    blocked = generate(product, "contract", target)
    assert "columns n" in blocked.plan
    assert 2 * blocked.workspace < whole.workspace
    np.testing.assert_array_equal(execute(product, target, buffers), expected)
    check_epilogue(product, 1, target, 1)


@pytest.mark.parametrize("target", ["avx2", "avx512"])
def test_results_beyond_the_cache_are_written_side_by_side(target: str) -> None:
    """Tiles of a depthwise convolution run along a row of the image, not from image to image."""
    plan = generate(depthwise(64, 7, 160, 3, "forward"), "f", Target.named(target)).plan
    assert "tile x/" in plan
    assert "each x/" not in plan


@dataclass(frozen=True)
class Bias:
    """max(value + bias[loop], 0) + 1000 * residual at the address of C."""

    loop: int
    access: OperandAccess
    instructions: int = 1
    params: tuple[tuple[str, str], ...] = (("ptr noalias", "bias"), ("ptr noalias", "residual"))

    def length(self, lane: int, width: int) -> int:
        return self.instructions

    def far_lines(self, f: LlvmFunction, where: Callable[[], Coordinates], lane: int, far: int) -> list[FarLine]:
        """None: what it reads is small."""
        return []

    def emit(
        self, f: LlvmFunction, value: LlvmValue, coordinates: Sequence[Number], lane: int, mask: LlvmValue | None
    ) -> LlvmValue:
        kind = value.type
        bias = self._read(f, "%bias", f.index(coordinates[self.loop]), kind, int(self.loop == lane), mask)
        place = f.index(self.access.offset)
        for coordinate, stride in zip(coordinates, self.access.strides, strict=True):
            place = f.op("add", place, f.op("mul", f.index(coordinate), stride))
        residual = self._read(f, "%residual", place, kind, self.access.strides[lane] if lane >= 0 else 0, mask)
        total = f.intrinsic("maxnum", f.op("fadd", value, bias), number(0.0, kind))
        return f.op("fadd", total, f.op("fmul", residual, number(1000.0, kind)))

    def _read(
        self, f: LlvmFunction, base: str, place: LlvmValue, kind: LlvmType, lane: int, mask: LlvmValue | None
    ) -> LlvmValue:
        value, flags = zero(kind), None if mask is None else mask.text.split(",")
        lanes = [at for at in range(kind.width) if flags is None or flags[at].rstrip(">").endswith("true")]
        for at in lanes:
            one = f.load(kind.one, f.address(pointer(base), f.op("add", place, lane * at), 4))
            value = one if kind.width == 1 else f.insert(value, one, at)
        return value


def check_epilogue(contraction: Contraction, loop: int, target: Target, length: int) -> None:
    buffers, rng = Buffers(contraction), np.random.default_rng(1)
    bias = rng.standard_normal(contraction.extents[loop]).astype(np.float32)
    residual = rng.integers(-9, 9, len(buffers.c)).astype(np.float32)
    expected, scale = buffers.expected()
    places = addresses(contraction.c, contraction.extents)
    shape = [1] * places.ndim
    shape[loop] = -1
    of_place = np.zeros(len(expected))
    of_place[places] = bias.reshape(shape)
    touched = np.zeros(len(expected), bool)
    touched[places] = True
    expected = np.where(touched, np.maximum(expected + of_place, 0) + 1000 * residual, expected)
    result = execute(contraction, target, buffers, Bias(loop, contraction.c, length), bias, residual)
    assert np.all(np.abs(result - expected) <= 1e-5 * (scale + np.abs(expected)) + 1e-6), contraction


LENGTHS = (1, 1000)
EPILOGUES = [
    ("matmul NN", 1), ("matmul NT", 0), ("matmul long", 1), ("matmul blocked", 1), ("matrix vector", 0), ("dot", 1),
    ("conv", 3), ("conv 1x1", 3), ("conv channels first", 3), ("conv channels first", 2), ("conv 1x1", 2),
    ("depthwise", 3), ("attention", 2), ("attention", 0),
]  # fmt: skip


@pytest.mark.parametrize("width", sorted(WIDTHS))
@pytest.mark.parametrize(("shape", "loop"), EPILOGUES)
@pytest.mark.parametrize("length", LENGTHS)
def test_epilogue(shape: str, loop: int, width: str, length: int) -> None:
    """Bias along any loop, activation and residual see the right indices and lanes, also after blocking the sum.

    A long epilogue runs in a loop over the tile, a short one is written out.
    """
    check_epilogue(SHAPES[shape], loop, WIDTHS[width], length)


@pytest.mark.parametrize("extent", [12, 13])
def test_epilogue_of_a_sum_in_parts_of_two_loops(extent: int) -> None:
    """A weight gradient whose operands exceed the cache by image and by row: only the last part of both finishes it."""
    gradient = Image(3, extent, extent, 16, 24, 3).contraction("weights")
    target = replace(Target.named("avx2"), l1=4096, l2=16384)
    plan = generate(gradient, "contract", target, Bias(3, gradient.c)).plan
    assert "chunk n" in plan
    assert "chunk y" in plan
    check_epilogue(gradient, 3, target, 1)


def test_a_long_epilogue_is_written_once() -> None:
    """As many times as there are vectors in a row of the tile, not in the whole tile."""
    shape = SHAPES["matmul NN"]
    texts = [generate(shape, "contract", WIDTHS["256"], Bias(1, shape.c, length)).text for length in LENGTHS]
    short, long = (text.count("llvm.maxnum") for text in texts)
    assert short >= 4 * long > 0


def test_a_long_epilogue_is_written_once_for_all_whole_vectors_of_a_row() -> None:
    shape = matmul(96, 96, 64)
    kernel = generate(shape, "contract", WIDTHS["512"], Bias(1, shape.c, 1000))
    assert "vectors n/6" in kernel.plan
    tiles = [text for name, text in kernel.functions.items() if ".tile" in name]
    assert [text.count("llvm.maxnum") for text in tiles] == [1] * len(tiles)
    check_epilogue(shape, 1, WIDTHS["512"], 1000)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    contraction=contractions(),
    loop=st.integers(0, 4),
    width=st.sampled_from(sorted(WIDTHS)),
    length=st.sampled_from(LENGTHS),
)
@example(SHAPES["conv"], 2, "256", 1)
def test_random_epilogue(contraction: Contraction, loop: int, width: str, length: int) -> None:
    outputs = [i for i, stride in enumerate(contraction.c.strides) if stride]
    if outputs:
        check_epilogue(replace(contraction, dtype="f32"), outputs[loop % len(outputs)], WIDTHS[width], length)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"extents": (1, 0, 2)}, "at least 1"), ({"dtype": "i8"}, "dtype"), ({"names": ("m",)}, "differ in length")],
)
def test_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(matmul(2, 3, 4), **changes)  # type: ignore[arg-type]


def test_packing_reads_only_what_exists() -> None:
    """A transposed operand is copied into vectors, unless a clip drops the last of it: then it may end before."""
    whole = matmul(64, 64, 64, "NT")
    assert "pack" in generate(whole, "contract", WIDTHS["256"]).plan
    cut = replace(whole, clips=(EpilogueClip((0, 0, 1), 0, 60),))
    assert "pack" not in generate(cut, "contract", WIDTHS["256"]).plan
    check(cut, WIDTHS["256"])
