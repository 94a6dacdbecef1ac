//! Link options of the library for C: programs that are linked with `libuzswap.so` ask the loader
//! for `libuzswap.so.1`, whose number changes when a program that was compiled before would not run
//! any more.
//!
//! `exclude-libs`: the codecs inside never answer for the program's own copies of them.

fn main() {
    // zig's linker does not know it, and the list of exports hides them as well.
    let is_zig = std::env::var("RUSTC_LINKER").is_ok_and(|linker| linker.contains("zigcc"));
    let hides = (!is_zig).then_some("--exclude-libs,ALL");
    for option in ["-soname,libuzswap.so.1", "-z,now"].into_iter().chain(hides) {
        println!("cargo:rustc-cdylib-link-arg=-Wl,{option}");
    }
    println!("cargo:rerun-if-env-changed=RUSTC_LINKER");
    println!("cargo:rerun-if-changed=build.rs");
}
