"""The part of a bundle's Rust crate that is about variables, as text."""

RAW_VARIABLES = """
        pub static {name}_variables: [Variable; 0];
        pub fn {name}_find(variable: *const c_char) -> u32;
        pub fn {name}_get(handle: *mut Handle, variable: u32, data: *mut c_void, bytes: usize) -> u32;
        pub fn {name}_set(handle: *mut Handle, variable: u32, data: *const c_void, bytes: usize) -> u32;
        pub fn {name}_reset(handle: *mut Handle) -> u32;
        pub fn {name}_save(handle: *mut Handle, write: Write, own: *mut c_void) -> u32;
        pub fn {name}_load(handle: *mut Handle, read: Read, own: *mut c_void) -> u32;"""
VARIABLES = """
    /// What the bundle says of its variables, in the order of their numbers.
    pub fn variables() -> &'static [Variable] {{
        unsafe {{ core::slice::from_raw_parts(core::ptr::addr_of!(raw::{name}_variables).cast(), {count}) }}
    }}

    /// The number of a variable.
    pub fn find(name: &str) -> Option<u32> {{
        Self::variables().iter().position(|each| each.name() == name).map(|number| number as u32)
    }}

    /// A variable's elements, row-major.
    pub fn get<T: Element>(&mut self, variable: u32, data: &mut [T]) -> Result<(), Error> {{
        typed::<T>(variable)?;
        let bytes = core::mem::size_of_val(data);
        done(unsafe {{ raw::{name}_get(&mut self.handle, variable, data.as_mut_ptr().cast(), bytes) }})
    }}

    /// Set a variable's elements, row-major.
    pub fn set<T: Element>(&mut self, variable: u32, data: &[T]) -> Result<(), Error> {{
        typed::<T>(variable)?;
        let bytes = core::mem::size_of_val(data);
        done(unsafe {{ raw::{name}_set(&mut self.handle, variable, data.as_ptr().cast(), bytes) }})
    }}

    /// All variables as they are at the start.
    pub fn reset(&mut self) -> Result<(), Error> {{
        done(unsafe {{ raw::{name}_reset(&mut self.handle) }})
    }}

    /// All variables as a file (safetensors), piece by piece; `write` says whether a piece was written.
    pub fn save<W: FnMut(&[u8]) -> bool>(&mut self, mut write: W) -> Result<(), Error> {{
        extern "C" fn call<W: FnMut(&[u8]) -> bool>(own: *mut c_void, data: *const c_void, bytes: usize) -> usize {{
            let (write, piece) =
                unsafe {{ (&mut *own.cast::<W>(), core::slice::from_raw_parts(data.cast::<u8>(), bytes)) }};
            if write(piece) {{
                bytes
            }} else {{
                0
            }}
        }}
        let own: *mut W = &mut write;
        done(unsafe {{ raw::{name}_save(&mut self.handle, call::<W>, own.cast()) }})
    }}

    /// All variables from a file; `read` fills a piece from an offset on, and says whether it could.
    pub fn load<R: FnMut(usize, &mut [u8]) -> bool>(&mut self, mut read: R) -> Result<(), Error> {{
        extern "C" fn call<R: FnMut(usize, &mut [u8]) -> bool>(
            own: *mut c_void,
            offset: usize,
            data: *mut c_void,
            bytes: usize,
        ) -> usize {{
            let (read, piece) =
                unsafe {{ (&mut *own.cast::<R>(), core::slice::from_raw_parts_mut(data.cast::<u8>(), bytes)) }};
            if read(offset, piece) {{
                bytes
            }} else {{
                0
            }}
        }}
        let own: *mut R = &mut read;
        done(unsafe {{ raw::{name}_load(&mut self.handle, call::<R>, own.cast()) }})
    }}
"""
ELEMENTS = """
/// Bytes of a file of all variables; nothing behind them is read.
pub const FILE_BYTES: usize = {file_bytes};

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
"""
