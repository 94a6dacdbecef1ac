//! Links the preload library, as a program of this package: `cargo install` copies programs, and
//! nothing else. So the library comes to lie beside the command, as a file like any other: it is
//! trusted as the command is, and every user who may start the command may load it.
//!
//! The program's file has no suffix, since cargo takes no dot in a name; packages give it one. It
//! is linked by the options that its code asks for (`preload/build.rs`), and by two more. `-shared`
//! wins over the `-pie` that the compiler gives for a program. The list of exports is empty, as the
//! compiler makes it for a library: a symbol that others could replace would have no address where
//! the library boots a program and no loader has bound it.

use std::path::PathBuf;

fn main() {
    let told = |name: &str| {
        std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: cargo sets it"))
    };
    let exports = PathBuf::from(told("OUT_DIR")).join("exports");
    // The bench of locks has it called.
    let shown = std::env::var_os("CARGO_FEATURE_CONTENTION").map(|_| "global: uzswap_contention;");
    std::fs::write(&exports, format!("{{ {} local: *; }};\n", shown.unwrap_or_default()))
        .expect("the directory is ours");
    let exports = format!("-Wl,--version-script={}", exports.display());
    let (object, options) = (told("DEP_UZSWAP_PRELOAD_OBJECT"), told("DEP_UZSWAP_PRELOAD_OPTIONS"));
    for option in ["-shared", &exports, &object].into_iter().chain(options.split(' ')) {
        println!("cargo:rustc-link-arg-bin=libuzswap_preload={option}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
