"""A Rust crate over the C interface: ``no_std``, without dependencies."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from glowtrain.bundles.codes import ErrorCode
from glowtrain.bundles.faces.rust.example import program
from glowtrain.bundles.faces.rust.names import CRATES, KEYWORDS, argument, element
from glowtrain.bundles.faces.rust.variables import ELEMENTS, RAW_VARIABLES, VARIABLES
from glowtrain.bundles.faces.words import named
from glowtrain.bundles.module import BundleModule
from glowtrain.bundles.signature import BundleFunction, BundleTensor, hyper_of
from glowtrain.bundles.verify.trace import printable
from glowtrain.bundles.weights import file_size
from glowtrain.version import __version__

FOLDER = "rust"


def rust(module: BundleModule, archive: bytes, example: bool) -> dict[str, bytes]:
    """The files of the crate, by their paths below the bundle's folder."""
    texts = {
        "Cargo.toml": _CARGO.format(name=named(module.name, CRATES), example=_EXAMPLE if example else ""),
        "build.rs": _BUILD.format(name=module.name),
        "src/lib.rs": library(module),
    }
    if example:
        texts["examples/train.rs"] = program(module)
    return {
        f"{FOLDER}/lib{module.name}.a": archive,
        **{f"{FOLDER}/{path}": text.encode() for path, text in texts.items()},
    }


def library(module: BundleModule) -> str:
    """The text of ``src/lib.rs``."""
    name, functions = module.name, module.functions
    variables, some = module.memory.places, bool(module.memory.places)
    return _LIBRARY.format(
        name=name,
        big=name.upper(),
        about=f"{name}, for {module.target.name}, by Glowtrain {__version__}.",
        version=module.version,
        alignment=module.memory.alignment,
        variables_bytes=module.memory.size,
        arena_bytes=module.interface.arena,
        codes="\n".join(f"    /// {code.text}\n    pub const {code.name}: u32 = {code.value};" for code in ErrorCode),
        hyper=_hyper(module),
        raw="\n".join(_raw(name, function) for function in functions),
        raw_variables=RAW_VARIABLES.format(name=name) if some else "",
        calls="\n".join(_call(name, function) for function in functions),
        variables=VARIABLES.format(name=name, count=len(variables)) if some else "",
        elements=ELEMENTS.replace("{file_bytes}", str(file_size(module.memory.types))) if some else "",
    )


def _hyper(module: BundleModule) -> str:
    if not module.hyper:
        return ""
    fields, given = [], []
    for each in hyper_of(module.functions):
        fields.append(f"    pub {named(each.name, KEYWORDS)}: {element(each.type.dtype)},")
        given.append(f"            {named(each.name, KEYWORDS)}: {module.hyper[each.name]!r},")
    return _HYPER.format(fields="\n".join(fields), given="\n".join(given))


def _raw(name: str, function: BundleFunction) -> str:
    pointers = [*_pointers(function.inputs, "const")]
    pointers += ["hyper: *const Hyper"] if function.hyper else []
    pointers += [*_pointers(function.outputs, "mut")]
    return f"        pub fn {name}_{function.name}({', '.join(['handle: *mut Handle', *pointers])}) -> u32;"


def _pointers(tensors: Sequence[BundleTensor], kind: str) -> Iterator[str]:
    return (f"{argument(e)}: *{kind} {element(e.type.dtype)}" for e in tensors)


def _call(name: str, function: BundleFunction) -> str:
    inputs, outputs = function.inputs, () if function.trains else function.outputs
    parameters = [
        *(f"{argument(e)}: &[{element(e.type.dtype)}]" for e in inputs),
        *(["hyper: &Hyper"] if function.hyper else []),
        *(f"{argument(e)}: &mut [{element(e.type.dtype)}]" for e in outputs),
    ]
    tensors = [(json.dumps(printable(e.source)), e) for e in (*inputs, *outputs)]
    checks = "".join(f"        sized({text}, {argument(e)}.len(), {e.type.size})?;\n" for text, e in tensors)
    arguments = [*(f"{argument(e)}.as_ptr()" for e in inputs), *(["hyper"] if function.hyper else [])]
    arguments += [f"{argument(e)}.as_mut_ptr()" for e in outputs]
    shapes = "\n".join(f"    /// - `{argument(e)}`: {e.type}" for e in (*inputs, *outputs))
    what = "One step of training on a batch, and its loss" if function.trains else "Predictions for a batch"
    result = element(function.outputs[0].type.dtype) if function.trains else "()"
    arguments = ["&mut self.handle", *arguments, *(["&mut measured"] if function.trains else [])]
    call = f"done(unsafe {{ raw::{name}_{function.name}({', '.join(arguments)}) }})"
    if function.trains:
        call = f"let mut measured = Default::default();\n        {call}?;\n        Ok(measured)"
    return f"""    /// {what}. Slices are row-major.
    ///
{shapes}
    pub fn {function.name}({", ".join(["&mut self", *parameters])}) -> Result<{result}, Error> {{
{checks}        {call}
    }}
"""


_CARGO = """[package]
name = "{name}"
version = "0.1.0"
edition = "2021"
rust-version = "1.81"
publish = false

[features]
default = ["alloc"]
# Models that own their memory.
alloc = []

[lib]
name = "{name}"
{example}"""
_EXAMPLE = """
[[example]]
name = "train"
required-features = ["alloc"]
"""
_BUILD = """//! Links the bundle's machine code, which lies beside this file.

fn main() {{
    let here = std::env::var("CARGO_MANIFEST_DIR").unwrap();
    println!("cargo:rustc-link-search=native={{here}}");
    println!("cargo:rustc-link-lib=static:+verbatim=lib{name}.a");
    println!("cargo:rerun-if-changed=lib{name}.a");
}}
"""
_LIBRARY = """//! {about}
//!
//! A [`Model`] is one instance: its variables, and an arena that holds something only while a function runs. It owns
//! this memory (the feature `alloc`) or borrows it. The raw interface is in [`raw`].
#![no_std]
#![allow(non_upper_case_globals, non_snake_case)]

#[cfg(feature = "alloc")]
extern crate alloc;

use core::ffi::{{c_char, c_void, CStr}};
use core::fmt;
use core::marker::PhantomData;

/// Where variables and arena must begin: at multiples of this.
pub const ALIGNMENT: usize = {alignment};
/// Bytes of the variables.
pub const VARIABLES_BYTES: usize = {variables_bytes};
/// Bytes of the arena.
pub const ARENA_BYTES: usize = {arena_bytes};
const VERSION: u32 = {version};

/// What functions of the raw interface return.
pub mod codes {{
{codes}
}}
{hyper}
/// The interface in C, which the bundle's header describes.
pub mod raw {{
    use super::*;

    pub type ParallelFor = extern "C" fn(
        own: *mut c_void,
        body: extern "C" fn(context: *mut c_void, thread: usize, begin: usize, end: usize),
        context: *mut c_void,
        tasks: usize,
        each: usize,
    );

    #[repr(C)]
    pub struct Memory {{
        pub version: u32,
        pub variables: *mut u8,
        pub variables_bytes: usize,
        pub arena: *mut u8,
        pub arena_bytes: usize,
        pub parallel_for: Option<ParallelFor>,
        pub own: *mut c_void,
    }}

    #[repr(C)]
    pub struct Handle {{
        pub(crate) version: u32,
        pub(crate) variables: *mut u8,
        pub(crate) arena: *mut u8,
        pub(crate) parallel_for: Option<ParallelFor>,
        pub(crate) own: *mut c_void,
        pub(crate) run: *mut c_void,
    }}

    extern "C" {{
        pub fn {name}_error(code: u32) -> *const c_char;
        pub fn {name}_init(handle: *mut Handle, memory: *const Memory) -> u32;
{raw}{raw_variables}
    }}
}}

/// Why nothing was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {{
    /// One of [`codes`].
    Code(u32),
    /// A slice has another number of elements.
    Length {{ tensor: &'static str, given: usize, needed: usize }},
    /// A variable has elements of another type.
    Type,
}}

impl fmt::Display for Error {{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {{
        match self {{
            Error::Code(code) => {{
                let text = unsafe {{ CStr::from_ptr(raw::{name}_error(*code)) }};
                f.write_str(text.to_str().unwrap_or("error"))
            }}
            Error::Length {{ tensor, given, needed }} => {{
                write!(f, "{{tensor}} has {{needed}} elements, not {{given}}")
            }}
            Error::Type => f.write_str("the variable has elements of another type"),
        }}
    }}
}}

impl core::error::Error for Error {{}}

fn done(code: u32) -> Result<(), Error> {{
    if code == codes::OK {{
        Ok(())
    }} else {{
        Err(Error::Code(code))
    }}
}}

fn sized(tensor: &'static str, given: usize, needed: usize) -> Result<(), Error> {{
    if given == needed {{
        Ok(())
    }} else {{
        Err(Error::Length {{ tensor, given, needed }})
    }}
}}

/// One instance, with memory of its own or of the caller's.
pub struct Model<'memory> {{
    handle: raw::Handle,
    #[cfg(feature = "alloc")]
    _owned: Option<Owned>,
    _borrowed: PhantomData<&'memory mut [u8]>,
}}

// Nothing is shared between two instances, nor kept for a thread.
unsafe impl Send for Model<'_> {{}}

#[cfg(feature = "alloc")]
struct Owned(*mut u8);

#[cfg(feature = "alloc")]
impl Owned {{
    const LAYOUT: core::alloc::Layout =
        match core::alloc::Layout::from_size_align(VARIABLES_BYTES + ARENA_BYTES + 1, ALIGNMENT) {{
            Ok(layout) => layout,
            Err(_) => panic!(),
        }};

    fn new() -> Self {{
        let at = unsafe {{ alloc::alloc::alloc(Self::LAYOUT) }};
        if at.is_null() {{
            alloc::alloc::handle_alloc_error(Self::LAYOUT);
        }}
        Owned(at)
    }}
}}

#[cfg(feature = "alloc")]
impl Drop for Owned {{
    fn drop(&mut self) {{
        unsafe {{ alloc::alloc::dealloc(self.0, Self::LAYOUT) }}
    }}
}}

#[cfg(feature = "alloc")]
impl Model<'static> {{
    /// An instance that owns its memory.
    pub fn new() -> Result<Self, Error> {{
        let owned = Owned::new();
        let handle = begin((owned.0, VARIABLES_BYTES), (owned.0.wrapping_add(VARIABLES_BYTES), ARENA_BYTES))?;
        Ok(Model {{ handle, _owned: Some(owned), _borrowed: PhantomData }})
    }}
}}

fn begin(variables: (*mut u8, usize), arena: (*mut u8, usize)) -> Result<raw::Handle, Error> {{
    let null = core::ptr::null_mut();
    let mut handle = raw::Handle {{
        version: 0,
        variables: null,
        arena: null,
        parallel_for: None,
        own: null.cast(),
        run: null.cast(),
    }};
    let memory = raw::Memory {{
        version: VERSION,
        variables: variables.0,
        variables_bytes: variables.1,
        arena: arena.0,
        arena_bytes: arena.1,
        parallel_for: None,
        own: null.cast(),
    }};
    done(unsafe {{ raw::{name}_init(&mut handle, &memory) }})?;
    Ok(handle)
}}

impl<'memory> Model<'memory> {{
    /// An instance in the caller's memory, at multiples of [`ALIGNMENT`].
    pub fn within(variables: &'memory mut [u8], arena: &'memory mut [u8]) -> Result<Self, Error> {{
        let handle = begin((variables.as_mut_ptr(), variables.len()), (arena.as_mut_ptr(), arena.len()))?;
        Ok(Model {{
            handle,
            #[cfg(feature = "alloc")]
            _owned: None,
            _borrowed: PhantomData,
        }})
    }}

{calls}{variables}}}
{elements}"""
_HYPER = """
/// Hyperparameters of a step; the defaults are those that the bundle was made with.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hyper {{
{fields}
}}

impl Default for Hyper {{
    fn default() -> Self {{
        Hyper {{
{given}
        }}
    }}
}}
"""
