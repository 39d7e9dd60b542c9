"""A Rust crate over the C interface: ``no_std``, without dependencies; its example prints what ``main.c`` prints."""

from __future__ import annotations

import json
from collections.abc import Iterator

from glowtrain.bundles.codes import ErrorCode
from glowtrain.bundles.faces.identifiers import named, word_set
from glowtrain.bundles.faces.templates import filled, filled_for
from glowtrain.bundles.module import BundleModule
from glowtrain.bundles.signature import BundleFunction, BundleTensor, element_of, hyper_of
from glowtrain.bundles.verify.trace import printable
from glowtrain.types import DType
from glowtrain.version import __version__

FOLDER = "rust"
KEYWORDS = word_set(
    """
    Self abstract as async await become box break const continue crate do dyn else enum extern false final fn for
    gen if impl in let loop macro match mod move mut override priv pub ref return self static struct super trait
    true try type typeof unsafe unsized use virtual where while yield
    """
)
LOCALS = word_set(
    """
    _ last loss measured model number state ALIGNMENT ARENA_BYTES FILE_BYTES VARIABLES_BYTES VERSION Err None Ok Owned
    Some batch begin checksum done float half sized text typed word
    """
)
"""Variables, functions and constants around the arguments, and what patterns take for no new name."""
CRATES = KEYWORDS | {"alloc", "core", "std", "test"} | word_set("Box Hyper Model Option Result String Vec")
"""What no crate is called: crates of the language, and types in a program that uses one."""


def rust(module: BundleModule, archive: bytes, example: bool) -> dict[str, bytes]:
    """The files of the crate, by their paths below the bundle's folder."""
    name, crate = module.name, named(module.name, CRATES)
    texts = {
        "Cargo.toml": filled("rust/Cargo.toml", name, crate=crate, example=example),
        "build.rs": filled("rust/build.rs", name),
        "src/lib.rs": library(module),
    }
    if example:
        texts["examples/train.rs"] = program(module, crate)
    files = {f"lib{name}.a": archive, **{path: text.encode() for path, text in texts.items()}}
    return {f"{FOLDER}/{path}": data for path, data in files.items()}


def library(module: BundleModule) -> str:
    """The text of ``src/lib.rs``."""
    fields = [(named(each.name, KEYWORDS), each) for each in hyper_of(module.functions)]
    return filled_for(
        module,
        "rust/lib.rs",
        about=f"{module.name}, for {module.target.name}, by Glowtrain {__version__}",
        codes=[f"/// {code.text}\npub const {code.name}: u32 = {code.value};" for code in ErrorCode],
        fields=[f"pub {name}: {each.element.rust}," for name, each in fields],
        defaults=[f"{name}: {module.hyper[each.name]!r}," for name, each in fields],
        raw=[_raw(module.name, function) for function in module.functions],
        calls="\n\n".join("\n".join(_call(module.name, function)) for function in module.functions),
    )


def _raw(name: str, function: BundleFunction) -> str:
    parameters = [
        "handle: *mut Handle",
        *(f"{argument(e)}: *const {e.element.rust}" for e in function.inputs),
        *(["hyper: *const Hyper"] if function.hyper else []),
        *(f"{argument(e)}: *mut {e.element.rust}" for e in function.outputs),
    ]
    return f"pub fn {name}_{function.name}({', '.join(parameters)}) -> u32;"


def _call(name: str, function: BundleFunction) -> Iterator[str]:
    """The method of a function. One that trains returns its loss, others write into slices."""
    slices = [(each, "&", "as_ptr") for each in function.inputs]
    slices += [] if function.trains else [(each, "&mut ", "as_mut_ptr") for each in function.outputs]
    parameters = [f"{argument(e)}: {reference}[{e.element.rust}]" for e, reference, _ in slices]
    arguments = [f"{argument(e)}.{pointer}()" for e, _, pointer in slices]
    if function.hyper:
        parameters.append("hyper: &Hyper")
        arguments.append("hyper")
    if function.trains:
        arguments.append("&mut measured")
    result = function.outputs[0].element.rust if function.trains else "()"
    what = "One step of training on a batch, and its loss" if function.trains else "Predictions for a batch"
    yield f"/// {what}. Slices are row-major.\n///"
    yield from (f"/// - `{argument(e)}`: {e.type}" for e, *_ in slices)
    yield f"pub fn {function.name}({', '.join(['&mut self', *parameters])}) -> Result<{result}, Error> {{"
    for e, *_ in slices:
        yield f"    sized({json.dumps(printable(e.source))}, {argument(e)}.len(), {e.type.size})?;"
    call = f"done(unsafe {{ raw::{name}_{function.name}({', '.join(['&mut self.handle', *arguments])}) }})"
    if function.trains:
        yield f"    let mut measured = Default::default();\n    {call}?;\n    Ok(measured)"
    else:
        yield f"    {call}"
    yield "}"


def program(module: BundleModule, crate: str) -> str:
    """The text of ``examples/train.rs``."""
    step = module.step
    loss = step.outputs[0] if step else None
    return filled(
        "rust/train.rs",
        crate,
        hyper=module.hyper,
        step=[*_example(step)] if step else [],
        digits=2 * loss.type.dtype.size if loss else 0,
        bits=".to_bits()" if loss and loss.element.rust.startswith("f") else "",
        calls=[line for function in module.predictions for line in _example(function)],
    )


def _example(function: BundleFunction) -> Iterator[str]:
    """Call a function on made-up batches, and print a checksum of each output that is no loss."""
    given = [f"&{argument(each)}" for each in function.inputs]
    for each in function.inputs:
        yield f"let {argument(each)} = batch(&mut last, {each.type.size}, {_number(each.type.dtype)});"
    if function.trains:
        hyper = ["&Hyper::default()"] if function.hyper else []
        yield f"let loss = model.{function.name}({', '.join([*given, *hyper])})?;"
        return
    for each in function.outputs:
        yield f"let mut {argument(each)} = vec![0{each.element.rust}; {each.type.size}];"
    given += [f"&mut {argument(each)}" for each in function.outputs]
    yield f"model.{function.name}({', '.join(given)})?;"
    for each in function.outputs:
        sum_ = f"{argument(each)}.iter().fold(!0, |state, each| checksum(state, &each.to_le_bytes()))"
        yield f'println!("{function.name}: {_quoted(each)} {{:08x}}", !{sum_});'


def _number(dtype: DType) -> str:
    """The function that makes eight random bits a number."""
    floats = {"f32": "float", "f16": "half", "bf16": "|word| (float(word).to_bits() >> 16) as u16"}
    value = "float(word)" if dtype.is_float else "(word & 1)"
    return floats.get(dtype.name, f"|word| {value} as {element_of(dtype).rust}")


def _quoted(tensor: BundleTensor) -> str:
    """A name inside of a text that Rust formats."""
    return json.dumps(printable(tensor.source))[1:-1].replace("{", "{{").replace("}", "}}")


def argument(tensor: BundleTensor) -> str:
    """A name that neither means something else in Rust nor is one of ours around it."""
    return named(tensor.name, KEYWORDS | LOCALS)
