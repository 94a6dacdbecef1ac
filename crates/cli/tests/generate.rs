//! Man pages and completions have what `--help` has.

mod common;

use std::fs;
use std::process::Command;

use common::{Scratch, stderr, stdout, uzswap};

/// The commands that `--help` lists.
fn commands() -> Vec<String> {
    let help = stdout(&uzswap().arg("--help").output().unwrap());
    let list = help.split("Commands:\n").nth(1).expect("a list of commands");
    let lines = list.lines().take_while(|line| !line.is_empty());
    lines.filter_map(|line| line.split_whitespace().next()).map(str::to_string).collect()
}

#[test]
fn each_command_and_option_has_its_man_page() {
    let scratch = Scratch::new();
    let made = uzswap().args(["generate", "man"]).arg(scratch.path("man1")).output().unwrap();
    assert!(made.status.success(), "{}", stderr(&made));
    let page = |name: &str| fs::read_to_string(scratch.path(&format!("man1/{name}.1"))).unwrap();
    let commands = commands();
    assert!(commands.len() > 10, "{commands:?}");
    for command in &commands {
        assert!(
            page("uzswap").contains(&format!("uzswap\\-{}(1)", command.replace('-', "\\-"))),
            "{command}"
        );
        assert!(page(&format!("uzswap-{command}")).contains(".SH DESCRIPTION"), "{command}");
    }
    assert!(!scratch.path("man1/uzswap-worker.1").exists());
    let help = stdout(&uzswap().args(["run", "--help"]).output().unwrap());
    let run = page("uzswap-run").replace("\\-", "-");
    let options = help.lines().filter_map(|line| line.trim().strip_prefix("--"));
    let mut seen = 0;
    for option in options.filter_map(|line| line.split_whitespace().next()) {
        assert!(run.contains(&format!("--{option}")), "--{option} is not in uzswap-run.1");
        seen += 1;
    }
    assert!(seen > 15, "only {seen} options: has --help another form now?");
}

#[test]
fn a_shell_completes_commands_and_options() {
    let script = "source /dev/stdin; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); \
                  _uzswap uzswap \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD-1]}\"; \
                  echo \"${COMPREPLY[@]}\"";
    let made = uzswap().args(["generate", "bash"]).output().unwrap();
    let completed = |words: &[&str]| {
        let scratch = Scratch::new();
        let file = scratch.file("completions", &made.stdout, 0o644);
        let input = fs::File::open(file).unwrap();
        let bash =
            Command::new("bash").args(["-c", script, "bash"]).args(words).stdin(input).output();
        let bash = bash.expect("bash is installed");
        assert_eq!(stderr(&bash), "");
        stdout(&bash).trim().to_string()
    };
    assert_eq!(completed(&["uzswap", "recl"]), "reclaim");
    let offered = completed(&["uzswap", ""]);
    let offered = offered.split_whitespace().filter(|word| !word.starts_with('-'));
    assert_eq!(offered.collect::<Vec<_>>(), commands(), "hidden ones, or not all");
    assert_eq!(completed(&["uzswap", "run", "--mem"]), "--memory");
    for shell in ["zsh", "fish"] {
        let made = uzswap().args(["generate", shell]).output().unwrap();
        let made = stdout(&made);
        assert!(made.contains("idle-after") && made.contains("reclaim"), "{shell}");
        assert!(!made.contains("worker") && !made.contains("generate"), "{shell}");
    }
}
