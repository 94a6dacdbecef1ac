//! The library as it is built, and programs in C that are compiled with it.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::{env, fs};

pub const CRATE: &str = env!("CARGO_MANIFEST_DIR");
pub const LINE: [&str; 6] = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror"];

/// The directory in which cargo puts the library. It is built here since cargo builds no library
/// for C along with tests; mostly it is there already.
pub fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let test = env::current_exe().unwrap();
        let profile = test.ancestors().nth(2).expect("TARGET/PROFILE/deps/NAME").to_path_buf();
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()));
        cargo.current_dir(CRATE).args(["build", "--quiet", "-p", "uzswap-clib", "--target-dir"]);
        cargo.arg(profile.parent().expect("a directory of profiles"));
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().unwrap().success(), "the library is not built");
        profile
    })
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

/// What a command says that has to succeed.
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
