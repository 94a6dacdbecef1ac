//! Programs are controlled while they run: `uzswap ps` shows them, `set` lowers their limit and
//! their memory follows, `reclaim all` takes an idle one down to next to nothing, `--idle-after`
//! does so by itself, and afterwards every byte is as it was. Strangers who talk to the socket
//! change nothing.
//!
//! ```text
//!  case ── Live ──> Job (its own thread) ── uzswap run ── idle.py <── fifo: "hash" ── case
//!    └── command ──> jail -u USER ── uzswap ps | set | reclaim ──> the run's socket
//! ```

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Output};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use uzswap_tests::{
    Job, MIB, Managed, Outcome, Sandbox, Suite, User, Verdict, Workshop, full, suite,
};

/// The program's data, and the first limit: the data fits, so the process is dormant.
const DATA_MIB: u64 = 192;
const FIRST_LIMIT: u64 = 512 * MIB;
const LOWER_LIMIT: u64 = 96 * MIB;
/// An interpreter without its data, a pool's last frames, and uzswap's tables.
const NEARLY_NOTHING: u64 = 32 * MIB;
/// A guard against waiting for ever, not an assertion of speed.
const PATIENCE: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    let workshop = Arc::new(Workshop::new());
    let mut suite = Suite::new();
    for sandbox in [Sandbox::Open, Sandbox::NoUserfaultfd] {
        for user in [User::Root, User::Ordinary] {
            // Each way and each user once in the short form.
            if !full() && (sandbox == Sandbox::Open) != (user == User::Ordinary) {
                continue;
            }
            let w = workshop.clone();
            let name = format!("limit_and_reclaim::{}::{}", sandbox.mechanism(), user.name());
            suite.add(name, move || limit_and_reclaim(&w, sandbox, user));
        }
    }
    for sandbox in [Sandbox::Open, Sandbox::NoUserfaultfd] {
        let w = workshop.clone();
        suite.add(format!("bring_in::{}", sandbox.mechanism()), move || bring_in(&w, sandbox));
    }
    type Run = fn(&Arc<Workshop>) -> Result<Verdict, String>;
    let others: [(&str, Run); 4] = [
        ("idle_processes_give_their_memory_back", idle_after),
        ("hostile_clients_change_nothing", hostile_clients),
        ("sockets_of_killed_runs_are_removed", killed),
        ("errors_say_what_is_wrong", errors),
    ];
    for (name, run) in others {
        let w = workshop.clone();
        suite.add(name, move || run(&w));
    }
    drop(workshop);
    suite.main()
}

/// A program that waits for orders, under uzswap.
struct Live {
    workshop: Arc<Workshop>,
    user: User,
    dir: PathBuf,
    /// The hash that the data must have.
    hash: String,
    answers: usize,
    job: JoinHandle<Result<Outcome, String>>,
}

impl Live {
    fn start(
        workshop: &Arc<Workshop>,
        sandbox: Sandbox,
        user: User,
        options: &[&str],
    ) -> Result<Live, String> {
        suite::command("python3")?;
        let dir = workshop.job_dir(user);
        fs::create_dir(dir.join("runtime")).expect("our directory");
        if user == User::Ordinary {
            let id = Some(User::ORDINARY_UID);
            chown(dir.join("runtime"), id, id).expect("root can give a directory away");
        }
        let script = workshop.script("idle.py");
        let argv = ["python3".into(), script, DATA_MIB.to_string().into(), dir.clone()];
        let managed = Managed {
            memory_bytes: Some(FIRST_LIMIT),
            options: options.iter().map(|o| o.into()).collect(),
        };
        let job = Job::new(&argv)
            .user(user)
            .sandbox(sandbox)
            .managed(managed)
            .env("XDG_RUNTIME_DIR", dir.join("runtime"));
        let w = workshop.clone();
        let job = std::thread::spawn(move || job.run(&w));
        let workshop = workshop.clone();
        let mut live = Live { workshop, user, dir, hash: String::new(), answers: 0, job };
        match live.next_answer() {
            Ok(hash) => live.hash = hash,
            // An error skips the case: the job itself cannot be run here. Else something is wrong
            // with it.
            Err(why) => {
                let run = live.job.join().expect("a job does not panic")?;
                panic!("{why}\n{}", run.report());
            }
        }
        Ok(live)
    }

    /// Waits for the program's next line.
    fn next_answer(&mut self) -> Result<String, String> {
        let mut line = None;
        let until = Instant::now() + PATIENCE;
        while line.is_none() && Instant::now() < until && !self.job.is_finished() {
            let text = fs::read_to_string(self.dir.join("answers")).unwrap_or_default();
            // Without the part of a line that is still being written.
            let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
            line = whole.lines().nth(self.answers).map(str::to_string);
            std::thread::sleep(Duration::from_millis(20));
        }
        self.answers += 1;
        line.ok_or("the program does not answer".to_string())
    }

    fn order(&self, text: &str) {
        let mut orders = fs::File::options()
            .write(true)
            .open(self.dir.join("orders"))
            .expect("the program's fifo");
        orders.write_all(text.as_bytes()).expect("it reads");
    }

    /// Whether every byte is as it was.
    fn is_right(&mut self) -> bool {
        self.order("hash\n");
        let hash = self.next_answer();
        hash.as_ref() == Ok(&self.hash)
    }

    /// `uzswap ARGUMENTS` as `uid`, with the run's place for sockets.
    fn command_as(&self, uid: u32, arguments: &[&str]) -> Output {
        let mut command = Command::new(self.workshop.dir().join("bin/jail"));
        if uid != 0 {
            command.args(["-u", &uid.to_string()]);
        }
        command.arg("--").arg(self.workshop.uzswap()).args(arguments);
        command.env_clear().env("XDG_RUNTIME_DIR", self.dir.join("runtime")).current_dir("/");
        command.output().expect("the jail starts")
    }

    fn uid(&self) -> u32 {
        if self.user == User::Ordinary { User::ORDINARY_UID } else { 0 }
    }

    fn command(&self, arguments: &[&str]) -> Output {
        self.command_as(self.uid(), arguments)
    }

    /// The entry of this run in `uzswap ps` (as root, other runs may be there).
    fn state(&self) -> Option<Value> {
        let out = self.command(&["ps", "--json"]);
        let all: Value = serde_json::from_slice(&out.stdout).ok()?;
        let runs = all["runs"].as_array()?.iter();
        let dir = self.dir.to_str()?;
        runs.into_iter()
            .find(|r| r["command"].as_array().is_some_and(|c| c.iter().any(|w| w == dir)))
            .cloned()
    }

    fn run(&self) -> String {
        self.state().map_or("none".into(), |s| s["run"].to_string())
    }

    fn pid(&self) -> String {
        self.state().map_or("none".into(), |s| s["processes"][0]["pid"].to_string())
    }

    fn socket(&self) -> PathBuf {
        self.dir.join("runtime/uzswap").join(format!("{}.sock", self.run()))
    }

    /// Anonymous memory of the program, by the kernel.
    fn anonymous_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap_or_default();
        let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:"));
        line.and_then(|l| l.trim().strip_suffix(" kB")?.parse::<u64>().ok())
            .unwrap_or(u64::MAX >> 10)
            * 1024
    }

    fn falls_below(&self, bytes: u64) -> bool {
        eventually(|| self.anonymous_bytes() <= bytes)
    }

    /// Ends the program; what came of the job.
    fn end(self) -> Result<Outcome, String> {
        self.order("end\n");
        self.job.join().expect("a job does not panic")
    }
}

fn eventually(mut is_true: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        if is_true() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    false
}

/// Both outputs of a command, to show.
fn said(out: &Output) -> String {
    format!(
        "{:?}: {}{}",
        out.status.code(),
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    )
}

/// Gives up a case with a reason, after ending its program.
macro_rules! require {
    ($live:ident, $ok:expr, $($why:tt)*) => {
        if !$ok {
            let why = format!($($why)*);
            let report = $live.end().map_or_else(|e| e, |o| o.report());
            return Ok(Verdict::Failed(format!("{why}\n{report}")));
        }
    };
}

fn finish(live: Live) -> Result<Verdict, String> {
    let run = live.end()?;
    Ok(Verdict::check(run.succeeded() && run.stdout == "ended as told\n", || run.report()))
}

fn limit_and_reclaim(w: &Arc<Workshop>, sandbox: Sandbox, user: User) -> Result<Verdict, String> {
    let mut live = Live::start(w, sandbox, user, &[])?;
    let state = live.state();
    require!(live, state.is_some(), "ps does not show the run: {}", said(&live.command(&["ps"])));
    let state = state.unwrap();
    let process = &state["processes"][0];
    require!(
        live,
        state["limit_bytes"] == FIRST_LIMIT
            && process["state"] == "dormant"
            && process["name"] == "python3"
            && process["can_reclaim"] == true
            && process["resident_bytes"].as_u64() > Some(DATA_MIB * MIB),
        "{state}"
    );
    let table = live.command(&["ps"]);
    let row = String::from_utf8_lossy(&table.stdout)
        .lines()
        .any(|l| l.contains("python3") && l.contains("dormant"));
    require!(live, row, "{}", said(&table));

    let limit = format!("{}M", LOWER_LIMIT / MIB);
    let set = live.command(&["set", &live.run(), "--memory", &limit]);
    require!(live, set.status.success(), "{}", said(&set));
    require!(
        live,
        live.falls_below(LOWER_LIMIT + LOWER_LIMIT / 20 + 16 * MIB),
        "its memory does not follow: {} MiB",
        live.anonymous_bytes() / MIB
    );
    let state = live.state().unwrap_or_default();
    require!(
        live,
        state["limit_bytes"] == LOWER_LIMIT
            && state["processes"][0]["mechanism"] == sandbox.mechanism(),
        "{state}"
    );
    require!(live, live.is_right(), "wrong bytes under the lower limit");
    let allowed = LOWER_LIMIT + LOWER_LIMIT / 20 + 16 * MIB;
    require!(
        live,
        live.falls_below(allowed),
        "it does not hold: {} MiB",
        live.anonymous_bytes() / MIB
    );

    for words in [
        ["--compressor", "zstd:level=1", "--pool", "zbud"],
        ["--compressor", "none", "--pool-percent", "20"],
        ["--compressor", "auto", "--pool", "zsmalloc"],
        ["--pool-percent", "auto", "--recompressor", "none"],
    ] {
        let set = live.command(&[&["set", &live.pid()][..], &words].concat());
        require!(live, set.status.success(), "{}", said(&set));
        require!(live, live.is_right(), "wrong bytes with {}", words.join(" "));
    }
    let set = live.command(&["set", &live.pid(), "--memory", "512M"]);
    require!(live, set.status.success(), "{}", said(&set));
    require!(live, live.is_right(), "wrong bytes under the higher limit");
    require!(
        live,
        live.anonymous_bytes() > LOWER_LIMIT + 32 * MIB,
        "a higher limit is not used: {} MiB",
        live.anonymous_bytes() / MIB
    );
    let part = live.command(&["reclaim", &live.pid(), "64M"]);
    require!(live, part.status.success(), "{}", said(&part));
    let all = live.command(&["reclaim", &live.run(), "all"]);
    require!(live, all.status.success(), "{}", said(&all));
    require!(
        live,
        live.anonymous_bytes() < NEARLY_NOTHING,
        "{} MiB are left: {}",
        live.anonymous_bytes() / MIB,
        said(&all)
    );
    require!(live, live.is_right(), "wrong bytes after all was reclaimed");
    let socket = live.socket();
    let verdict = finish(live);
    Ok(match verdict? {
        Verdict::Passed => {
            Verdict::check(!socket.exists(), || "the socket is still there".to_string())
        }
        other => other,
    })
}

fn bring_in(w: &Arc<Workshop>, sandbox: Sandbox) -> Result<Verdict, String> {
    let mut live = Live::start(w, sandbox, User::Ordinary, &[])?;
    let dormant = live.command(&["bring-in", &live.pid()]);
    require!(live, dormant.status.success(), "dormant, it has all: {}", said(&dormant));
    let set = live.command(&["set", &live.run(), "--memory", &format!("{}M", LOWER_LIMIT / MIB)]);
    require!(live, set.status.success(), "{}", said(&set));
    let allowed = LOWER_LIMIT + LOWER_LIMIT / 20 + 16 * MIB;
    require!(live, live.falls_below(allowed), "its memory does not follow");
    let part = live.command(&["bring-in", &live.pid()]);
    let says_what =
        String::from_utf8_lossy(&part.stdout).contains("are not: the limit has no room");
    require!(live, part.status.code() == Some(1) && says_what, "{}", said(&part));
    require!(live, live.anonymous_bytes() <= allowed, "{} MiB", live.anonymous_bytes() / MIB);
    let set = live.command(&["set", &live.run(), "--memory", "512M"]);
    require!(live, set.status.success(), "{}", said(&set));
    let all = live.command(&["bring-in", &live.run()]);
    require!(live, all.status.success(), "{}", said(&all));
    require!(
        live,
        live.anonymous_bytes() > DATA_MIB * MIB,
        "{} MiB: {}",
        live.anonymous_bytes() / MIB,
        said(&all)
    );
    require!(live, live.is_right(), "wrong bytes after all was brought in");
    finish(live)
}

fn idle_after(w: &Arc<Workshop>) -> Result<Verdict, String> {
    let mut live = Live::start(w, Sandbox::Open, User::Ordinary, &["--idle-after", "1s"])?;
    for round in 0..2 {
        require!(
            live,
            live.falls_below(NEARLY_NOTHING),
            "round {round}: {} MiB are left",
            live.anonymous_bytes() / MIB
        );
        require!(live, live.is_right(), "wrong bytes after the process was idle");
    }
    finish(live)
}

fn hostile_clients(w: &Arc<Workshop>) -> Result<Verdict, String> {
    let mut live = Live::start(w, Sandbox::Open, User::Ordinary, &[])?;
    let socket = live.socket();
    let mode = fs::metadata(socket.parent().unwrap()).map(|m| (m.mode() & 0o777, m.uid()));
    require!(live, matches!(mode, Ok((0o700, User::ORDINARY_UID))), "the directory is {mode:?}");

    // Another user, first as things are, then as if the directory were open.
    let stranger = || live.command_as(User::ORDINARY_UID + 1, &["ps", "--json"]);
    let shown = |out: &Output| String::from_utf8_lossy(&out.stdout).contains("idle.py");
    require!(live, !shown(&stranger()), "a stranger sees it");
    for path in [socket.parent().unwrap(), &socket] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).expect("root may");
    }
    let ask = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); \
               s.sendall(b'{\"do\":\"list\"}\\n'); print(len(s.recv(100)))";
    let out = Command::new(w.dir().join("bin/jail"))
        .args(["-u", &(User::ORDINARY_UID + 1).to_string(), "--", "python3", "-c", ask])
        .arg(&socket)
        .output()
        .expect("the jail starts");
    let answered =
        String::from_utf8_lossy(&out.stdout).trim().parse::<usize>().is_ok_and(|n| n > 0);
    require!(live, !answered, "a stranger got an answer: {}", said(&out));
    fs::set_permissions(socket.parent().unwrap(), fs::Permissions::from_mode(0o700))
        .expect("root may");

    // Root may. Noise of every kind, many connections that say nothing, and some that never read.
    let connect = || UnixStream::connect(&socket).expect("the run listens");
    let mut open: Vec<UnixStream> = Vec::new();
    for noise in [
        &b"\0\xff\xfe\n"[..],
        b"{}\n",
        b"[[[[[[[[",
        &[b'x'; 100_000],
        b"{\"do\":\"reclaim\",\"amount\":\"-5\"}\n",
    ] {
        let mut stream = connect();
        let _ = rustix::net::send(&stream, noise, rustix::net::SendFlags::NOSIGNAL);
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        let _ = stream.read(&mut [0; 64]);
        open.push(stream);
    }
    open.extend((0..200).map(|_| connect()));
    require!(live, live.is_right(), "wrong bytes beside hostile clients");
    drop(open);
    require!(live, eventually(|| live.state().is_some()), "the run does not answer any more");
    let all = live.command(&["reclaim", &live.pid(), "all"]);
    require!(live, all.status.success() && live.is_right(), "{}", said(&all));
    finish(live)
}

fn killed(w: &Arc<Workshop>) -> Result<Verdict, String> {
    let live = Live::start(w, Sandbox::Open, User::Ordinary, &[])?;
    let (socket, run) = (live.socket(), live.run());
    require!(live, socket.exists(), "there is no socket {}", socket.display());
    let pid = run.parse().ok().and_then(Pid::from_raw).ok_or("no run")?;
    kill_process(pid, Signal::KILL).map_err(|e| e.to_string())?;
    let ended = eventually(|| live.job.is_finished());
    let left = socket.exists();
    let out = live.command(&["ps"]);
    // The user may have other runs.
    let listed = String::from_utf8_lossy(&out.stdout).into_owned();
    let is_listed = listed.lines().any(|line| line.split_whitespace().next() == Some(&run));
    let ok = ended && left && !socket.exists() && out.status.success() && !is_listed;
    Ok(Verdict::check(ok, || {
        format!("ended {ended}, left {left}, now {}: {}", socket.exists(), said(&out))
    }))
}

fn errors(w: &Arc<Workshop>) -> Result<Verdict, String> {
    let live = Live::start(w, Sandbox::Open, User::Ordinary, &[])?;
    let pid = live.pid();
    let cases: [(&[&str], &[&str]); 8] = [
        (&["set", &pid, "--memory", "1M"], &["'1M'", "the least that works is 16 MiB"]),
        (&["set", &pid, "--memory", "lots"], &["--memory", "'lots' is no size"]),
        (&["set", &pid], &["--memory"]),
        (&["set", "nobody", "--memory", "64M"], &["'nobody'", "uzswap ps"]),
        (&["reclaim", "1", "all"], &["process 1 belongs to user 0"]),
        (&["reclaim", "4194999", "all"], &["there is no process 4194999"]),
        (&["reclaim", &pid, "-5"], &["'-5' is negative", "all"]),
        (&["reclaim", &pid, "101%"], &["'101%'", "percentage"]),
    ];
    for (arguments, words) in cases {
        let out = live.command(arguments);
        let line = String::from_utf8_lossy(&out.stderr).into_owned();
        let ok = out.status.code() == Some(2)
            && line.lines().count() == 1
            && words.iter().all(|w| line.contains(w));
        require!(live, ok, "{arguments:?}: {}", said(&out));
    }
    finish(live)
}
