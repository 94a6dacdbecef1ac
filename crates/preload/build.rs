//! Link options of the preload library.
//!
//! `initfirst`: its constructor runs before all others, when there is one thread and no code of the program
//! has run. `now`: all symbols are bound at load, so that neither a hook nor a signal handler ever enters the
//! loader to bind one. What Rust does not export is hidden anyway; `exclude-libs` says the same of C archives,
//! so that a codec inside never answers for the program's own copy of it.

fn main() {
    for option in ["-z,initfirst", "-z,now", "--exclude-libs,ALL"] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,{option}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
