//! A temporary directory that every user can read, with all that the programs need; gone at the
//! end.
//!
//! The build tree usually lies in somebody's home, which an ordinary user cannot enter; so uzswap's
//! two files, the compiled test programs and the scripts are copied here.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::User;

const PREFIX: &str = "uzswap-tests-";
/// The two files that make up uzswap.
const UZSWAP_FILES: [&str; 2] = ["uzswap", "libuzswap_preload"];

#[derive(Debug)]
pub struct Workshop {
    dir: PathBuf,
    jobs: AtomicU32,
    /// Held while something is made, so that nobody finds half of it.
    making: Mutex<()>,
}

impl Workshop {
    pub fn new() -> Workshop {
        let root = std::env::temp_dir();
        sweep(&root);
        let dir = root.join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir_all(dir.join("bin")).expect("a temporary directory");
        open_to_all(&dir);
        open_to_all(&dir.join("bin"));
        let workshop = Workshop { dir, jobs: AtomicU32::new(0), making: Mutex::new(()) };
        workshop.compile("jail", "jail", &["-O1".into()]);
        workshop
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Compiles `programs/NAME.c`, once.
    pub fn program(&self, name: &str) -> PathBuf {
        self.compile(name, name, &["-O2".into(), "-pthread".into()])
    }

    /// Compiles `programs/NAME.c` with one more option, as `NAMEOPTION`.
    pub fn program_by(&self, name: &str, option: &str) -> PathBuf {
        self.compile(name, &format!("{name}{option}"), &["-O2".into(), option.into()])
    }

    /// Compiles `programs/NAME.c` with a library that it finds by LD_LIBRARY_PATH.
    pub fn program_with(&self, name: &str, library: &Path) -> PathBuf {
        self.compile(name, name, &["-O2".into(), library.into()])
    }

    /// Compiles `programs/NAME.c` as a library with PAGES defined, in a directory of its own.
    pub fn object_of_pages(&self, name: &str, pages: i64, options: &[&str]) -> PathBuf {
        let directory = self.dir.join(format!("bin/{name}-{pages}"));
        fs::create_dir_all(&directory).expect("the workshop is ours");
        open_to_all(&directory);
        let file = format!("lib{name}.so");
        let (pages_is, soname) = (format!("-DPAGES={pages}"), format!("-Wl,-soname,{file}"));
        let all = ["-O2", "-fPIC", "-shared", &pages_is, &soname]
            .into_iter()
            .chain(options.iter().copied());
        self.compile(
            name,
            &format!("{name}-{pages}/{file}"),
            &all.map(PathBuf::from).collect::<Vec<_>>(),
        )
    }

    /// A path of the workshop; `make` is called the first time.
    fn once(&self, path: PathBuf, make: impl FnOnce(&Path)) -> PathBuf {
        let _making = self.making.lock().unwrap_or_else(|broken| broken.into_inner());
        if !path.exists() {
            make(&path);
        }
        path
    }

    fn compile(&self, name: &str, made: &str, options: &[PathBuf]) -> PathBuf {
        self.compile_by("gcc", name, made, &[&["-std=gnu11".into()], options].concat())
    }

    /// Compiles `programs/NAME.c` by a compiler that is there, as `bin/MADE`.
    pub fn compile_by(
        &self,
        compiler: &str,
        name: &str,
        made: &str,
        options: &[PathBuf],
    ) -> PathBuf {
        self.once(self.dir.join("bin").join(made), |made| {
            let out = Command::new(compiler)
                .args(["-Wall", "-Wextra", "-Werror", "-o"])
                .args([made, &source(&format!("{name}.c"))])
                .args(options)
                .output()
                .unwrap_or_else(|e| panic!("{compiler} is needed to build {name}: {e}"));
            assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
            open_to_all(made);
        })
    }

    /// The directory of the classes of `programs/NAME.java`, by a compiler that is there.
    pub fn classes(&self, compiler: &Path, name: &str) -> PathBuf {
        let source = self.script(&format!("{name}.java"));
        self.input("classes", |classes| {
            let made = Command::new(compiler).arg("-d").args([classes, &source]).output();
            let made = made.unwrap_or_else(|e| panic!("{}: {e}", compiler.display()));
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        })
    }

    /// A copy of `programs/NAME` that every user can read.
    pub fn script(&self, name: &str) -> PathBuf {
        self.once(self.dir.join("bin").join(name), |copy| {
            copy_by_another(&source(name), copy);
            open_to_all(copy);
        })
    }

    /// A file made once by `make`, readable by all: input that is too large to keep in the
    /// repository.
    pub fn input(&self, name: &str, make: impl FnOnce(&Path)) -> PathBuf {
        self.once(self.dir.join(name), |path| {
            make(path);
            open_to_all(path);
        })
    }

    /// The command `uzswap`, with its library beside it.
    pub fn uzswap(&self) -> PathBuf {
        self.once(self.dir.join(UZSWAP_FILES[0]), |_| {
            let built = built_dir();
            for name in UZSWAP_FILES {
                let (from, to) = (built.join(name), self.dir.join(name));
                assert!(
                    from.exists(),
                    "there is no {}; build it first: cargo build --workspace [--release]",
                    from.display()
                );
                copy_by_another(&from, &to);
                open_to_all(&to);
            }
        })
    }

    /// A fresh directory for one job, owned by its user.
    pub fn job_dir(&self, user: User) -> PathBuf {
        let dir = self.dir.join(format!("job-{}", self.jobs.fetch_add(1, Ordering::Relaxed)));
        fs::create_dir(&dir).expect("a directory for the job");
        if user == User::Ordinary {
            let id = Some(User::ORDINARY_UID);
            chown(&dir, id, id).expect("root can give a directory away");
        }
        dir
    }
}

impl Default for Workshop {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Workshop {
    fn drop(&mut self) {
        if keep() {
            eprintln!("kept: {}", self.dir.display());
        } else {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

/// Whether files are to be kept for a look.
pub fn keep() -> bool {
    std::env::var_os("UZSWAP_TEST_KEEP").is_some()
}

/// The source of a test program.
pub fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(name)
}

/// Where cargo put uzswap: tests are `TARGET/PROFILE/deps/NAME-HASH`.
fn built_dir() -> PathBuf {
    if let Some(dir) = std::env::var_os("UZSWAP_TEST_BIN") {
        return dir.into();
    }
    let test = std::env::current_exe().expect("a test knows its path");
    test.ancestors().nth(2).expect("tests lie in TARGET/PROFILE/deps").to_owned()
}

/// Copies a file that is to be executed. A case beside may start a child meanwhile, which has our
/// descriptors for a moment, and the kernel executes no file that somebody may write: so another
/// process writes it.
fn copy_by_another(from: &Path, to: &Path) {
    let made = Command::new("cp").args([from, to]).output().expect("cp starts");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

/// Readable, and executable where it is for us.
fn open_to_all(path: &Path) {
    let mode = fs::metadata(path).expect("it was just made").permissions().mode();
    let open = mode | 0o444 | ((mode & 0o100) >> 3) | ((mode & 0o100) >> 6);
    fs::set_permissions(path, PermissionsExt::from_mode(open)).expect("it is ours");
}

/// Removes the workshops of test runs that were killed.
fn sweep(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|n| n.strip_prefix(PREFIX)) else { continue };
        if !Path::new("/proc").join(pid).exists() && !keep() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
