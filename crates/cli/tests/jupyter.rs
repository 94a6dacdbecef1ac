//! `uzswap jupyter install`: kernels are made from those that are there, and a message says which
//! cannot be. The tests in python/tests show that notebooks run in them.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{Scratch, assert_refused, narrow_program, stderr, stdout, uzswap};
use serde_json::{Value, json};

/// A directory of kernels, with these in it, and nothing else where Jupyter looks.
struct Kernels(Scratch);

impl Kernels {
    fn new(kernels: &[(&str, Value)]) -> Kernels {
        let made = Kernels(Scratch::new());
        for (name, spec) in kernels {
            fs::create_dir_all(made.of(name)).unwrap();
            fs::write(made.of(name).join("kernel.json"), spec.to_string()).unwrap();
        }
        made
    }

    fn of(&self, name: &str) -> PathBuf {
        self.0.path("prefix/share/jupyter/kernels").join(name)
    }

    fn command(&self) -> Command {
        let mut command = uzswap();
        for variable in ["VIRTUAL_ENV", "CONDA_PREFIX", "JUPYTER_DATA_DIR", "XDG_DATA_HOME"] {
            command.env_remove(variable);
        }
        command
            .env("HOME", self.0.directory())
            .env("JUPYTER_PATH", self.0.path("prefix/share/jupyter"));
        command
    }

    fn install(&self, arguments: &[&str]) -> Output {
        self.command().args(["jupyter", "install"]).args(arguments).output().unwrap()
    }

    fn spec(&self, name: &str) -> Value {
        serde_json::from_slice(&fs::read(self.of(name).join("kernel.json")).unwrap()).unwrap()
    }
}

fn shell() -> Value {
    json!({
        "argv": ["/bin/sh", "-c", "echo {connection_file}"],
        "display_name": "A shell",
        "language": "sh",
        "env": {"A": "b"},
        "metadata": {"debugger": true},
    })
}

#[test]
fn a_kernel_is_the_old_one_under_uzswap() {
    let kernels = Kernels::new(&[("shell", shell())]);
    fs::write(kernels.of("shell").join("logo-64x64.png"), "picture").unwrap();
    let output = kernels.install(&["--memory", "8G", "--idle-after", "10m", "shell"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).starts_with("kernel uzswap-shell: A shell (8 GiB, compressed), in "));
    let spec = kernels.spec("uzswap-shell");
    let words: Vec<&str> =
        spec["argv"].as_array().unwrap().iter().map(|w| w.as_str().unwrap()).collect();
    assert!(Path::new(words[0]).is_absolute() && words[0].ends_with("/uzswap"));
    let rest = "run --in-place --quiet --memory 8G --idle-after 10m -- /bin/sh -c";
    assert_eq!(words[1..words.len() - 1].join(" "), rest);
    assert_eq!(words[words.len() - 1], "echo {connection_file}");
    for key in ["language", "env", "metadata"] {
        assert_eq!(spec[key], shell()[key], "{key}");
    }
    assert_eq!(fs::read(kernels.of("uzswap-shell").join("logo-64x64.png")).unwrap(), b"picture");
    // Again, with another limit; and beside it, under another name.
    assert!(kernels.install(&["--memory", "50%", "shell"]).status.success());
    assert_eq!(kernels.spec("uzswap-shell")["display_name"], "A shell (50%, compressed)");
    assert!(kernels.install(&["--name", "small", "shell"]).status.success());
    assert_eq!(kernels.spec("small")["display_name"], "A shell (compressed)");
    assert_eq!(kernels.spec("shell"), shell());
}

#[test]
fn a_relative_interpreter_is_the_environments() {
    let spec = json!({"argv": ["python", "-m", "ipykernel_launcher"], "display_name": "Python 3"});
    let kernels = Kernels::new(&[("python3", spec)]);
    let interpreter = kernels.0.path("prefix/bin/python");
    fs::create_dir_all(interpreter.parent().unwrap()).unwrap();
    fs::copy("/bin/true", &interpreter).unwrap();
    let output = kernels.install(&[]);
    assert!(output.status.success(), "{}", stderr(&output));
    let spec = kernels.spec("uzswap-python3");
    assert_eq!(spec["argv"][5], interpreter.to_str().unwrap());
}

#[test]
fn what_cannot_be_installed_is_said() {
    let scratch = Scratch::new();
    let narrow = scratch.file("narrow", narrow_program(), 0o755);
    let kernels = Kernels::new(&[
        ("shell", shell()),
        ("narrow", json!({"argv": [narrow.to_str().unwrap()], "display_name": "Narrow"})),
        ("broken", json!({"argv": "words", "display_name": "Broken"})),
    ]);
    let refused =
        |arguments: &[&str], words: &[&str]| assert_refused(&kernels.install(arguments), 2, words);
    refused(&["julia"], &["no kernel 'julia'", "there are", "narrow", "shell"]);
    refused(&["--memory", "much", "shell"], &["--memory: 'much'"]);
    refused(&["--idle-after", "soon", "shell"], &["--idle-after: 'soon'"]);
    refused(&["--name", "a/b", "shell"], &["'a/b' is no name of a kernel"]);
    refused(&["narrow"], &["32-bit x86", "x86-64 build"]);
    refused(&["broken"], &["broken/kernel.json", "'argv'"]);
    refused(&["--name", "narrow", "shell"], &["not uzswap's", "--name"]);
    assert!(kernels.install(&["shell"]).status.success());
    refused(&["uzswap-shell"], &["under uzswap already"]);
}
