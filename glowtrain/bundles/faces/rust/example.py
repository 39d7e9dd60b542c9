"""The example of a bundle's Rust crate: it prints what ``main.c`` prints."""

from __future__ import annotations

import json

from glowtrain.bundles.faces.c.example import STEPS
from glowtrain.bundles.faces.rust.names import CRATES, argument, element
from glowtrain.bundles.faces.words import named
from glowtrain.bundles.module import BundleModule
from glowtrain.bundles.signature import BundleFunction, BundleTensor
from glowtrain.bundles.verify.trace import INCREMENT, MULTIPLIER, printable
from glowtrain.types import DType


def program(module: BundleModule) -> str:
    """The text of ``examples/train.rs``: it prints what ``main.c`` prints."""
    dtypes = {each.type.dtype for function in module.functions for each in function.inputs}
    return _PROGRAM.format(
        name=named(module.name, CRATES),
        imports="Hyper, Model" if module.hyper else "Model",
        fills="\n".join(_fill(dtype) for dtype in sorted(dtypes, key=str)),
        half=_HALF if any(dtype.name == "f16" for dtype in dtypes) else "",
        calls="".join(_example(function) for function in module.functions),
        multiplier=MULTIPLIER,
        increment=INCREMENT,
    )


def _fill(dtype: DType) -> str:
    number = "((word(last) >> 24) as i32 - 128) as f32 / 64.0" if dtype.is_float else "word(last) >> 24 & 1"
    value = {"f32": number, "f16": f"half({number})", "bf16": f"(({number}).to_bits() >> 16) as u16"}.get(
        dtype.name, f"({number}) as {element(dtype)}"
    )
    return (
        f"fn batch_{dtype}(last: &mut u32, count: usize) -> Vec<{element(dtype)}> {{\n"
        f"    (0..count).map(|_| {value}).collect()\n}}\n"
    )


def _example(function: BundleFunction) -> str:
    made = [f"let {argument(e)} = batch_{e.type.dtype}(&mut last, {e.type.size});" for e in function.inputs]
    given = [f"&{argument(e)}" for e in function.inputs]
    if function.trains:
        hyper = ["&Hyper::default()"] if function.hyper else []
        body = [
            *made,
            f"let loss = model.step({', '.join([*given, *hyper])})?;",
            "let mut state = !0;",
            "model.save(|bytes| {\n            state = checksum(state, bytes);\n            true\n        })?;",
            _LOSS.format(digits=2 * function.outputs[0].type.dtype.size, bits=_bits(function.outputs[0])),
        ]
        inner = "\n".join(f"        {line}" for line in body)
        return f"    for number in 1..={STEPS} {{\n{inner}\n    }}\n"
    made += [f"let mut {argument(e)} = vec![{_zero(e)}; {e.type.size}];" for e in function.outputs]
    given += [f"&mut {argument(e)}" for e in function.outputs]
    sums = [
        f'println!("{function.name}: {_quoted(e.source)} {{:08x}}", !{argument(e)}.iter().fold(!0, |state, each| '
        "checksum(state, &each.to_le_bytes())));"
        for e in function.outputs
    ]
    lines = [*made, f"model.{function.name}({', '.join(given)})?;", *sums]
    return "".join(f"    {line}\n" for line in lines)


def _zero(tensor: BundleTensor) -> str:
    return f"0{element(tensor.type.dtype)}"


def _bits(loss: BundleTensor) -> str:
    return "loss.to_bits()" if element(loss.type.dtype).startswith("f") else "loss"


def _quoted(source: str) -> str:
    """A name inside of a text that Rust formats."""
    return json.dumps(printable(source))[1:-1].replace("{", "{{").replace("}", "}}")


_LOSS = 'println!("step {{number}}: loss {{:0{digits}x}}, variables {{:08x}}", {bits}, !state);'
_HALF = """/// The bits of numbers that are halves.
fn half(number: f32) -> u16 {
    let bits = number.to_bits();
    if bits & 0x7fff_ffff == 0 {
        return 0;
    }
    ((bits >> 16 & 0x8000) | ((bits >> 13 & 0x3fc00) - ((127 - 15) << 10)) | (bits >> 13 & 0x3ff)) as u16
}

"""
_PROGRAM = """//! Runs {name} on made-up batches and prints what comes out, as bits; expected.txt holds them.
#![allow(non_snake_case)]

use {name}::{{{imports}}};

/// Batches: the upper bits of a congruential generator.
fn word(last: &mut u32) -> u32 {{
    *last = last.wrapping_mul({multiplier}).wrapping_add({increment});
    *last
}}

{half}{fills}
/// CRC-32, begun with !0 and inverted at the end.
fn checksum(state: u32, bytes: &[u8]) -> u32 {{
    bytes.iter().fold(state, |state, byte| {{
        (0..8).fold(state ^ u32::from(*byte), |state, _| state >> 1 ^ (0xedb8_8320 & (state & 1).wrapping_neg()))
    }})
}}

fn main() -> Result<(), Box<dyn std::error::Error>> {{
    let mut model = Model::new()?;
    let mut last = 0;
{calls}    Ok(())
}}
"""
