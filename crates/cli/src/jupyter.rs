//! `uzswap jupyter install`: a notebook's kernel under uzswap, made from one that is installed.
//!
//! ```text
//!   DATA/kernels/python3/kernel.json                     DATA/kernels/uzswap-python3/kernel.json
//!   "argv": ["python", "-m", "ipykernel_launcher", ..]   "argv": [".../uzswap", "run", "--in-place", "--memory", "8G", "--", ...]
//!   "display_name": "Python 3"                     ──>   "display_name": "Python 3 (8 GiB, compressed)"
//! ```
//!
//! A *kernel* is a program that a notebook server starts, interrupts and kills by its process id,
//! so it runs in place. It is found, and the new one put, where Jupyter looks: any kernel will do
//! whose program uzswap can take over, of whatever language.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::options::Given;
use crate::program::{Program, reason};
use crate::size::{self, Size};
use crate::{Failure, console, settings};

type Env<'a> = &'a dyn Fn(&str) -> Option<OsString>;

const SPEC: &str = "kernel.json";
/// The beginning of names of kernels that are ours.
const OURS: &str = "uzswap-";

/// Arguments of `uzswap jupyter`.
#[derive(clap::Subcommand, Debug)]
pub enum JupyterCommand {
    /// Make a kernel that runs under uzswap from one that is installed
    Install(InstallArguments),
}

#[derive(clap::Args, Debug)]
pub struct InstallArguments {
    /// Memory that each of its notebooks may hold: 8G, or 50% of what there is; what is free
    /// without it
    #[arg(long, value_name = "SIZE|PERCENT", allow_hyphen_values = true)]
    memory: Option<String>,
    /// Take all memory of a notebook that has done nothing for so long: 10m; it comes back as it is
    /// touched
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    idle_after: Option<String>,
    /// Name of the new kernel (uzswap-KERNEL)
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// The kernel to make it from, as 'jupyter kernelspec list' calls it
    #[arg(value_name = "KERNEL", default_value = "python3")]
    kernel: String,
}

pub fn run(command: JupyterCommand) -> Result<u8, Failure> {
    let JupyterCommand::Install(arguments) = command;
    let env = |name: &str| std::env::var_os(name);
    let uzswap = std::env::current_exe()
        .map_err(|e| Failure::environment(format!("where this command is: {}", reason(&e))))?;
    let made = install(&arguments, &uzswap, &env)?;
    let directory = made.directory.display();
    console::print(&format!("kernel {}: {}, in {directory}\n", made.name, made.display_name))?;
    Ok(0)
}

/// A kernel as it is installed.
struct Kernel {
    name: String,
    display_name: String,
    directory: PathBuf,
}

fn install(arguments: &InstallArguments, uzswap: &Path, env: Env) -> Result<Kernel, Failure> {
    let wrong = Failure::usage;
    let memory = match &arguments.memory {
        None => None,
        Some(text) => {
            let size = size::parse(text).map_err(|why| wrong(format!("--memory: {why}")))?;
            Some((text, shown(size)))
        }
    };
    // As `run` checks them: a notebook that does not start says nothing.
    let given = |text: &Option<String>, origin: &str| {
        text.clone().map(|value| Given { value, origin: origin.to_string() })
    };
    if let Some(given) = given(&arguments.memory, "--memory") {
        settings::memory(Some(given), &mut Vec::new())?;
    }
    settings::idle_after(given(&arguments.idle_after, "--idle-after")).map_err(wrong)?;
    let name = arguments.name.clone().unwrap_or_else(|| format!("{OURS}{}", arguments.kernel));
    for name in [&arguments.kernel, &name] {
        check_name(name).map_err(wrong)?;
    }
    let data = data_directories(uzswap, env);
    let source = find(&arguments.kernel, &data)?;
    let mut spec = read(&source.join(SPEC))?;
    let program = command_line(&spec, &source)?;
    judge(&program[0], env)?;

    let mut line: Vec<String> =
        vec![uzswap.display().to_string(), "run".into(), "--in-place".into(), "--quiet".into()];
    let mut option = |name: &str, value: &str| line.extend([name.to_string(), value.to_string()]);
    if let Some((text, _)) = &memory {
        option("--memory", text);
    }
    if let Some(text) = &arguments.idle_after {
        option("--idle-after", text);
    }
    line.push("--".into());
    line.extend(program);
    let of = spec["display_name"].as_str().unwrap_or(&arguments.kernel);
    let display_name = match &memory {
        Some((_, size)) => format!("{of} ({size}, compressed)"),
        None => format!("{of} (compressed)"),
    };
    spec["argv"] = json!(line);
    spec["display_name"] = json!(display_name);
    let directory = write(&name, &source, &spec, &data)?;
    Ok(Kernel { name, display_name, directory })
}

fn shown(size: Size) -> String {
    match size {
        Size::Bytes(bytes) => size::human(bytes).replace(".0 ", " "),
        Size::MilliPercent(p) => format!("{}%", f64::from(p) / 1000.0),
    }
}

/// Jupyter's own rule for names, of which two would be directories.
fn check_name(name: &str) -> Result<(), String> {
    let is_good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if !matches!(name, "" | "." | "..") && name.chars().all(is_good) {
        return Ok(());
    }
    Err(format!("'{name}' is no name of a kernel: letters, digits, '.', '_' and '-' make one"))
}

/// Where Jupyter keeps its data, the most particular first: as it was told, of the environment that
/// this command is installed in or that is active, of the user, of the system.
fn data_directories(uzswap: &Path, env: Env) -> Vec<PathBuf> {
    let share = |prefix: PathBuf| prefix.join("share/jupyter");
    let own = uzswap.parent().and_then(Path::parent).map(Path::to_path_buf);
    let told =
        env("JUPYTER_PATH").map_or(Vec::new(), |list| std::env::split_paths(&list).collect());
    let prefixes =
        [own, env("VIRTUAL_ENV").map(PathBuf::from), env("CONDA_PREFIX").map(PathBuf::from)];
    // An empty one counts as none, to Jupyter, too.
    let path = |name: &str| env(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let user = path("JUPYTER_DATA_DIR")
        .or_else(|| path("XDG_DATA_HOME").map(|data| data.join("jupyter")))
        .or_else(|| path("HOME").map(|home| home.join(".local/share/jupyter")));
    let system = ["/usr/local", "/usr"].map(|prefix| share(prefix.into()));
    let mut all: Vec<PathBuf> = told;
    all.extend(prefixes.into_iter().flatten().map(share));
    all.extend(user);
    all.extend(system);
    all.retain(|d| d.is_absolute());
    let mut seen = std::collections::HashSet::new();
    all.retain(|d| seen.insert(d.clone()));
    all
}

/// The directory of a kernel.
fn find(kernel: &str, data: &[PathBuf]) -> Result<PathBuf, Failure> {
    let places = || data.iter().map(|d| d.join("kernels"));
    let found = places().map(|d| d.join(kernel)).find(|d| d.join(SPEC).exists());
    found.ok_or_else(|| {
        let entries = places().filter_map(|d| fs::read_dir(d).ok()).flatten().flatten();
        let mut names: Vec<String> = entries
            .filter(|e| e.path().join(SPEC).exists())
            .map(|e| e.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names.dedup();
        let remedy = match names.is_empty() {
            true => {
                "install one (pip install ipykernel), or say where with JUPYTER_PATH".to_string()
            }
            false => format!("there are {}", names.join(", ")),
        };
        Failure::usage(format!("there is no kernel '{kernel}': {remedy}"))
    })
}

fn read(path: &Path) -> Result<Value, Failure> {
    let text = fs::read(path)
        .map_err(|e| Failure::environment(format!("{}: {}", path.display(), reason(&e))))?;
    serde_json::from_slice(&text)
        .map_err(|e| Failure::environment(format!("{}: is no JSON: {e}", path.display())))
}

/// The command line of a kernel, with an interpreter that does not depend on who starts it: Jupyter
/// takes "python" for its own, but only as the first word.
fn command_line(spec: &Value, directory: &Path) -> Result<Vec<String>, Failure> {
    let at = directory.join(SPEC);
    let words = spec["argv"].as_array().filter(|words| !words.is_empty());
    let words = words.and_then(|w| w.iter().map(|w| w.as_str().map(String::from)).collect());
    let Some(mut words): Option<Vec<String>> = words else {
        return Err(Failure::environment(format!(
            "{}: its 'argv' is no command line",
            at.display()
        )));
    };
    if is_ours(spec) {
        return Err(Failure::usage(format!(
            "{} runs under uzswap already: name the kernel that it was made from",
            directory.display()
        )));
    }
    // PREFIX/share/jupyter/kernels/NAME
    let beside = directory.ancestors().nth(4).map(|prefix| prefix.join("bin").join(&words[0]));
    if let Some(beside) = beside.filter(|p| words[0].starts_with("python") && p.exists()) {
        words[0] = beside.display().to_string();
    }
    Ok(words)
}

fn is_ours(spec: &Value) -> bool {
    spec["argv"].as_array().is_some_and(|words| words.iter().any(|w| w == "--in-place"))
}

/// Refuses a program that cannot be taken over, before somebody waits for a notebook that does not
/// start.
fn judge(program: &str, env: Env) -> Result<(), Failure> {
    let found = Program::find(&[program.into()], env("PATH"))?;
    let refused = |refusal: crate::mechanism::Refusal| {
        Failure::environment(format!("{}: {}", refusal.cause, refusal.remedy))
    };
    found.takeover.map(drop).map_err(refused)
}

/// Writes the kernel beside the one that it is made from or, where that is not allowed, among the
/// user's.
fn write(name: &str, source: &Path, spec: &Value, data: &[PathBuf]) -> Result<PathBuf, Failure> {
    let beside = source.parent().map(Path::to_path_buf);
    let places = beside.into_iter().chain(data.iter().map(|d| d.join("kernels")));
    let mut faults = Vec::new();
    for directory in places.map(|kernels| kernels.join(name)) {
        let there = directory.join(SPEC);
        if there.exists() && !is_ours(&read(&there)?) {
            return Err(Failure::usage(format!(
                "{} is a kernel that is not uzswap's: choose another --name",
                directory.display()
            )));
        }
        match copy(source, &directory, spec) {
            Ok(()) => return Ok(directory),
            Err(e) => faults.push(format!("{}: {}", directory.display(), reason(&e))),
        }
    }
    Err(Failure::environment(format!("no place for the kernel: {}", faults.join(", "))))
}

/// The kernel's files, its pictures for instance, and the new specification.
fn copy(source: &Path, directory: &Path, spec: &Value) -> std::io::Result<()> {
    fs::create_dir_all(directory)?;
    for entry in fs::read_dir(source)?.flatten() {
        if entry.file_type()?.is_file() && entry.file_name() != SPEC {
            fs::copy(entry.path(), directory.join(entry.file_name()))?;
        }
    }
    fs::write(directory.join(SPEC), format!("{spec:#}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Data of Jupyter's with one kernel, whose program is a shell; removed when dropped.
    struct Data(PathBuf);

    impl Data {
        fn new() -> Data {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let n = NEXT.fetch_add(1, Ordering::Relaxed);
            let path =
                std::env::temp_dir().join(format!("uzswap-jupyter-{}-{n}", std::process::id()));
            let data = Data(path);
            fs::create_dir_all(data.kernel("shell")).unwrap();
            let spec = json!({"argv": ["/bin/sh", "-c", "{connection_file}"], "display_name": "S"});
            fs::write(data.kernel("shell").join(SPEC), spec.to_string()).unwrap();
            fs::write(data.kernel("shell").join("logo.png"), "picture").unwrap();
            data
        }

        fn kernel(&self, name: &str) -> PathBuf {
            self.0.join("kernels").join(name)
        }

        fn install(&self, memory: &str, idle_after: &str, name: &str) -> Result<Kernel, String> {
            let word = |text: &str| (!text.is_empty()).then(|| text.to_string());
            let arguments = InstallArguments {
                memory: word(memory),
                idle_after: word(idle_after),
                name: word(name),
                kernel: "shell".to_string(),
            };
            let env = |name: &str| (name == "JUPYTER_PATH").then(|| self.0.clone().into());
            install(&arguments, Path::new("/opt/bin/uzswap"), &env).map_err(|f| f.message)
        }

        fn names(&self) -> Vec<OsString> {
            let entries = [fs::read_dir(&self.0), fs::read_dir(self.0.join("kernels"))];
            let names = entries.into_iter().flat_map(|all| all.unwrap());
            let mut names: Vec<OsString> = names.map(|e| e.unwrap().file_name()).collect();
            names.sort();
            names
        }
    }

    impl Drop for Data {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_kernel_is_made_from_another_with_its_pictures() {
        let data = Data::new();
        let made = data.install("8G", "10m", "").unwrap();
        assert_eq!(made.name, "uzswap-shell");
        assert_eq!(made.display_name, "S (8 GiB, compressed)");
        let spec = read(&data.kernel("uzswap-shell").join(SPEC)).unwrap();
        let line: Vec<&str> =
            spec["argv"].as_array().unwrap().iter().map(|w| w.as_str().unwrap()).collect();
        assert_eq!(line[..5], ["/opt/bin/uzswap", "run", "--in-place", "--quiet", "--memory"]);
        assert_eq!(line[5..9], ["8G", "--idle-after", "10m", "--"]);
        assert_eq!(line[9..], ["/bin/sh", "-c", "{connection_file}"]);
        assert_eq!(fs::read(data.kernel("uzswap-shell").join("logo.png")).unwrap(), b"picture");
        // Ours is made anew, another's stays.
        assert_eq!(data.install("50%", "", "").unwrap().display_name, "S (50%, compressed)");
        assert!(data.install("", "", "shell").is_err_and(|why| why.contains("is not uzswap's")));
    }

    #[test]
    fn places_by_preference() {
        let places = |variables: &[(&str, &str)]| {
            let env = |name: &str| {
                variables.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into())
            };
            data_directories(Path::new("/opt/bin/uzswap"), &env)
        };
        let system = ["/usr/local/share/jupyter", "/usr/share/jupyter"];
        let all = |first: &[&str]| -> Vec<PathBuf> {
            ["/opt/share/jupyter"].iter().chain(first).chain(&system).map(PathBuf::from).collect()
        };
        assert_eq!(places(&[]), all(&[]));
        let home = ("HOME", "/home/me");
        let at_home = all(&["/home/me/.local/share/jupyter"]);
        assert_eq!(places(&[home]), at_home);
        assert_eq!(places(&[home, ("JUPYTER_DATA_DIR", ""), ("XDG_DATA_HOME", "")]), at_home);
        assert_eq!(places(&[home, ("XDG_DATA_HOME", "/d")]), all(&["/d/jupyter"]));
        assert_eq!(places(&[home, ("JUPYTER_DATA_DIR", "/j")]), all(&["/j"]));
        let told = places(&[("JUPYTER_PATH", "/a:b::/a"), ("VIRTUAL_ENV", "/opt")]);
        assert_eq!(told[..2], ["/a", "/opt/share/jupyter"].map(PathBuf::from));
        assert_eq!(told.len(), 4, "each once, and absolute ones alone");
    }

    #[test]
    fn what_would_not_start_is_not_installed() {
        let data = Data::new();
        let before = data.names();
        for (memory, idle_after, word) in [
            ("1M", "", "--memory: '1M' is 1.0 MiB, and the least that works is 16 MiB"),
            ("0", "", "the least that works"),
            ("-1G", "", "is negative"),
            ("", "0.5s", "--idle-after: '0.5s' is less than a second"),
            ("", "soon", "'soon' is no time"),
        ] {
            let why = data.install(memory, idle_after, "").err().expect(word);
            assert!(why.contains(word), "{why}");
        }
        assert_eq!(data.names(), before);
    }

    #[test]
    fn a_name_is_that_of_one_directory() {
        let data = Data::new();
        let before = data.names();
        for name in [".", "..", "a/b", "../x", "a b", "\u{e4}"] {
            let why = data.install("", "", name).err().expect(name);
            assert!(why.contains("is no name of a kernel") && why.contains(name), "{why}");
        }
        assert_eq!(data.names(), before);
        assert!(data.install("", "", "...").is_ok());
    }
}
