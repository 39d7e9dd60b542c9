"""Vectors packed into bytes by AVX-512, on any processor: its instructions as functions of plain ones."""

from __future__ import annotations

import numpy as np
import pytest

from glowtrain.backends.cpu.loop_nest.saturation import Saturation
from glowtrain.backends.llvm.text import LlvmFunction
from glowtrain.backends.llvm.toolchain import build, compile_text
from glowtrain.backends.llvm.values import LlvmValue, in_all_lanes, number, vector
from glowtrain.backends.target import Target
from glowtrain.loops import Ref
from glowtrain.types import DTYPES, f32
from tests.cpu.cpu_kernels import elementwise_text

AVX512 = Target.named("avx512")


def pack(name: str, lanes: int, wide: int, low: int, high: int) -> str:
    """Both operands saturated to half the bits; of every 128 bits first those of a, then those of b."""
    kind, both = vector(f"i{wide}", lanes), vector(f"i{wide // 2}", 2 * lanes)
    params = [(kind.text, "a"), (kind.text, "b")]
    f = LlvmFunction(f"emulated.{name}.512", params, linkage="internal", result=both.text)
    cut = []
    for x in "ab":
        value = LlvmValue(f"%{x}", kind)
        for which, limit in zip(("smax", "smin"), (low, high), strict=True):
            value = f.intrinsic(which, value, in_all_lanes(str(limit), kind))
        cut.append(f.convert("trunc", value, f"i{wide // 2}"))
    quarter = lanes // 4
    order = [side * lanes + q * quarter + i for q in range(4) for side in (0, 1) for i in range(quarter)]
    return f.finish(f.shuffle(cut[0], cut[1], order))


def rounding() -> str:
    """To nearest even; the smallest i32 for what does not fit."""
    kind, whole = vector("float", 16), vector("i32", 16)
    arguments = [(kind.text, "x"), (whole.text, "others"), ("i16", "mask"), ("i32", "mode")]
    f = LlvmFunction("emulated.mask.cvtps2dq.512", arguments, linkage="internal", result=whole.text)
    near = f.intrinsic("rint", LlvmValue("%x", kind))
    fits = f.compare("olt", f.intrinsic("fabs", near), number(2.0**31, kind))
    safe = f.select(fits, near, number(0.0, kind))
    return f.finish(f.select(fits, f.convert("fptosi", safe, "i32"), -(2**31)))


INSTRUCTIONS = {
    "mask.cvtps2dq.512": rounding(),
    "packssdw.512": pack("packssdw", 16, 32, -32768, 32767),
    "packsswb.512": pack("packsswb", 32, 16, -128, 127),
    "packuswb.512": pack("packuswb", 32, 16, 0, 255),
}


@pytest.mark.parametrize("width", [32, 64])
@pytest.mark.parametrize("dtype", ["u8", "i8"])
def test_packs_round_and_saturate(dtype: str, width: int) -> None:
    least, greatest = (0, 255) if dtype == "u8" else (-128, 127)
    odd = [np.nan, np.inf, -np.inf, 3e38, -3e38, 2.0**31, -(2.0**31), 40000, -40000, -0.0, 0.49999997]
    x = np.array([*np.arange(-600, 600, 0.25), *odd], np.float32)
    x = np.concatenate([x, np.zeros(-len(x) % width, np.float32)])
    for zero in (least, -5 if least else 3, 0, greatest):
        for bounds in ((least, greatest), (least + 3, greatest - 9)):
            way = Saturation(Ref(f32, "x"), zero, *bounds)

            def body(f: LlvmFunction, args: list[LlvmValue], way: Saturation = way) -> LlvmValue:
                return way.emit(f, args[0], dtype, AVX512)

            target = Target.host()
            text = elementwise_text(body, ["f32"], dtype, width, target)
            assert f"pack{'us' if dtype == 'u8' else 'ss'}wb" in text
            for name, function in INSTRUCTIONS.items():
                if f"@llvm.x86.avx512.{name}(" in text:
                    text = text.replace(f"@llvm.x86.avx512.{name}(", f"@emulated.{name}(") + function
            out, count = np.zeros(len(x), DTYPES[dtype].numpy), np.array([len(x)], np.int64)
            kernel = build(text, target, ["kernel"]).function("kernel", 3)
            kernel(x.ctypes.data, out.ctypes.data, count.ctypes.data)
            with np.errstate(invalid="ignore"):
                wanted = np.clip(np.where(np.isnan(x), -np.inf, np.rint(x.astype(np.float64)) + zero), *bounds)
            np.testing.assert_array_equal(out, wanted.astype(out.dtype), err_msg=f"zero {zero} {bounds}")
            assert compile_text(elementwise_text(body, ["f32"], dtype, width, AVX512), AVX512)
