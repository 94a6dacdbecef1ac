//! Signals, terminals and job control: a program under uzswap answers to them as it does alone.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::system::{
    Terminal, count_signal, kill, kill_group, queue, signals_counted, with_alarm,
};
use common::*;

/// The variable that makes this test binary the program below.
const COUNT: &str = "UZSWAP_TEST_COUNT";

/// Not a test but the program of several: it says "ready", counts the signal that COUNT names until
/// it reads a line, says how often it came, and exits with 5. (A shell with a trap would count
/// signals that come close together as one.)
#[test]
fn counting_program() {
    let Ok(signal) = std::env::var(COUNT) else { return };
    count_signal(signal.parse().unwrap());
    println!("\nready");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    println!("total={:02}", signals_counted());
    std::process::exit(5);
}

/// `uzswap run` of the counting program.
fn counting(signal: i32) -> Command {
    counting_with(&[], signal)
}

fn counting_with(options: &[&str], signal: i32) -> Command {
    let mut command = uzswap();
    command.args(["run", "--quiet"]).args(options).arg("--").arg(std::env::current_exe().unwrap());
    command.args(["--exact", "counting_program", "--nocapture"]).env(COUNT, signal.to_string());
    command
}

/// A program under uzswap that has said "ready".
struct Running {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Running {
    fn start(arguments: &[&str]) -> Running {
        let mut command = uzswap();
        command.args(["run", "--quiet", "--"]).args(arguments);
        Running::command(command)
    }

    fn command(mut command: Command) -> Running {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut running = Running { child, output };
        while running.whole_line() != "ready\n" {}
        running
    }

    #[track_caller]
    fn line(&mut self) -> String {
        self.whole_line().trim_end().to_string()
    }

    /// With its end, without which the output is over.
    #[track_caller]
    fn whole_line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert!(line.ends_with('\n'), "it has ended: {line:?}, {:?}", self.child.try_wait());
        line
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The program's own process: the only child of uzswap.
    fn program(&self) -> u32 {
        child_of(self.pid())
    }

    fn end(mut self) -> std::process::ExitStatus {
        drop(self.child.stdin.take());
        let status = self.child.wait().unwrap();
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        status
    }
}

/// The first child of a process.
fn child_of(pid: u32) -> u32 {
    *children_of(pid).first().expect("a child")
}

fn children_of(pid: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    children.split_whitespace().map(|child| child.parse().unwrap()).collect()
}

/// Whether a process has signals that wait for it.
fn has_pending_signals(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let waiting = status.lines().filter(|l| l.starts_with("SigPnd:") || l.starts_with("ShdPnd:"));
    waiting.flat_map(|l| l.split_whitespace().nth(1)).any(|mask| mask.contains(|c| c != '0'))
}

#[test]
fn a_death_by_signal_is_ours_too() {
    for signal in
        [libc::SIGTERM, libc::SIGKILL, libc::SIGINT, libc::SIGHUP, libc::SIGUSR1, libc::SIGPIPE, 40]
    {
        let output = run(["--quiet", "--", "sh", "-c", &format!("kill -{signal} $$")]);
        assert_eq!(output.status.signal(), Some(signal));
        assert_eq!(stderr(&output), "");
    }
    // The program may leave a core; we leave none in addition.
    let scratch = Scratch::new();
    for signal in [libc::SIGSEGV, libc::SIGABRT, libc::SIGQUIT] {
        let status = uzswap()
            .args(["run", "--quiet", "--", "sh", "-c", &format!("ulimit -c 0; kill -{signal} $$")])
            .current_dir(scratch.directory())
            .status()
            .unwrap();
        assert_eq!((status.signal(), status.core_dumped()), (Some(signal), false));
    }
    assert_eq!(fs::read_dir(scratch.directory()).unwrap().count(), 0);
}

#[test]
fn signals_sent_to_us_reach_the_program() {
    use libc::{
        SIGALRM, SIGCONT, SIGHUP, SIGINT, SIGPIPE, SIGQUIT, SIGTERM, SIGTSTP, SIGURG, SIGUSR1,
        SIGUSR2, SIGWINCH,
    };
    for signal in [
        SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2, SIGWINCH, SIGALRM, SIGCONT, SIGTSTP,
        SIGPIPE, SIGURG, 40,
    ] {
        let mut program = Running::command(counting(signal));
        for round in 1..=3 {
            kill(program.pid(), signal);
            assert_eq!(program.line(), format!("got={round:02}"), "signal {signal}");
        }
        program.child.stdin.take().unwrap().write_all(b"end\n").unwrap();
        assert_eq!(program.line(), "total=03", "signal {signal}");
        assert_eq!(program.end().code(), Some(5), "signal {signal}");
    }
}

/// Servers of notebooks and others interrupt the whole process group.
#[test]
fn a_signal_to_the_group_arrives_once() {
    const ROUNDS: usize = 20;
    for (options, signal) in [
        (&[][..], libc::SIGINT),
        (&[], libc::SIGTERM),
        (&[], libc::SIGUSR1),
        (&["--in-place"], libc::SIGINT),
        (&["--in-place"], libc::SIGTERM),
    ] {
        let mut command = counting_with(options, signal);
        command.process_group(0);
        let mut program = Running::command(command);
        let expect = |program: &mut Running, round: usize| {
            assert_eq!(program.line(), format!("got={round:02}"), "signal {signal}, {options:?}");
        };
        for round in (1..=2 * ROUNDS).step_by(2) {
            kill_group(program.pid(), signal);
            expect(&mut program, round);
            // A signal to us alone still reaches it, if it does not come while the other waits: two
            // are one then.
            eventually("it was looked at", || !has_pending_signals(program.pid()));
            kill(program.pid(), signal);
            expect(&mut program, round + 1);
        }
        program.child.stdin.take().unwrap().write_all(b"end\n").unwrap();
        assert_eq!(program.line(), format!("total={}", 2 * ROUNDS), "signal {signal}, {options:?}");
        assert_eq!(program.end().code(), Some(5));
    }
}

/// As `pkill uzswap` and `pkill -f 'uzswap run'` send it: to all of a name.
#[test]
fn a_signal_by_name_arrives_once() {
    let mut program = Running::command(counting(libc::SIGTERM));
    let pid = program.pid();
    eventually("the witness is there", || children_of(pid).len() == 2);
    for (round, file) in (1..).zip(["comm", "cmdline"]) {
        let name = |pid: u32| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
        let is_ours = |pid: &u32| name(*pid) == name(program.pid());
        eventually("it has its name", || !children_of(pid).iter().any(is_ours));
        assert!(name(children_of(pid)[1]).starts_with("uz-witness"));
        kill(pid, libc::SIGTERM);
        assert_eq!(program.line(), format!("got={round:02}"));
    }
    program.child.stdin.take().unwrap().write_all(b"end\n").unwrap();
    assert_eq!(program.line(), "total=02");
    assert_eq!(program.end().code(), Some(5));
}

#[test]
fn a_stop_of_the_group_loses_no_signal() {
    let mut command = counting(libc::SIGINT);
    command.process_group(0);
    let mut program = Running::command(command);
    for round in (1..=6).step_by(2) {
        kill_group(program.pid(), libc::SIGSTOP);
        eventually("all are stopped", || process_state(program.program()) == Some('T'));
        kill_group(program.pid(), libc::SIGCONT);
        kill_group(program.pid(), libc::SIGINT);
        assert_eq!(program.line(), format!("got={round:02}"));
        eventually("it was looked at", || !has_pending_signals(program.pid()));
        kill(program.pid(), libc::SIGINT);
        assert_eq!(program.line(), format!("got={:02}", round + 1));
    }
    program.child.stdin.take().unwrap().write_all(b"end\n").unwrap();
    assert_eq!(program.line(), "total=06");
    assert_eq!(program.end().code(), Some(5));
}

#[test]
fn a_signal_that_the_program_does_not_catch_ends_both() {
    let program = Running::start(&["sh", "-c", "echo ready; exec sleep 1000"]);
    kill(program.pid(), libc::SIGTERM);
    assert_eq!(program.end().signal(), Some(libc::SIGTERM));
}

#[test]
fn real_time_signals_come_one_by_one() {
    let program = Running::start(&["sh", "-c", "echo ready; exec sleep 1000"]);
    queue(program.pid(), libc::SIGRTMIN() + 3, 77);
    assert_eq!(program.end().signal(), Some(libc::SIGRTMIN() + 3));
}

#[test]
fn a_timer_set_before_the_start_still_strikes() {
    // `alarm` and then exec: the timer belongs to the process that became uzswap.
    let mut command = uzswap();
    command.args(["run", "--quiet", "--", "sleep", "1000"]);
    let status = with_alarm(&mut command).status().unwrap();
    assert_eq!(status.signal(), Some(libc::SIGALRM));
}

#[test]
fn the_program_does_not_outlive_a_killed_uzswap() {
    let mut program = Running::start(&["sh", "-c", "echo ready; exec sleep 1000"]);
    let pid = program.program();
    kill(program.pid(), libc::SIGKILL);
    assert_eq!(program.child.wait().unwrap().signal(), Some(libc::SIGKILL));
    let ends = Instant::now() + PATIENCE;
    while !matches!(process_state(pid), None | Some('Z')) {
        if Instant::now() > ends {
            kill(pid, libc::SIGKILL);
            panic!("the program goes on");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn we_stop_with_the_program_and_go_on_with_it() {
    // Continued directly, behind our back: we must not stay stopped.
    let mut program = Running::start(&["sh", "-c", "echo ready; kill -STOP $$; echo on; exit 7"]);
    let pid = program.pid();
    eventually("we are stopped", || process_state(pid) == Some('T'));
    kill(program.program(), libc::SIGCONT);
    assert_eq!(program.line(), "on");
    assert_eq!(program.end().code(), Some(7));

    // Continued by us: the program goes on too.
    let mut program = Running::start(&["sh", "-c", "echo ready; kill -STOP $$; echo on; exit 8"]);
    let pid = program.pid();
    eventually("we are stopped", || process_state(pid) == Some('T'));
    kill(pid, libc::SIGCONT);
    assert_eq!(program.line(), "on");
    assert_eq!(program.end().code(), Some(8));

    // Killed while it is stopped.
    let program = Running::start(&["sh", "-c", "echo ready; kill -STOP $$"]);
    let pid = program.pid();
    eventually("we are stopped", || process_state(pid) == Some('T'));
    kill(program.program(), libc::SIGKILL);
    assert_eq!(program.end().signal(), Some(libc::SIGKILL));
}

#[test]
fn as_the_first_process_of_a_container() {
    let script_with = |options: &[&str], program: &str| {
        Command::new("unshare")
            .args([
                "-rfp",
                "--kill-child",
                "--mount-proc",
                env!("CARGO_BIN_EXE_uzswap"),
                "run",
                "--quiet",
            ])
            .args(options)
            .args(["--", "sh", "-c", program])
            .env("UZSWAP_PRELOAD", LIBRARY)
            .env("UZSWAP_STORE", "none")
            .env("UZSWAP_CACHE", "none")
            .output()
    };
    let tried =
        Command::new("unshare").args(["-rfp", "--kill-child", "--mount-proc", "true"]).output();
    if !tried.is_ok_and(|o| o.status.success()) {
        eprintln!("skipped: this sandbox has no user namespaces");
        return;
    }
    let script = |program: &str| script_with(&[], program);
    // Process 1 cannot kill itself, so the exit code says it. Orphans are reaped, whatever their
    // exit code.
    let output = script("kill -TERM $$").unwrap();
    assert_eq!(output.status.code(), Some(128 + 15), "{}", stderr(&output));
    let zombies = "(sh -c 'exit 9' &) ; (sh -c 'exit 9' &) ; until ! grep -l '^State:.Z' \
                   /proc/[0-9]*/status; do sleep 0.01; done; exit 4";
    let output = script(zombies).unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    // In place the program is process 1 itself.
    let output = script_with(&["--in-place"], "echo $$; exit 3").unwrap();
    assert_eq!(
        (output.status.code(), stdout(&output).as_str()),
        (Some(3), "1\n"),
        "{}",
        stderr(&output)
    );
    let managed = "grep -c uzswap-control /proc/self/maps";
    let output = script_with(&["--in-place"], managed).unwrap();
    assert_ne!(stdout(&output), "0\n");
}

// ---------------------------------------------------------------- terminals

#[test]
fn control_c_arrives_once() {
    for (signal, key) in [(libc::SIGINT, "\x03"), (libc::SIGQUIT, "\x1c")] {
        let mut terminal = Terminal::start(&mut counting(signal));
        terminal.expect("ready");
        for round in 1..=20 {
            terminal.press(key);
            terminal.expect(&format!("got={round:02}"));
        }
        terminal.press("end\n");
        terminal.expect("total=20");
        assert_eq!(terminal.wait().code(), Some(5));
    }
}

#[test]
fn control_c_ends_a_program_and_us() {
    for (key, signal) in [("\x03", libc::SIGINT), ("\x1c", libc::SIGQUIT)] {
        let mut command = uzswap();
        let mut terminal = Terminal::start(command.args([
            "run",
            "--",
            "sh",
            "-c",
            "ulimit -c 0; echo ready; exec sleep 1000",
        ]));
        terminal.expect("ready");
        terminal.press(key);
        // The summary comes before the end.
        terminal.expect("uzswap: ");
        assert_eq!(terminal.wait().signal(), Some(signal));
    }
}

#[test]
fn a_new_window_size_arrives_once() {
    let mut terminal = Terminal::start(&mut counting(libc::SIGWINCH));
    terminal.expect("ready");
    for round in 1..=20 {
        terminal.resize(20 + round, 99);
        terminal.expect(&format!("got={round:02}"));
    }
    terminal.press("end\n");
    terminal.expect("total=20");
    assert_eq!(terminal.wait().code(), Some(5));
}

#[test]
fn a_hang_up_reaches_the_program() {
    let scratch = Scratch::new();
    let note = scratch.path("note");
    let mut command = uzswap();
    let program = format!(
        "trap 'echo hung up > {}; exit' HUP; echo ready; while :; do sleep 0.05; done",
        note.display()
    );
    let mut terminal =
        Terminal::start(command.args(["run", "--quiet", "--", "sh", "-c", &program]));
    terminal.expect("ready");
    terminal.hang_up();
    eventually("the program hears of it", || {
        fs::read_to_string(&note).is_ok_and(|t| t == "hung up\n")
    });
    terminal.wait();
}

/// A shell with job control in a terminal.
fn shell() -> Terminal {
    let mut shell = Command::new("sh");
    shell
        .arg("-im")
        .env("PS1", "prompt% ")
        .env("UZ", env!("CARGO_BIN_EXE_uzswap"))
        .env("UZSWAP_PRELOAD", LIBRARY)
        .env("UZSWAP_QUIET", "1")
        .env_remove("ENV");
    let mut terminal = Terminal::start(&mut shell);
    terminal.expect("prompt% ");
    terminal
}

#[test]
fn control_z_stops_and_fg_goes_on() {
    let mut terminal = shell();
    terminal.press(
        "$UZ run -- sh -c 'echo re''ady; while read line; do echo \"[$line]\"; done; exit 6'\n",
    );
    terminal.expect("ready");
    let uzswap = child_of(terminal.pid());
    for round in 0..3 {
        // No human presses Ctrl-Z before uzswap is awake again. (It would stop then, but before the
        // program has, and the program's read could still take a key that was meant for the shell.)
        eventually("uzswap waits", || process_state(uzswap) == Some('S'));
        terminal.press("\x1a");
        terminal.expect("Stopped");
        terminal.expect("prompt% ");
        terminal.press("echo shell=$((40+2))\n");
        terminal.expect("shell=42");
        terminal.press("fg\n");
        terminal.expect("run --");
        terminal.press(&format!("line{round}\n"));
        terminal.expect(&format!("[line{round}]"));
    }
    terminal.press("\x04");
    terminal.press("echo code=$?\n");
    terminal.expect("code=6");
    terminal.press("exit\n");
    terminal.wait();
}

#[test]
fn a_background_job_that_reads_is_stopped() {
    let mut terminal = shell();
    terminal.press("$UZ run -- sh -c 'read line; echo \"[$line]\"; exit 6' &\n");
    terminal.expect("prompt% ");
    // Shells report job changes before a prompt: ask until it is there.
    let mut stopped = false;
    for round in 0..500 {
        terminal.press(&format!("jobs; echo asked=$(({round}+1000))\n"));
        if terminal.expect(&format!("asked={}", round + 1000)).contains("Stopped") {
            stopped = true;
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(stopped, "the shell never saw the job stop");
    terminal.press("fg\n");
    terminal.expect("run --");
    terminal.press("words\n");
    terminal.expect("[words]");
    terminal.press("echo code=$?\n");
    terminal.expect("code=6");
    terminal.press("exit\n");
    terminal.wait();
}
