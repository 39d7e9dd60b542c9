//! {{about}}.
//!
//! A [`Model`] is one instance: its variables, and an arena that holds something only while a function runs. It owns
//! this memory (the feature `alloc`) or borrows it. The raw interface is in [`raw`].
#![no_std]
#![allow(non_upper_case_globals, non_snake_case)]

#[cfg(feature = "alloc")]
extern crate alloc;

use core::ffi::{c_char, c_void, CStr};
use core::fmt;
use core::marker::PhantomData;

/// Where variables and arena must begin: at multiples of this.
pub const ALIGNMENT: usize = {{alignment}};
/// Bytes of the variables.
pub const VARIABLES_BYTES: usize = {{variables_bytes}};
/// Bytes of the arena.
pub const ARENA_BYTES: usize = {{arena_bytes}};
const VERSION: u32 = {{version}};

/// What functions of the raw interface return.
pub mod codes {
    //{{codes}}
}

// {{#fields}}
/// Hyperparameters of a step; the defaults are those that the bundle was made with.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hyper {
    //{{fields}}
}

impl Default for Hyper {
    fn default() -> Self {
        Hyper {
            //{{defaults}}
        }
    }
}

// {{/fields}}
/// The interface in C, which the bundle's header describes.
pub mod raw {
    use super::*;

    pub type ParallelFor = extern "C" fn(
        own: *mut c_void,
        body: extern "C" fn(context: *mut c_void, thread: usize, begin: usize, end: usize),
        context: *mut c_void,
        tasks: usize,
        each: usize,
    );

    #[repr(C)]
    pub struct Memory {
        pub version: u32,
        pub variables: *mut u8,
        pub variables_bytes: usize,
        pub arena: *mut u8,
        pub arena_bytes: usize,
        pub parallel_for: Option<ParallelFor>,
        pub own: *mut c_void,
    }

    #[repr(C)]
    pub struct Handle {
        pub(crate) version: u32,
        pub(crate) variables: *mut u8,
        pub(crate) arena: *mut u8,
        pub(crate) parallel_for: Option<ParallelFor>,
        pub(crate) own: *mut c_void,
        pub(crate) run: *mut c_void,
    }

    extern "C" {
        pub fn network_error(code: u32) -> *const c_char;
        pub fn network_init(handle: *mut Handle, memory: *const Memory) -> u32;
        //{{raw}}
        // {{#variables}}
        pub static network_variables: [Variable; 0];
        pub fn network_find(variable: *const c_char) -> u32;
        pub fn network_get(handle: *mut Handle, variable: u32, data: *mut c_void, bytes: usize) -> u32;
        pub fn network_set(handle: *mut Handle, variable: u32, data: *const c_void, bytes: usize) -> u32;
        pub fn network_reset(handle: *mut Handle) -> u32;
        pub fn network_save(handle: *mut Handle, write: Write, own: *mut c_void) -> u32;
        pub fn network_load(handle: *mut Handle, read: Read, own: *mut c_void) -> u32;
        // {{/variables}}
    }
}

/// Why nothing was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// One of [`codes`].
    Code(u32),
    /// A slice has another number of elements.
    Length { tensor: &'static str, given: usize, needed: usize },
    /// A variable has elements of another type.
    Type,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Code(code) => {
                let text = unsafe { CStr::from_ptr(raw::network_error(*code)) };
                f.write_str(text.to_str().unwrap_or("error"))
            }
            Error::Length { tensor, given, needed } => {
                write!(f, "{tensor} has {needed} elements, not {given}")
            }
            Error::Type => f.write_str("the variable has elements of another type"),
        }
    }
}

impl core::error::Error for Error {}

fn done(code: u32) -> Result<(), Error> {
    if code == codes::OK {
        Ok(())
    } else {
        Err(Error::Code(code))
    }
}

fn sized(tensor: &'static str, given: usize, needed: usize) -> Result<(), Error> {
    if given == needed {
        Ok(())
    } else {
        Err(Error::Length { tensor, given, needed })
    }
}

/// One instance, with memory of its own or of the caller's.
pub struct Model<'memory> {
    handle: raw::Handle,
    #[cfg(feature = "alloc")]
    _owned: Option<Owned>,
    _borrowed: PhantomData<&'memory mut [u8]>,
}

// Nothing is shared between two instances, nor kept for a thread.
unsafe impl Send for Model<'_> {}

#[cfg(feature = "alloc")]
struct Owned(*mut u8);

#[cfg(feature = "alloc")]
impl Owned {
    const LAYOUT: core::alloc::Layout =
        match core::alloc::Layout::from_size_align(VARIABLES_BYTES + ARENA_BYTES + 1, ALIGNMENT) {
            Ok(layout) => layout,
            Err(_) => panic!(),
        };

    fn new() -> Self {
        let at = unsafe { alloc::alloc::alloc(Self::LAYOUT) };
        if at.is_null() {
            alloc::alloc::handle_alloc_error(Self::LAYOUT);
        }
        Owned(at)
    }
}

#[cfg(feature = "alloc")]
impl Drop for Owned {
    fn drop(&mut self) {
        unsafe { alloc::alloc::dealloc(self.0, Self::LAYOUT) }
    }
}

#[cfg(feature = "alloc")]
impl Model<'static> {
    /// An instance that owns its memory.
    pub fn new() -> Result<Self, Error> {
        let owned = Owned::new();
        let handle = begin((owned.0, VARIABLES_BYTES), (owned.0.wrapping_add(VARIABLES_BYTES), ARENA_BYTES))?;
        Ok(Model { handle, _owned: Some(owned), _borrowed: PhantomData })
    }
}

fn begin(variables: (*mut u8, usize), arena: (*mut u8, usize)) -> Result<raw::Handle, Error> {
    let null = core::ptr::null_mut();
    let mut handle = raw::Handle {
        version: 0,
        variables: null,
        arena: null,
        parallel_for: None,
        own: null.cast(),
        run: null.cast(),
    };
    let memory = raw::Memory {
        version: VERSION,
        variables: variables.0,
        variables_bytes: variables.1,
        arena: arena.0,
        arena_bytes: arena.1,
        parallel_for: None,
        own: null.cast(),
    };
    done(unsafe { raw::network_init(&mut handle, &memory) })?;
    Ok(handle)
}

impl<'memory> Model<'memory> {
    /// An instance in the caller's memory, at multiples of [`ALIGNMENT`].
    pub fn within(variables: &'memory mut [u8], arena: &'memory mut [u8]) -> Result<Self, Error> {
        let handle = begin((variables.as_mut_ptr(), variables.len()), (arena.as_mut_ptr(), arena.len()))?;
        Ok(Model {
            handle,
            #[cfg(feature = "alloc")]
            _owned: None,
            _borrowed: PhantomData,
        })
    }

    //{{calls}}
    // {{#variables}}

    /// What the bundle says of its variables, in the order of their numbers.
    pub fn variables() -> &'static [Variable] {
        unsafe { core::slice::from_raw_parts(core::ptr::addr_of!(raw::network_variables).cast(), {{variables}}) }
    }

    /// The number of a variable.
    pub fn find(name: &str) -> Option<u32> {
        Self::variables().iter().position(|each| each.name() == name).map(|number| number as u32)
    }

    /// A variable's elements, row-major.
    pub fn get<T: Element>(&mut self, variable: u32, data: &mut [T]) -> Result<(), Error> {
        typed::<T>(variable)?;
        let bytes = core::mem::size_of_val(data);
        done(unsafe { raw::network_get(&mut self.handle, variable, data.as_mut_ptr().cast(), bytes) })
    }

    /// Set a variable's elements, row-major.
    pub fn set<T: Element>(&mut self, variable: u32, data: &[T]) -> Result<(), Error> {
        typed::<T>(variable)?;
        let bytes = core::mem::size_of_val(data);
        done(unsafe { raw::network_set(&mut self.handle, variable, data.as_ptr().cast(), bytes) })
    }

    /// All variables as they are at the start.
    pub fn reset(&mut self) -> Result<(), Error> {
        done(unsafe { raw::network_reset(&mut self.handle) })
    }

    /// All variables as a file (safetensors), piece by piece; `write` says whether a piece was written.
    pub fn save<W: FnMut(&[u8]) -> bool>(&mut self, mut write: W) -> Result<(), Error> {
        extern "C" fn call<W: FnMut(&[u8]) -> bool>(own: *mut c_void, data: *const c_void, bytes: usize) -> usize {
            let (write, piece) =
                unsafe { (&mut *own.cast::<W>(), core::slice::from_raw_parts(data.cast::<u8>(), bytes)) };
            if write(piece) {
                bytes
            } else {
                0
            }
        }
        let own: *mut W = &mut write;
        done(unsafe { raw::network_save(&mut self.handle, call::<W>, own.cast()) })
    }

    /// All variables from a file; `read` fills a piece from an offset on, and says whether it could.
    pub fn load<R: FnMut(usize, &mut [u8]) -> bool>(&mut self, mut read: R) -> Result<(), Error> {
        extern "C" fn call<R: FnMut(usize, &mut [u8]) -> bool>(
            own: *mut c_void,
            offset: usize,
            data: *mut c_void,
            bytes: usize,
        ) -> usize {
            let (read, piece) =
                unsafe { (&mut *own.cast::<R>(), core::slice::from_raw_parts_mut(data.cast::<u8>(), bytes)) };
            if read(offset, piece) {
                bytes
            } else {
                0
            }
        }
        let own: *mut R = &mut read;
        done(unsafe { raw::network_load(&mut self.handle, call::<R>, own.cast()) })
    }
    // {{/variables}}
}
// {{#variables}}

/// Bytes of a file of all variables; nothing behind them is read.
pub const FILE_BYTES: usize = {{file_bytes}};

/// A variable: its name, type, role (parameter, statistic, state), shape, and where it lies.
#[repr(C)]
pub struct Variable {
    name: *const c_char,
    type_: *const c_char,
    pub role: u32,
    pub size: u32,
    pub rank: u32,
    shape: *const u32,
    strides: *const u32,
    pub elements: usize,
    pub offset: usize,
}

unsafe impl Sync for Variable {}

impl Variable {
    pub fn name(&self) -> &'static str {
        text(self.name)
    }

    /// "f32", "i64", ...
    pub fn element(&self) -> &'static str {
        text(self.type_)
    }

    pub fn shape(&self) -> &'static [u32] {
        unsafe { core::slice::from_raw_parts(self.shape, self.rank as usize) }
    }
}

fn text(at: *const c_char) -> &'static str {
    unsafe { CStr::from_ptr(at) }.to_str().unwrap_or("")
}

/// What functions hand the bytes of a file to, and where they get them from.
pub type Write = extern "C" fn(own: *mut c_void, data: *const c_void, bytes: usize) -> usize;
pub type Read = extern "C" fn(own: *mut c_void, offset: usize, data: *mut c_void, bytes: usize) -> usize;

/// Numbers that variables may consist of.
///
/// # Safety
///
/// Every combination of bits must be a number of the type, and `NAMES` those that bundles have for it.
pub unsafe trait Element: Copy {
    const NAMES: &'static [&'static str];
}

macro_rules! elements {
    ($($type:ty: $($name:literal)*;)*) => {
        $(unsafe impl Element for $type {
            const NAMES: &'static [&'static str] = &[$($name),*];
        })*
    };
}

elements! {
    f64: "f64"; f32: "f32"; i64: "i64"; i32: "i32"; i16: "i16"; i8: "i8" "i4" "i2";
    u64: "u64"; u32: "u32"; u16: "u16" "f16" "bf16";
    u8: "u8" "bool" "u4" "u2" "f8e4m3fn" "f8e4m3fnuz" "f8e5m2" "f8e5m2fnuz" "f8e8m0" "f6e2m3" "f6e3m2" "f4e2m1";
}

fn typed<T: Element>(variable: u32) -> Result<(), Error> {
    match Model::variables().get(variable as usize) {
        None => Err(Error::Code(codes::NO_SUCH_VARIABLE)),
        Some(found) if T::NAMES.contains(&found.element()) => Ok(()),
        Some(_) => Err(Error::Type),
    }
}
// {{/variables}}
