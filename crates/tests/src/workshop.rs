//! A temporary directory that every user can read, with all that the programs need; gone at the end.
//!
//! The build tree usually lies in somebody's home, which an ordinary user cannot enter; so uzswap's two files, the
//! compiled test programs and the scripts are copied here.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::User;

const PREFIX: &str = "uzswap-tests-";
/// The two files that make up uzswap.
const UZSWAP_FILES: [&str; 2] = ["uzswap", "libuzswap_preload.so"];

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
        workshop.compile("jail", "gcc", &["-O1"]);
        workshop
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Compiles `programs/NAME.c` (or `.cpp`), once.
    pub fn program(&self, name: &str) -> PathBuf {
        self.compile(name, "gcc", &["-O2", "-pthread"])
    }

    /// A path of the workshop; `make` is called the first time.
    fn once(&self, path: PathBuf, make: impl FnOnce(&Path)) -> PathBuf {
        let _making = self.making.lock().unwrap_or_else(|broken| broken.into_inner());
        if !path.exists() {
            make(&path);
        }
        path
    }

    fn compile(&self, name: &str, compiler: &str, options: &[&str]) -> PathBuf {
        self.once(self.dir.join("bin").join(name), |made| {
            let source = source(&format!("{name}.c"));
            let out = Command::new(compiler)
                .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror"])
                .args(options)
                .arg("-o")
                .args([made, source.as_path()])
                .output()
                .unwrap_or_else(|e| panic!("{compiler} is needed to build {name}: {e}"));
            assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
            open_to_all(made);
        })
    }

    /// A copy of `programs/NAME` that every user can read.
    pub fn script(&self, name: &str) -> PathBuf {
        self.once(self.dir.join("bin").join(name), |copy| {
            fs::copy(source(name), copy).unwrap_or_else(|e| panic!("programs/{name}: {e}"));
            open_to_all(copy);
        })
    }

    /// A file made once by `make`, readable by all: input that is too large to keep in the repository.
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
                fs::copy(&from, &to).unwrap_or_else(|e| {
                    panic!("{}: {e}; build it first: cargo build --workspace [--release]", from.display())
                });
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
