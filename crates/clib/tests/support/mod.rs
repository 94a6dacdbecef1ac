//! The library as it is built, and programs in C that are compiled with it.
#![allow(dead_code)]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::SystemTime;
use std::{env, fs};

pub const CRATE: &str = env!("CARGO_MANIFEST_DIR");
pub const LINE: [&str; 6] = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror"];
/// Warnings that the headers must not cause.
pub const STRICT: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-pedantic"];

/// The directory in which cargo puts the library. Cargo builds no library for C along with tests,
/// so it is built here if it is missing, or older than a source.
pub fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let test = env::current_exe().unwrap();
        let profile = test.ancestors().nth(2).expect("TARGET/PROFILE/deps/NAME").to_path_buf();
        let made = |file: &str| fs::metadata(profile.join(file)).and_then(|of| of.modified()).ok();
        let sources = ["../core/src", "../core/Cargo.toml", "src", "Cargo.toml", "build.rs"];
        let newest = sources.iter().filter_map(|name| newest(&Path::new(CRATE).join(name))).max();
        if made("libuzswap.so") < newest || made("libuzswap.a") < newest {
            build(&profile);
        }
        profile
    })
}

/// The time of the newest file.
fn newest(path: &Path) -> Option<SystemTime> {
    let own = fs::metadata(path).and_then(|of| of.modified()).ok();
    let below = fs::read_dir(path).into_iter().flatten().flatten();
    below.map(|entry| newest(&entry.path())).max().unwrap_or(own).max(own)
}

fn build(profile: &Path) {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.current_dir(CRATE).args(["build", "--quiet", "-p", "uzswap-clib", "--target-dir"]);
    cargo.arg(profile.parent().expect("a directory of profiles"));
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    assert!(cargo.status().unwrap().success(), "the library is not built");
}

/// Says of a test that it cannot run, and why; not by `println`, which a test that passes hides.
pub fn skipped(test: &str, why: &str) {
    let _ = std::io::stderr().write_all(format!("SKIPPED {test}: {why}\n").as_bytes());
}

/// A directory of a test's own, with the library under the name that the loader looks for; gone at
/// the end.
pub struct Place(PathBuf);

impl Place {
    pub fn new(name: &str) -> Place {
        let path = env::temp_dir().join(format!("uzswap-clib-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        for file in ["libuzswap.so", "libuzswap.so.1"] {
            std::os::unix::fs::symlink(built().join("libuzswap.so"), path.join(file)).unwrap();
        }
        Place(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Compiles a C file of the crate with the library.
    pub fn compile(&self, source: &str, options: &[&str]) -> PathBuf {
        let made = self.0.join(Path::new(source).file_stem().unwrap());
        let mut gcc = Command::new("gcc");
        gcc.args(LINE).args(options).arg(format!("-I{CRATE}/include")).arg("-o").arg(&made);
        gcc.arg(format!("{CRATE}/{source}")).arg(format!("-L{}", self.0.display()));
        gcc.args([format!("-Wl,-rpath,{}", self.0.display()).as_str(), "-luzswap", "-pthread"]);
        said(&mut gcc);
        made
    }

    /// Compiles a C file of the crate without the library, as C or as C++ of a year.
    pub fn compile_alone(&self, source: &str, compiler: &str, year: &str) -> PathBuf {
        let made = self.0.join(format!("alone-{year}"));
        let mut command = Command::new(compiler);
        command.args([&format!("-std={year}"), "-O2"]).args(STRICT);
        command.args(["-x", if compiler == "g++" { "c++" } else { "c" }]);
        command.arg(format!("-I{CRATE}/include")).arg(format!("{CRATE}/{source}"));
        said(command.arg("-o").arg(&made).arg("-ldl"));
        made
    }

    /// A command whose first argument is a directory for stores.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.arg(&self.0);
        command
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The output of a command that has to succeed.
pub fn said(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|why| panic!("{command:?}: {why}"));
    assert!(output.status.success(), "{command:?}: {}", shown(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn shown(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}\n{}{}", output.status, text(&output.stdout), text(&output.stderr))
}

/// Whether there is such a program.
pub fn has(program: &str) -> bool {
    env::split_paths(&env::var_os("PATH").unwrap_or_default()).any(|dir| dir.join(program).exists())
}
