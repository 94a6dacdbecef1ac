//! Starts of Python under uzswap, with caches that are warm.
//!
//! | way | what is started |
//! |---|---|
//! | plain | `python3 -c pass` |
//! | run | `uzswap run -- python3 -c pass` |
//! | module | `python3 -m uzswap -c pass` |
//! | restart | `python3 SCRIPT`, which begins with `import uzswap; uzswap.restart()` |
//!
//! All have the same environment but for the options of `uzswap run`, which are variables here. The
//! package is the one of the source tree that this command lies in, or the one that is installed.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::process::find;
use uzswap_cli::place::own_path;
use uzswap_cli::program::reason;

const SCRIPT: &str = "import uzswap\nuzswap.restart()\n";

/// How Python comes under uzswap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Run,
    Module,
    Restart,
}

impl Way {
    const ALL: [Way; 3] = [Way::Run, Way::Module, Way::Restart];

    /// The name of its workload.
    pub fn name(self) -> &'static str {
        match self {
            Way::Run => "Python, run",
            Way::Module => "Python, -m uzswap",
            Way::Restart => "Python, restart",
        }
    }

    pub fn of(name: &str) -> Option<Way> {
        Way::ALL.into_iter().find(|way| way.name() == name)
    }
}

/// A package, a script, and a command to start Python with.
pub struct Starts {
    python: PathBuf,
    uzswap: PathBuf,
    script: PathBuf,
    /// A directory for the search path of Python; none if the package is installed.
    package: Option<PathBuf>,
}

impl Starts {
    /// Puts the package of the source tree and a script into a directory: there Python may keep
    /// what it compiles. The error says why nothing can be started.
    pub fn prepare(scratch: &Path) -> Result<Starts, String> {
        let own = own_path().map_err(|failure| failure.message)?;
        let python = find("python3")?;
        let uzswap = crate::arms::uzswap().map_err(|failure| failure.message)?;
        let package = match source(&own) {
            Some(source) => Some(copied(&source, scratch).map_err(|e| reason(&e))?),
            None if is_installed(&python) => None,
            None => {
                return Err(format!(
                    "the package uzswap is neither in a source tree around {} nor installed",
                    own.display()
                ));
            }
        };
        let script = scratch.join("restart.py");
        fs::write(&script, SCRIPT).map_err(|e| format!("{}: {}", script.display(), reason(&e)))?;
        Ok(Starts { python, uzswap, script, package })
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("UZSWAP_COMMAND", &self.uzswap);
        command.envs(self.package.iter().map(|package| ("PYTHONPATH", package)));
        // Compiled modules are a part of what is warm.
        command.env_remove("PYTHONDONTWRITEBYTECODE");
        command
    }

    pub fn plain(&self) -> Command {
        let mut command = self.command(&self.python);
        command.args(["-c", "pass"]);
        command
    }

    pub fn managed(&self, way: Way, memory: &str, stats: &Path) -> Command {
        let mut command = match way {
            Way::Run => {
                let mut command = self.command(&self.uzswap);
                command.args(["run", "--"]).arg(&self.python).args(["-c", "pass"]);
                command
            }
            Way::Module => {
                let mut command = self.command(&self.python);
                command.args(["-m", "uzswap", "-c", "pass"]);
                command
            }
            Way::Restart => {
                let mut command = self.command(&self.python);
                command.arg(&self.script);
                command
            }
        };
        command.env("UZSWAP_MEMORY", memory).env("UZSWAP_QUIET", "1").env("UZSWAP_STATS", stats);
        command
    }
}

/// The package in the source tree that a command lies in.
fn source(own: &Path) -> Option<PathBuf> {
    let places = own.ancestors().map(|directory| directory.join("python/uzswap"));
    places.into_iter().find(|package| package.join("__init__.py").is_file())
}

/// A copy of a package's modules, in a directory for the search path.
fn copied(source: &Path, scratch: &Path) -> std::io::Result<PathBuf> {
    let path = scratch.join("python");
    let package = path.join("uzswap");
    fs::create_dir_all(&package)?;
    for entry in fs::read_dir(source)? {
        let file = entry?.path();
        if let (Some("py"), Some(name)) =
            (file.extension().and_then(OsStr::to_str), file.file_name())
        {
            fs::copy(&file, package.join(name))?;
        }
    }
    Ok(path)
}

fn is_installed(python: &Path) -> bool {
    let mut import = Command::new(python);
    import.args(["-c", "import uzswap"]).stderr(Stdio::null());
    import.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn the_package_of_the_source_tree_is_found_and_copied() {
        let scratch = Scratch::new("starts").unwrap();
        let tree = scratch.path().join("tree");
        fs::create_dir_all(tree.join("python/uzswap/__pycache__")).unwrap();
        let own = tree.join("target/release/uzswap-bench");
        assert!(source(&own).is_none());
        fs::write(tree.join("python/uzswap/__init__.py"), "x = 1\n").unwrap();
        fs::write(tree.join("python/uzswap/py.typed"), "").unwrap();
        let package = copied(&source(&own).unwrap(), scratch.path()).unwrap();
        let names = fs::read_dir(package.join("uzswap")).unwrap();
        let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["__init__.py"]);
    }

    #[test]
    fn each_way_has_its_name_and_its_command() {
        let starts = Starts {
            python: "/python3".into(),
            uzswap: "/uzswap".into(),
            script: "/restart.py".into(),
            package: Some("/package".into()),
        };
        let words = |command: &Command| -> Vec<String> {
            let all = [command.get_program()].into_iter().chain(command.get_args());
            all.map(|word| word.to_string_lossy().into_owned()).collect()
        };
        let line = |way: Way| words(&starts.managed(way, "2G", Path::new("/stats")));
        assert_eq!(words(&starts.plain()), ["/python3", "-c", "pass"]);
        assert_eq!(line(Way::Run), ["/uzswap", "run", "--", "/python3", "-c", "pass"]);
        assert_eq!(line(Way::Module), ["/python3", "-m", "uzswap", "-c", "pass"]);
        assert_eq!(line(Way::Restart), ["/python3", "/restart.py"]);
        for way in Way::ALL {
            assert_eq!(Way::of(way.name()), Some(way));
            let command = starts.managed(way, "2G", Path::new("/stats"));
            let value = |name: &str| command.get_envs().find(|(own, _)| *own == name)?.1;
            assert_eq!(value("UZSWAP_STATS"), Some("/stats".as_ref()));
            assert_eq!(value("PYTHONPATH"), Some("/package".as_ref()));
        }
        assert_eq!(Way::of("CPython"), None);
    }
}
