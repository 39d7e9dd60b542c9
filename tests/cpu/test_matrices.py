"""Products of bytes by registers that hold matrices: the same bits, wherever they are; and when they are used.

Every contraction here is taken in matrices if that can be, whatever the cost model says. Where the processor has none,
functions that compute the same stand for its instructions.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import glowtrain as gt
from glowtrain.backends import permission
from glowtrain.backends import target as targets
from glowtrain.backends.cpu import contraction as generator
from glowtrain.backends.cpu.contraction import Contraction, generate
from glowtrain.backends.cpu.contraction.matrices.block import MatrixBlock, begins, shares, step_of
from glowtrain.backends.cpu.contraction.matrices.unit import REGISTERS, ROW, ROWS, configure
from glowtrain.backends.llvm.text import LlvmFunction
from glowtrain.backends.llvm.toolchain import assembly, compile_text
from glowtrain.backends.target import MATRICES, Target
from glowtrain.compiler.walk import arrive
from glowtrain.errors import BundleError, CodegenError
from glowtrain.ops.quantized.convert import DequantizeLinear, QuantizeLinear
from glowtrain.stages import Options
from tests.cpu import test_integer_contraction as integers
from tests.cpu.emulated_matrices import emulated
from tests.cpu.test_integer_contraction import SHAPES, SIGNS, check, convolution, matmul, typed

AMX = Target.named("avx512amx")
MANY_K = {
    "k tail": matmul(17, 33, 100, constant=True), "k tail of words": matmul(33, 16, 131, "NT"),
    "k below a word": matmul(20, 20, 150, "TN"), "rows tail": matmul(49, 24, 64, constant=True),
    "many steps": matmul(16, 40, 64 * 7 + 5, constant=True), "many columns": matmul(19, 150, 70),
    "two loops": convolution(1, 7, 7, 64, 24, 3), "one row matrix": convolution(2, 5, 40, 12, 40, 3, stride=2),
    "bytes that are no words": convolution(1, 6, 6, 23, 20, 1, pad=0), "blocks of rows": matmul(3000, 17, 130),
}  # fmt: skip


@pytest.fixture
def only_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost model is not asked."""
    every = generator.plans
    monkeypatch.setattr(generator, "plans", lambda *given: list(every(*given))[-1:])


@pytest.fixture
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions stand for the instructions, also where the processor has these."""
    monkeypatch.setattr(integers, "here", lambda text, _: (emulated(text), integers.HOST.unasked))


@pytest.mark.spread(3)
@pytest.mark.usefixtures("only_matrices")
@pytest.mark.parametrize("signs", SIGNS, ids="".join)
@pytest.mark.parametrize("shape", sorted({**SHAPES, **MANY_K}))
def test_bits(shape: str, signs: tuple[str, str]) -> None:
    """Tails of rows, columns and sums, strides, groups of matrices; nothing is read or written beside the buffers."""
    kernel = check(typed({**SHAPES, **MANY_K}[shape], *signs), AMX, "any", "extreme")
    assert ("tdpb" in kernel.text) or shape in _IN_VECTORS


_IN_VECTORS = {
    "matmul few rows", "vector matrix", "matrix vector", "dot", "outer", "conv channels first", "depthwise",
    "depthwise fill",
}  # fmt: skip
"""What has no rows to take together, no sum, or an operand that lanes move as well."""


@pytest.mark.spread(1)
@pytest.mark.usefixtures("only_matrices", "anywhere")
@pytest.mark.parametrize("shape", ["conv first", "k tail", "two loops", "conv 1x1 stride 2", "k tail of words"])
def test_bits_without_the_instructions(shape: str) -> None:
    """What stands for the instructions traps where shapes do not go together; the processor is not asked."""
    for signs in SIGNS:
        check(typed({**SHAPES, **MANY_K}[shape], *signs), AMX, "any", "low", "high")


@st.composite
def products(draw: st.DrawFn) -> Contraction:
    """Matrix products and convolutions of any size, with sums that are no whole number of words."""
    signs, constant = " ".join(draw(st.sampled_from(SIGNS))), draw(st.booleans())
    if draw(st.booleans()):
        m, n, k = draw(st.integers(8, 90)), draw(st.integers(2, 70)), draw(st.integers(4, 300))
        return matmul(m, n, k, draw(st.sampled_from(("NN", "NT", "TN"))), signs, constant=constant)
    y, x, i, o = (draw(st.integers(2, most)) for most in (6, 37, 40, 40))
    k, stride = draw(st.sampled_from((1, 3))), draw(st.integers(1, 2))
    pad, fill = draw(st.integers(0, 1)) * (k // 2), draw(st.integers(0, 9))
    return convolution(draw(st.integers(1, 2)), y, x, i, o, k, stride=stride, pad=pad, types=signs, fill=fill * pad,
                       constant=constant)  # fmt: skip


@pytest.mark.usefixtures("only_matrices")
@settings(suppress_health_check=list(HealthCheck))
@given(contraction=products())
def test_random_bits(contraction: Contraction) -> None:
    check(contraction, AMX, "any", "extreme")


@given(extent=st.integers(1, 700), padded=st.booleans())
def test_steps_cover_a_sum_once(extent: int, padded: bool) -> None:
    """Together they read every element, none behind the sum unless that may be, and a row is as long as a register's
    at most."""
    step = step_of(extent, padded=padded)
    if not step:
        assert extent < 4
        assert not padded
        return
    places = begins(extent, step)
    assert step % 4 == 0
    assert step <= ROW
    assert {place + at for place in places for at in range(step)} >= set(range(extent))
    assert places[-1] + step <= extent + (3 if padded else 0)


def test_shares_and_registers() -> None:
    for extent in range(1, 129):
        rows = shares(extent)
        assert sum(rows) == extent
        assert max(rows) - min(rows) <= 1
        assert max(rows) <= ROWS
    for rows in ((16, 16), (9, 8), (16,), (4, 4, 4), (5, 5, 5, 5, 5)):
        for columns in range(1, 6):
            block = MatrixBlock(rows, columns, 64)
            if block.fits:
                used = [block.sums(r, c) for r in range(len(rows)) for c in range(columns)]
                used += [block.register("a", at) for at in range(len(rows))]
                assert len(block.shapes) <= REGISTERS
                for at, row in enumerate(rows):
                    assert block.shapes[block.register("a", at)] == (row, 64)
                    assert block.shapes[block.sums(at, 0)] == (row, 64)
    assert not MatrixBlock((9, 9, 8), 2, 64).fits
    assert not MatrixBlock((16, 16), 3, 64).fits


@pytest.mark.usefixtures("only_matrices")
@pytest.mark.parametrize(
    ("signs", "instruction"), list(zip(SIGNS, ("tdpbusd", "tdpbssd", "tdpbuud", "tdpbsud"), strict=True))
)
def test_instructions(signs: tuple[str, str], instruction: str) -> None:
    """Shapes are said before the first matrix, and registers left as they were; the code compiles for its target."""
    text = generate(typed(MANY_K["rows tail"], *signs), "contract", AMX).text
    assert set(re.findall(r"tdpb\w+", text)) == {instruction}
    outer = text[text.index("define void @contract(") :]
    order = [outer.index(each) for each in ("ldtilecfg", "call void @contract.tile", "tilerelease", "ret void")]
    assert order == sorted(order)
    assert text.count("ldtilecfg") == text.count("tilerelease") == 1
    machine_code = assembly(text, AMX)
    for each in ("ldtilecfg", "tileloadd", instruction, "tilestored", "tilerelease"):
        assert each in machine_code
    with pytest.raises(CodegenError, match="contract.*is not available here.*avx512vnni"):
        compile_text(text, Target.named("avx512vnni"))


def test_configuration() -> None:
    """Palette 1, bytes of rows from byte 16 on in 16 bits, rows from byte 48 on (Intel's table 3-1)."""
    f = LlvmFunction("shapes", [])
    configure(f, [(16, 64), (7, 20)])
    stored = re.search(r"store <64 x i8> <(.*?)>,", f.finish())
    assert stored is not None
    config = [int(each.split()[1]) for each in stored[1].split(", ")]
    assert {at: byte for at, byte in enumerate(config) if byte} == {0: 1, 16: 64, 18: 20, 48: 16, 49: 7}


@pytest.mark.parametrize(
    ("contraction", "pays"),
    [
        (matmul(512, 512, 512, constant=True), True),
        (matmul(49, 512, 2048, constant=True), True),
        (convolution(1, 56, 56, 64, 64, 3), True),
        (convolution(1, 112, 112, 3, 64, 7, stride=2, pad=3), True),
        (matmul(1, 1000, 2048, constant=True), False),
        (matmul(2, 40, 33), False),
        (matmul(8, 16, 4, constant=True), False),
        (matmul(64, 16, 8, constant=True), False),
        (integers.depthwise(1, 28, 96, 3), False),
    ],
)  # fmt: skip
def test_where_they_pay(contraction: Contraction, pays: bool) -> None:
    """Few rows and short sums are taken in vectors."""
    assert ("tdpb" in generate(contraction, "contract", AMX).text) is pays


@pytest.mark.exhaustive
@pytest.mark.parametrize(("rows", "columns", "blocks"), [(300, 1024, True), (300, 1040, False)])
def test_results_that_are_whole_pages_apart_go_in_blocks(rows: int, columns: int, blocks: bool) -> None:
    """Of few rows, where all results are more than a cache holds: they share its sets."""
    contraction = typed(matmul(rows, columns, 64, constant=True), "u8", "i8")
    target = replace(AMX, l2=512 << 10)
    found = re.search(r"block m/(\d+)", generate(contraction, "f", target).plan)
    assert (found is not None and int(found[1]) <= 96) is blocks
    check(contraction, target, "any", "extreme")


@gt.model(x=gt.f32["batch", 27])
def quantized(x: gt.Value) -> gt.Value:
    """Products between QuantizeLinear and DequantizeLinear, and a sum of two of them."""
    rng, zero = np.random.default_rng(0), gt.constant(np.uint8(10))

    def bytes_of(value: gt.Value) -> gt.Value:
        scale = gt.constant(np.float32(0.05))
        return DequantizeLinear()(QuantizeLinear()(value, scale, zero), scale, zero)

    def product(value: gt.Value, width: int) -> gt.Value:
        weight = gt.constant(rng.integers(-127, 128, (value.type.shape[-1], width), np.int8))
        return bytes_of(value @ DequantizeLinear()(weight, gt.constant(np.float32(0.01))))

    h = product(gt.nn.relu(product(bytes_of(x), 96)), 100)
    return bytes_of(product(h, 40) + product(h, 40))


def test_a_model_has_the_bits_of_other_targets() -> None:
    """With matrices, without, and in the interpreter."""
    graph = quantized.bind({"batch": 50})
    x = {"x": np.random.default_rng(0).normal(size=(50, 27)).astype(np.float32)}
    wanted = gt.compile(graph, backend="interpreter")(x)["output"]
    plain, shared = gt.Cpu(Target.host().unasked, cache=None), gt.Cpu(cache=None, threads=3, grain=0)
    for backend in (gt.Cpu(cache=None), plain, shared):
        assert gt.compile(graph, backend=backend)(x)["output"].tobytes() == wanted.tobytes()


# -- who may use them


def test_a_system_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host is then one without matrices, also for LLVM; code for it can be kept apart from other code."""
    present = {"amx-tile", "amx-int8", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni", "avx2", "fma"}
    features = ",".join(f"+{each}" for each in sorted(present))
    found = {}
    for allowed in (True, False):
        monkeypatch.setattr(targets, "permitted_matrices", lambda allowed=allowed: allowed)
        found[allowed] = targets._host_x86("x86_64-linux-gnu", "cpu", features, targets._FAMILIES & present, present)
    assert MATRICES in found[True].families
    assert "+amx-int8" in found[True].features
    assert MATRICES not in found[False].families
    assert "+amx" not in found[False].features
    assert found[False] == found[True].unasked == found[False].unasked
    assert found[False].fingerprint != found[True].fingerprint


@pytest.mark.parametrize(("answer", "permitted"), [(0, True), (-1, False)])
def test_what_the_system_is_asked(monkeypatch: pytest.MonkeyPatch, answer: int, permitted: bool) -> None:
    """arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA), on Linux alone."""
    asked: list[tuple[int, ...]] = []

    class Library:
        def __init__(self, name: None) -> None: ...

        def syscall(self, *arguments: Any) -> int:
            asked.append(tuple(each.value for each in arguments))
            return answer

    monkeypatch.setattr(ctypes, "CDLL", Library)
    monkeypatch.setattr(permission.sys, "platform", "linux")
    assert permission.permitted_matrices.__wrapped__() is permitted
    assert asked == [(158, 0x1023, 18)]
    monkeypatch.setattr(permission.sys, "platform", "win32")
    assert permission.permitted_matrices.__wrapped__() is False
    assert len(asked) == 1


def test_code_for_other_programs_asks_for_nothing() -> None:
    """Objects that are linked and bundles have no matrices; a target that is named for them is refused there."""
    graph = quantized.bind({"batch": 50})
    code = gt.Cpu(AMX, cache=None)._generate(Options()).run(arrive(graph))
    linked = gt.Cpu(AMX, cache=None)._generate(Options(linkable=True)).run(arrive(graph))
    assert "tdpb" in code.text
    assert "tdpb" not in linked.text
    assert MATRICES not in linked.target.families
    with pytest.raises(BundleError, match="avx512amx .*AMX.*; use avx512vnni"):
        gt.bundle(quantized, "never", dims={"batch": 1}, target="avx512amx")


def test_targets_apart() -> None:
    assert AMX.families - Target.named("avx512vnni").families == {MATRICES}
    assert AMX.unasked.families == Target.named("avx512vnni").families
    assert replace(AMX, name="") != AMX
