//! Programs whose pages are on a block device, or on servers: `uzswap disk`, killed, stopped and
//! replaced in the middle, and a server that does it wrong in each way that it knows. A program
//! ends with the right sum, or by SIGBUS with a word of explanation where its last copy is gone; it
//! never sees another byte.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use uzswap_tests::{Job, MIB, Managed, Outcome, Suite, Verdict, Workshop, full, seed};

#[allow(dead_code, reason = "some of it is for the tests of the cache")]
#[path = "../../core/src/store/remote/hostile.rs"]
mod hostile;
use hostile::{ALL_WRONG, Hostile, Mode};

const SIGBUS: i32 = 7;
/// `rungs` holds that and half of it again.
const RUNGS_MIB: &str = "40";
const RUNGS_LIMIT_MIB: u64 = 16;
const CHURN_MIB: &str = "80";
const CHURN_LIMIT_MIB: u64 = 32;
const EXPORT_MIB: usize = 256;
/// The bytes of a run's claim, at most.
const CLAIM_BYTES: usize = 4096;
/// The time within which a server must be there, or a file be written: far beyond what either
/// takes.
const SOON: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let workshop = Arc::new(Workshop::new());
    let mut suite = Suite::new();
    for (name, case) in [
        ("one_of_two_is_killed", killed as fn(&Workshop) -> Result<Verdict, String>),
        ("one_of_two_is_stopped", stopped),
        ("the_only_one_is_killed", only_one_killed),
        ("the_only_one_is_replaced", only_one_replaced),
        ("uzswap_run_is_killed", run_killed),
        ("an_export_is_one_runs", claims),
        ("a_block_device", device),
        ("extents_are_leased_again", leased_again),
    ] {
        let w = workshop.clone();
        suite.add(name, move || case(&w));
    }
    // The cache's own tests have all of them.
    let short = [Mode::WrongBytes, Mode::Stale, Mode::Silent, Mode::Short];
    for mode in ALL_WRONG.into_iter().filter(|mode| full() || short.contains(mode)) {
        let w = workshop.clone();
        suite.add(format!("one_of_two_does_it_wrong::{mode:?}"), move || hostile_server(&w, mode));
    }
    drop(workshop);
    suite.independent();
    suite.main()
}

/// A server of ours, until it is dropped.
struct Disk {
    child: Child,
    socket: PathBuf,
    name: String,
    uzswap: PathBuf,
}

impl Disk {
    fn start(workshop: &Workshop, name: &str) -> Disk {
        let socket = socket(name);
        let mut disk = Disk {
            child: Self::spawn(&workshop.uzswap(), name, &socket),
            socket,
            name: name.to_string(),
            uzswap: workshop.uzswap(),
        };
        disk.wait_until_there();
        disk
    }

    fn spawn(uzswap: &Path, name: &str, socket: &Path) -> Child {
        let mut command = Command::new(uzswap);
        command.args([
            "disk",
            &format!("{EXPORT_MIB}M"),
            "--memory",
            "300M",
            "--store",
            "none",
            "--name",
            name,
        ]);
        command.arg("--listen").arg(format!("unix:{}", socket.display()));
        // Its orders' socket is apart from others'.
        command.env("XDG_RUNTIME_DIR", runtime(name));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().expect("a server of ours starts")
    }

    fn wait_until_there(&mut self) {
        let end = Instant::now() + SOON;
        while std::os::unix::net::UnixStream::connect(&self.socket).is_err() {
            assert!(Instant::now() < end, "the server does not come");
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn url(&self) -> String {
        url(&self.name, &self.socket)
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).expect("a process of ours");
        kill_process(pid, signal).expect("it is there");
    }

    /// Kills the server, and starts it again with nothing in it.
    fn replace(&mut self) {
        self.signal(Signal::KILL);
        let _ = self.child.wait();
        self.child = Self::spawn(&self.uzswap, &self.name, &self.socket);
        self.wait_until_there();
    }

    /// Waits until pages of a run have come, more than its claim.
    fn wait_for_pages(&self) {
        wait_until("pages of the run", || self.holds_more_than(1 << 20));
    }

    fn holds_more_than(&self, bytes: u64) -> bool {
        (bytes + 1..u64::MAX).contains(&self.used_bytes())
    }

    /// Bytes that are written and not zero; the largest number: the server does not answer.
    fn used_bytes(&self) -> u64 {
        let mut command = Command::new(&self.uzswap);
        command.args(["disk", &self.name, "mm_stat"]).env("XDG_RUNTIME_DIR", runtime(&self.name));
        let said = command.output().expect("uzswap starts");
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        said.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(u64::MAX)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.socket);
        let _ = fs::remove_dir_all(runtime(&self.name));
    }
}

fn wait_until(what: &str, mut is_there: impl FnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !is_there() {
        assert!(Instant::now() < end, "{what}: not there after {SOON:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A socket's path has a largest length.
fn socket(name: &str) -> PathBuf {
    PathBuf::from(format!("/tmp/uzswap-remote-{}-{name}", std::process::id()))
}

fn runtime(name: &str) -> PathBuf {
    let path = PathBuf::from(format!("/tmp/uzswap-remote-{}-{name}.d", std::process::id()));
    fs::create_dir_all(&path).expect("a directory in /tmp");
    path
}

fn url(name: &str, socket: &Path) -> String {
    format!("nbd+unix:///{name}?socket={}", socket.display())
}

fn managed(limit_mib: u64, urls: &[String]) -> Managed {
    let copies = urls.len().to_string();
    let options = ["--store", &urls.join(","), "--copies", &copies].map(Into::into).into();
    Managed { memory_bytes: Some(limit_mib * MIB), options }
}

fn rungs(workshop: &Workshop) -> Job {
    Job::new([workshop.program("rungs").into_os_string(), RUNGS_MIB.into()])
}

fn churn(workshop: &Workshop) -> (Job, u64) {
    let (seconds, seed) = (if full() { 120 } else { 3 }, seed());
    let mut argv = vec![workshop.program("churn").into_os_string(), seconds.to_string().into()];
    argv.extend([seed.to_string().into(), CHURN_MIB.into(), "4".into()]);
    (Job::new(argv).hangs_after(Duration::from_secs(seconds + 120)), seconds)
}

/// Runs the job, and meanwhile something else.
fn run_and(
    workshop: &Workshop,
    job: &Job,
    meanwhile: impl FnOnce() + Send,
) -> Result<Outcome, String> {
    thread::scope(|scope| {
        scope.spawn(meanwhile);
        job.run(workshop)
    })
}

fn notices(run: &Outcome) -> Vec<&str> {
    let list = run.stats.as_ref().and_then(|s| s.get("notices")?.as_array());
    list.into_iter().flatten().filter_map(|n| n.as_str()).filter(|n| *n != "over_limit").collect()
}

/// Whether a run went as it must with one server gone, whose pages are on the other.
fn is_right(run: &Outcome, says: &str) -> bool {
    run.succeeded()
        && run.stdout.contains(says)
        && notices(run).is_empty()
        && run.stat("remote_loads").unwrap_or(0) > 0
}

fn killed(workshop: &Workshop) -> Result<Verdict, String> {
    let (a, b) = (Disk::start(workshop, "ka"), Disk::start(workshop, "kb"));
    let (job, _) = churn(workshop);
    let job = job.managed(managed(CHURN_LIMIT_MIB, &[a.url(), b.url()]));
    let run = run_and(workshop, &job, || {
        a.wait_for_pages();
        a.signal(Signal::KILL);
    })?;
    print!("{}", run.stdout);
    let ok = is_right(&run, "clean") && run.stat("remote_lone_copies").unwrap_or(0) > 0;
    let left = b.used_bytes();
    Ok(Verdict::check(ok && left == 0, || format!("{left} bytes are left\n{}", run.report())))
}

fn stopped(workshop: &Workshop) -> Result<Verdict, String> {
    let (a, b) = (Disk::start(workshop, "sa"), Disk::start(workshop, "sb"));
    let (job, seconds) = churn(workshop);
    let job = job.managed(managed(CHURN_LIMIT_MIB, &[a.url(), b.url()]));
    let run = run_and(workshop, &job, || {
        a.wait_for_pages();
        a.signal(Signal::STOP);
        // Beyond the time of churn. The messages at the end of the run wait for the server.
        thread::sleep(Duration::from_secs(seconds + 1));
        a.signal(Signal::CONT);
    })?;
    print!("{}", run.stdout);
    let ok = is_right(&run, "clean") && run.stat("remote_timeouts").unwrap_or(0) > 0;
    Ok(Verdict::check(ok, || run.report()))
}

/// Whether a run of churn ended as one whose page is lost: by SIGBUS, or, where a call met the page
/// first, because that call failed.
fn is_lost(run: &Outcome, notice: &str, says: &str) -> bool {
    const FAILED: i32 = 3;
    let is_sigbus = run.status.signal() == Some(SIGBUS) || run.status.code() == Some(128 + SIGBUS);
    let is_refused = run.status.code() == Some(FAILED) && run.stderr.contains(": Bad address");
    (is_sigbus || is_refused)
        && run.stderr.contains(says)
        && !run.stderr.contains("wrong bytes")
        && notices(run).contains(&notice)
}

fn only_one_killed(workshop: &Workshop) -> Result<Verdict, String> {
    let a = Disk::start(workshop, "oa");
    let job = looping(workshop).managed(managed(RUNGS_LIMIT_MIB, &[a.url()]));
    let run = run_and(workshop, &job, || {
        a.wait_for_pages();
        // A write is given up after ten seconds, too. A read of what was written comes sooner.
        thread::sleep(Duration::from_secs(1));
        a.signal(Signal::KILL);
    })?;
    let ok = is_lost(&run, "remote_lost", "on a server that did not answer");
    Ok(Verdict::check(ok, || run.report()))
}

fn only_one_replaced(workshop: &Workshop) -> Result<Verdict, String> {
    let mut a = Disk::start(workshop, "ra");
    let job = looping(workshop).managed(managed(RUNGS_LIMIT_MIB, &[a.url()]));
    let run = run_and(workshop, &job, || {
        a.wait_for_pages();
        a.replace();
    })?;
    let ok = is_lost(&run, "corrupt_page", "came back damaged");
    Ok(Verdict::check(ok, || run.report()))
}

/// A program that reads its memory again and again, and says so when a byte is wrong. It does not
/// end by itself, and has no children, one of which could find the lost page first.
fn looping(workshop: &Workshop) -> Job {
    let options = ["100", "5", "64", "2", "--only", "region,lanes"].map(Into::into);
    Job::new([workshop.program("churn").into_os_string()].into_iter().chain(options))
}

fn hostile_server(workshop: &Workshop, mode: Mode) -> Result<Verdict, String> {
    let name = format!("h{}", mode as u8);
    let (path, good) = (socket(&format!("{name}-bad")), Disk::start(workshop, &name));
    let bad = Hostile::start(&path, EXPORT_MIB << 20);
    // The claim takes some requests, and is right.
    bad.set_after(40, mode);
    let alone = rungs(workshop).run(workshop)?;
    let job = rungs(workshop).managed(managed(RUNGS_LIMIT_MIB, &[url("x", &path), good.url()]));
    let run = job.run(workshop)?;
    let reached = bad.requests() > 40;
    let ok = is_right(&run, alone.stdout.trim()) && alone.succeeded() && reached;
    Ok(Verdict::check(ok, || format!("{} requests\n{}", bad.requests(), run.report())))
}

/// A program goes on after `uzswap run` is killed, and the next run takes the export over.
fn run_killed(workshop: &Workshop) -> Result<Verdict, String> {
    let a = Disk::start(workshop, "ua");
    let alone = rungs(workshop).run(workshop)?;
    let out = runtime("ua").join("out");
    let mut command = Command::new(workshop.uzswap());
    command.args(["run", "--quiet", "--memory", "16M", "--store", &a.url(), "--"]);
    // The shell ends with uzswap, which started it; the program in it does not.
    command.args(["sh", "-c", "(\"$0\" $1; \"$0\" $1; echo ended); true"]);
    command.arg(workshop.program("rungs")).arg(RUNGS_MIB);
    command.stdin(Stdio::null()).stdout(File::create(&out).map_err(|e| e.to_string())?);
    let mut run = command.spawn().map_err(|e| e.to_string())?;
    a.wait_for_pages();
    let _ = run.kill();
    let _ = run.wait();
    let said = || fs::read_to_string(&out).unwrap_or_default();
    wait_until("the program's end", || said().contains("ended"));
    let expected = format!("{0}\n{0}\nended\n", alone.stdout.trim());
    if said() != expected {
        return Ok(Verdict::Failed(format!("without uzswap run: {}, not {expected}", said())));
    }
    let left_by_it = a.used_bytes();
    let next = rungs(workshop).managed(managed(RUNGS_LIMIT_MIB, &[a.url()])).run(workshop)?;
    let left = a.used_bytes();
    let ok = is_right(&next, alone.stdout.trim()) && left == 0 && left_by_it > 4096;
    Ok(Verdict::check(ok, || format!("{left_by_it} and {left} bytes are left\n{}", next.report())))
}

/// `uzswap run` of a program with a store, to its end.
fn run_with(workshop: &Workshop, store: &str, argv: &[&str]) -> std::process::Output {
    run_command(workshop, store, argv).stdin(Stdio::null()).output().expect("uzswap starts")
}

fn run_command(workshop: &Workshop, store: &str, argv: &[&str]) -> Command {
    let mut command = Command::new(workshop.uzswap());
    command.args(["run", "--quiet", "--memory", "16M", "--store", store, "--"]).args(argv);
    command
}

/// A run that has a store until it is told to end.
struct Holder(Child);

impl Holder {
    fn start(workshop: &Workshop, store: &str) -> Holder {
        let mut command = run_command(workshop, store, &["cat"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Holder(command.spawn().expect("uzswap starts"))
    }

    fn end(mut self) -> std::process::Output {
        drop(self.0.stdin.take());
        self.0.wait_with_output().expect("our child")
    }
}

/// An export that is used, or holds something, is refused.
fn claims(workshop: &Workshop) -> Result<Verdict, String> {
    let a = Disk::start(workshop, "ca");
    let run = |url: &str, argv: &[&str]| run_with(workshop, url, argv);
    let first = Holder::start(workshop, &a.url());
    wait_until("the first run's claim", || a.holds_more_than(0));
    let (second, first) = (run(&a.url(), &["true"]), first.end());
    let says = |output: &std::process::Output, what: &str| {
        output.status.code() == Some(2) && String::from_utf8_lossy(&output.stderr).contains(what)
    };
    if !says(&second, "used by another run") || !first.status.success() {
        return Ok(Verdict::Failed(format!("{first:?}\n{second:?}")));
    }
    let path = socket("ca-full");
    let held = Hostile::start(&path, EXPORT_MIB << 20);
    // A claim that counts no more is left while the next run waits to see whether it counts.
    held.put(0, b"uzswap store, in use by a run\nit\n7\n");
    let fifth = thread::scope(|scope| {
        let waiting = scope.spawn(|| run(&url("x", &path), &["true"]));
        // It looks, and goes on looking for some seconds.
        wait_until("the run's first look", || held.requests() > 0);
        held.put(0, b"uzswap store, in use by processes that a run left behind\n");
        waiting.join().expect("no panic")
    });
    if !says(&fifth, "left behind") {
        return Ok(Verdict::Failed(format!("{fifth:?}")));
    }
    held.put(0, &[0; 4096]);
    held.put(70_000, b"somebody's");
    let third = run(&url("x", &path), &["true"]);
    let is_kept = held.contents()[70_000..].starts_with(b"somebody's");
    let fourth = run(&url("y", &a.socket), &["true"]);
    let ok = says(&third, "holds something, from byte 70000")
        && is_kept
        && says(&fourth, "no such export")
        && run(&a.url(), &["true"]).status.success();
    Ok(Verdict::check(ok, || format!("{third:?}\n{fourth:?}")))
}

/// Two processes, one after the other, have what only one of them fits into.
fn leased_again(workshop: &Workshop) -> Result<Verdict, String> {
    let path = socket("la");
    let server = Hostile::start(&path, 72 << 20);
    let alone = rungs(workshop).run(workshop)?;
    let go = runtime("la").join("go");
    let script = "\"$0\" $1; until [ -e \"$2\" ]; do sleep 0.1; done; \"$0\" $1";
    let argv = ["sh", "-c", script].map(OsString::from).into_iter();
    let argv = argv.chain([workshop.program("rungs").into(), RUNGS_MIB.into(), (&go).into()]);
    let job = Job::new(argv).managed(managed(RUNGS_LIMIT_MIB, &[url("x", &path)]));
    let held_bytes = || server.contents().iter().filter(|b| **b != 0).count();
    let holds = |bytes: std::ops::Range<usize>| {
        // The server does nothing else while it is looked at.
        thread::sleep(Duration::from_millis(200));
        bytes.contains(&held_bytes())
    };
    let run = run_and(workshop, &job, || {
        // The first process's pages come, and go after it; the claim stays.
        wait_until("pages of the run", || holds(CLAIM_BYTES + 1..usize::MAX));
        wait_until("no pages any more", || holds(0..CLAIM_BYTES + 1));
        fs::write(&go, "").expect("a file in /tmp");
    })?;
    let _ = fs::remove_dir_all(runtime("la"));
    let is_trimmed = server.trimmed() > 0;
    let (left, sums) = (held_bytes(), alone.stdout.repeat(2));
    let ok =
        is_right(&run, &sums) && is_trimmed && left == 0 && run.stat("store_errors") == Some(0);
    let written = run.stat("written_back_pages").unwrap_or(0);
    Ok(Verdict::check(ok, || {
        format!("{left} bytes left, {written} pages written\n{}", run.report())
    }))
}

/// A loop device, until it is dropped.
struct Loop {
    device: String,
    image: PathBuf,
}

impl Loop {
    fn new() -> Result<Loop, String> {
        let image = socket("image");
        File::create(&image)
            .and_then(|f| f.set_len((EXPORT_MIB << 20) as u64))
            .map_err(|e| e.to_string())?;
        let made = Command::new("losetup").args(["-f", "--show"]).arg(&image).output();
        let device =
            made.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_string()).unwrap_or_default();
        let made = Loop { device, image };
        if made.device.is_empty() { Err("there are no loop devices".to_string()) } else { Ok(made) }
    }

    fn is_claimed(&self) -> bool {
        let mut first = [0];
        let read = File::open(&self.device).and_then(|f| f.read_exact_at(&mut first, 0));
        read.is_ok() && first != [0]
    }

    fn used_bytes(&self) -> u64 {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(&self.image).map_or(u64::MAX, |m| m.blocks() * 512)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        if !self.device.is_empty() {
            let _ = Command::new("losetup").args(["-d", &self.device]).status();
        }
        let _ = fs::remove_file(&self.image);
    }
}

fn device(workshop: &Workshop) -> Result<Verdict, String> {
    let made = Loop::new()?;
    let options = ["--store", &made.device].map(Into::into).into();
    let (job, _) = churn(workshop);
    let job = job.managed(Managed { memory_bytes: Some(CHURN_LIMIT_MIB * MIB), options });
    let run = job.run(workshop)?;
    print!("{}", run.stdout);
    let is_clean = run.succeeded() && run.stdout.contains("clean") && notices(&run).is_empty();
    let (written, left) = (run.stat("written_back_pages").unwrap_or(0), made.used_bytes());
    // Its first and last bytes are zero, and written.
    if !is_clean || written == 0 || left > 512 << 10 {
        return Ok(Verdict::Failed(format!("{left} bytes are left\n{}", run.report())));
    }
    let run = |argv: &[&str]| run_with(workshop, &made.device, argv);
    let refused = |output: &std::process::Output, why: &str| {
        output.status.code() == Some(2) && String::from_utf8_lossy(&output.stderr).contains(why)
    };
    let first = Holder::start(workshop, &made.device);
    wait_until("the first run's claim", || made.is_claimed());
    let (second, first) = (run(&["true"]), first.end());
    // A file system's first bytes, and they are still there afterwards.
    let text = b"a file system, say";
    fs::OpenOptions::new()
        .write(true)
        .open(&made.device)
        .and_then(|f| f.write_all_at(text, 1024))
        .map_err(|e| e.to_string())?;
    let third = run(&["true"]);
    let mut kept = vec![0; text.len()];
    File::open(&made.device)
        .and_then(|f| f.read_exact_at(&mut kept, 1024))
        .map_err(|e| e.to_string())?;
    let ok = refused(&second, "otherwise in use")
        && first.status.success()
        && refused(&third, "holds something")
        && kept == text;
    Ok(Verdict::check(ok, || format!("{first:?}\n{second:?}\n{third:?}")))
}
