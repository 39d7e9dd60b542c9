//! Links the bundle's machine code, which lies beside this file.

fn main() {
    let here = std::env::var("CARGO_MANIFEST_DIR").unwrap();
    println!("cargo:rustc-link-search=native={here}");
    println!("cargo:rustc-link-lib=static:+verbatim=libnetwork.a");
    println!("cargo:rerun-if-changed=libnetwork.a");
}
