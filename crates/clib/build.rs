//! Link options of the library for C: programs that are linked with `libuzswap.so` ask the loader
//! for `libuzswap.so.1`, whose number changes when a program that was compiled before would not run
//! any more.
//!
//! `exclude-libs`: the codecs inside never answer for the program's own copies of them.

fn main() {
    for option in ["-soname,libuzswap.so.1", "-z,now", "--exclude-libs,ALL"] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,{option}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
