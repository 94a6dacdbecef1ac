//! Programs whose pages are on Redis servers that the test starts: one, and a Cluster of three
//! primaries and three replicas; killed, full, emptied and spoiled in the middle. A program ends
//! with the right sum, or by SIGBUS with a word of explanation; and no key stays behind.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use uzswap_tests::{Job, MIB, Managed, Outcome, Suite, Verdict, Workshop, full, seed};

const SIGBUS: i32 = 7;
/// A program holds so much, and has a third of it, or a half.
const HELD_MIB: &str = "64";
const LIMIT_MIB: u64 = 32;
/// The time within which an event must have happened: far beyond what it takes.
const SOON: Duration = Duration::from_secs(90);
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// After so long without a word the nodes of a Cluster take one of them for gone.
const NODE_TIMEOUT_MS: &str = "1500";

fn main() -> ExitCode {
    let workshop = Arc::new(Workshop::new());
    let mut suite = Suite::new();
    for (name, case) in [
        ("one_server", one as fn(&Workshop) -> Result<Verdict, String>),
        ("a_server_with_a_password", password),
        ("children_read_their_parents_pages", forked),
        ("processes_left_behind_are_waited_for", left_behind),
        ("that_wait_can_be_interrupted", interrupted),
        ("leases_are_renewed", renewed),
        ("everything_is_killed", all_killed),
        ("a_full_server", full_server),
        ("servers_that_evict_are_refused", evicting),
        ("values_are_spoiled", spoiled),
        ("values_are_gone", gone),
        ("the_only_server_is_killed", only_one_killed),
        ("a_cluster", cluster),
        ("a_primary_is_killed", primary_killed),
        ("stress_while_a_primary_is_killed", stressed),
        ("slots_move_to_another_node", resharded),
    ] {
        // Half a minute each, of what the two before them try more briefly.
        if !full()
            && matches!(name, "stress_while_a_primary_is_killed" | "slots_move_to_another_node")
        {
            continue;
        }
        let w = workshop.clone();
        suite.add(name, move || {
            let has = |program: &str| Command::new(program).arg("--version").output().is_ok();
            if has("redis-server") && has("redis-cli") {
                case(&w)
            } else {
                Err("there is no redis-server".to_string())
            }
        });
    }
    drop(workshop);
    // Each has servers of its own, and most wait for leases and elections.
    suite.independent();
    suite.main()
}

/// A server, until it is dropped.
struct Server {
    child: Child,
    port: u16,
    dir: PathBuf,
}

impl Server {
    fn start(options: &[&str]) -> Server {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        // The bus of a Cluster takes the port 10000 above, which is to be none of the kernel's.
        let base = 20_000 + (std::process::id() % 100) as u16 * 20;
        let port = base + NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = PathBuf::from(format!("/tmp/uzswap-valkey-{port}"));
        fs::create_dir_all(&dir).expect("a directory in /tmp");
        let child = Self::spawn(port, &dir, options);
        let server = Server { child, port, dir };
        wait_for("the server to come", || server.says(&["ping"]) == "PONG" || server.is_guarded());
        server
    }

    fn spawn(port: u16, dir: &PathBuf, options: &[&str]) -> Child {
        let log = File::create(dir.join("log")).expect("a file in /tmp");
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--save", "", "--appendonly", "no", "--dir"]);
        command.arg(dir).args(options).stdin(Stdio::null()).stdout(log).stderr(Stdio::null());
        command.spawn().expect("redis-server starts")
    }

    fn is_guarded(&self) -> bool {
        self.says(&["ping"]).starts_with("NOAUTH")
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    fn says(&self, words: &[&str]) -> String {
        cli(self.port, words)
    }

    fn keys(&self) -> u64 {
        self.says(&["dbsize"]).parse().unwrap_or(u64::MAX)
    }

    fn kill(&self) {
        let pid = Pid::from_raw(self.child.id() as i32).expect("a process of ours");
        kill_process(pid, Signal::KILL).expect("it is there");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn cli(port: u16, words: &[&str]) -> String {
    let said = Command::new("redis-cli").args(["-p", &port.to_string()]).args(words).output();
    String::from_utf8_lossy(&said.expect("redis-cli starts").stdout).trim().to_string()
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !is_so() {
        assert!(Instant::now() < end, "waited in vain for {what}");
        thread::sleep(LOOK_AGAIN);
    }
}

/// Three primaries, and a replica of each.
struct Cluster(Vec<Server>);

impl Cluster {
    fn start() -> Cluster {
        let options = ["--cluster-enabled", "yes", "--cluster-node-timeout", NODE_TIMEOUT_MS];
        let servers: Vec<Server> = (0..6).map(|_| Server::start(&options)).collect();
        let mut command = Command::new("redis-cli");
        command.args(["--cluster", "create"]);
        command.args(servers.iter().map(|s| format!("127.0.0.1:{}", s.port)));
        command.args(["--cluster-replicas", "1", "--cluster-yes"]);
        let made = command.stdin(Stdio::null()).output().expect("redis-cli starts");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stdout));
        let cluster = Cluster(servers);
        wait_for("the Cluster", || {
            let is_ok = |s: &Server| s.says(&["cluster", "info"]).contains("cluster_state:ok");
            // Every node has heard of every other, and of what it is.
            let knows = |s: &Server| {
                let ports: Vec<String> = cluster.0.iter().map(|s| s.port.to_string()).collect();
                let said = s.says(&["cluster", "slots"]);
                ports.iter().all(|port| said.lines().any(|line| line.trim() == port))
            };
            let slaves =
                |s: &Server| s.says(&["info", "replication"]).contains("master_link_status:up");
            cluster.0.iter().all(is_ok)
                && cluster.0.iter().all(knows)
                && cluster.0.iter().filter(|s| slaves(s)).count() == 3
        });
        cluster
    }

    fn url(&self) -> String {
        format!("valkey://127.0.0.1:{},127.0.0.1:{}", self.0[0].port, self.0[4].port)
    }

    fn is_primary(server: &Server) -> bool {
        server.says(&["info", "replication"]).contains("role:master")
    }

    /// A primary with values.
    fn busy(&self) -> Option<&Server> {
        self.0.iter().find(|s| Self::is_primary(s) && s.keys() > 0)
    }

    fn kill_busy(&self) {
        self.busy().expect("a primary with values").kill();
    }

    fn keys(&self) -> u64 {
        let answers = |s: &&Server| s.says(&["ping"]) == "PONG";
        self.0.iter().filter(answers).map(Server::keys).sum()
    }
}

fn managed(url: &str) -> Managed {
    let options = ["--store", url].map(Into::into).into();
    Managed { memory_bytes: Some(LIMIT_MIB * MIB), options }
}

/// A program that holds its memory for so long, and reads it all the time.
fn holds(workshop: &Workshop, seconds: &str, pause: &str) -> Job {
    let argv = ["python3".into(), workshop.script("values.py").into_os_string(), HELD_MIB.into()];
    Job::new(argv.into_iter().chain([seconds.into(), pause.into()]))
}

/// The words of a run without uzswap.
fn alone(workshop: &Workshop) -> Result<String, String> {
    let run = holds(workshop, "0", "0").run(workshop)?;
    Ok(run.stdout.lines().next().unwrap_or_default().to_string())
}

fn notices(run: &Outcome) -> BTreeSet<&str> {
    let list = run.stats.as_ref().and_then(|s| s.get("notices")?.as_array());
    list.into_iter().flatten().filter_map(|n| n.as_str()).filter(|n| *n != "over_limit").collect()
}

/// Whether a run ended as without uzswap, and used the servers for it.
fn is_right(run: &Outcome, words: &str) -> bool {
    run.succeeded()
        && run.stdout.lines().next() == Some(words)
        && notices(run).is_empty()
        && run.stat("remote_loads").unwrap_or(0) > 0
}

/// Whether a run ended as one whose page is lost.
fn is_lost(run: &Outcome, notice: &str, says: &str) -> bool {
    let is_sigbus = run.status.signal() == Some(SIGBUS) || run.status.code() == Some(128 + SIGBUS);
    is_sigbus
        && run.stderr.contains(says)
        && !run.stdout.contains("wrong bytes")
        && notices(run).contains(notice)
}

/// Runs a job, and does something once there are values.
fn run_and(
    workshop: &Workshop,
    job: &Job,
    mut has_values: impl FnMut() -> bool + Send,
    then: impl FnOnce() + Send,
) -> Result<Outcome, String> {
    thread::scope(|scope| {
        scope.spawn(|| {
            wait_for("values", &mut has_values);
            // In the middle of it.
            thread::sleep(Duration::from_secs(1));
            then();
        });
        job.run(workshop)
    })
}

fn one(workshop: &Workshop) -> Result<Verdict, String> {
    let server = Server::start(&[]);
    let words = alone(workshop)?;
    let run = holds(workshop, "0", "0").managed(managed(&server.url())).run(workshop)?;
    let left = server.keys();
    print!("{}", run.stdout);
    let ok = is_right(&run, &words) && left == 0;
    Ok(Verdict::check(ok, || format!("{left} keys are left\n{}", run.report())))
}

fn password(workshop: &Workshop) -> Result<Verdict, String> {
    let server = Server::start(&["--requirepass", "s3cret"]);
    let alone_words = alone(workshop)?;
    let job = holds(workshop, "0", "0").managed(managed(&server.url()));
    let run = job.env("UZSWAP_STORE_PASSWORD", "s3cret").run(workshop)?;
    let wrong = uzswap(workshop, &server.url().replace("//", "//:wrong@"), &["true"]);
    let said = String::from_utf8_lossy(&wrong.stderr);
    let is_refused = wrong.status.code() == Some(2)
        && said.contains("a user's name and password are wrong")
        && !said.contains(":wrong");
    // Rights as the document has them, and no more.
    let rules =
        ["on", ">pass", "~uz:*", "+set", "+getrange", "+pexpire", "+unlink", "+cluster|slots"];
    let mut words = vec!["-a", "s3cret", "acl", "setuser", "me"];
    words.extend(rules);
    server.says(&words);
    let with_rights = server.url().replace("//", "//me:pass@");
    let few = holds(workshop, "0", "0").managed(managed(&with_rights)).run(workshop)?;
    let odd = uzswap(workshop, "memcached://127.0.0.1", &["true"]);
    let names_it =
        String::from_utf8_lossy(&odd.stderr).contains("'memcached://127.0.0.1' is none of");
    let ok = is_right(&run, &alone_words) && is_right(&few, &alone_words) && is_refused && names_it;
    Ok(Verdict::check(ok, || format!("{wrong:?}\n{odd:?}\n{}\n{}", run.report(), few.report())))
}

fn uzswap(workshop: &Workshop, url: &str, argv: &[&str]) -> Output {
    let mut command = Command::new(workshop.uzswap());
    command.args(["run", "--quiet", "--memory", "16M", "--store", url, "--"]).args(argv);
    command.stdin(Stdio::null()).output().expect("uzswap starts")
}

/// Memory that is shared by fork is read by all, and written by each to values of its own.
fn forked(workshop: &Workshop) -> Result<Verdict, String> {
    let server = Server::start(&[]);
    let argv = [workshop.program("forks").into_os_string(), "48".into(), "2".into(), "0".into()];
    let run = Job::new(argv).managed(managed(&server.url())).run(workshop)?;
    let left = server.keys();
    let ok = is_right(&run, "right") && left == 0;
    Ok(Verdict::check(ok, || format!("{left} keys are left\n{}", run.report())))
}

/// Processes that the program has left behind keep their pages for as long as they need them.
fn left_behind(workshop: &Workshop) -> Result<Verdict, String> {
    let server = Server::start(&[]);
    let words = alone(workshop)?;
    let out = server.dir.join("out");
    let mut command = Command::new(workshop.uzswap());
    let url = format!("{}?lease=5s", server.url());
    command.args(["run", "--memory", "32M", "--store", &url, "--", "sh", "-c"]);
    // The shell ends once there are values.
    let script = "python3 \"$0\" $1 12 > \"$2\" & \
                  until [ \"$(redis-cli -p $3 dbsize)\" -gt 8 ]; do sleep 0.1; done";
    command.args([script]).arg(workshop.script("values.py")).args([HELD_MIB]).arg(&out);
    command.arg(server.port.to_string()).stdin(Stdio::null());
    let run = command.output().map_err(|e| e.to_string())?;
    let said = fs::read_to_string(&out).unwrap_or_default();
    let left = server.keys();
    let ok = run.status.success()
        && said.lines().next() == Some(&words)
        && String::from_utf8_lossy(&run.stderr).contains("waits for processes")
        && left == 0;
    Ok(Verdict::check(ok, || format!("{left} keys are left\n{said}\n{run:?}")))
}

/// Somebody who does not want to wait for them presses Ctrl-C, and is told what becomes of them.
fn interrupted(workshop: &Workshop) -> Result<Verdict, String> {
    let server = Server::start(&[]);
    let mut command = Command::new(workshop.uzswap());
    command.args(["run", "--memory", "32M", "--store", &server.url(), "--", "sh", "-c"]);
    command.args(["python3 \"$0\" $1 60 >/dev/null 2>&1 & read line"]);
    command.arg(workshop.script("values.py")).arg(HELD_MIB).process_group(0);
    command.stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut run = command.spawn().map_err(|e| e.to_string())?;
    let pid = Pid::from_raw(run.id() as i32).expect("a process of ours");
    wait_for("values", || server.keys() > 8);
    drop(run.stdin.take());
    let stderr = BufReader::new(run.stderr.take().expect("a pipe"));
    let mut said = Vec::new();
    for line in stderr.lines().map_while(Result::ok) {
        if line.contains("waits for processes") {
            kill_process(pid, Signal::INT).map_err(|e| e.to_string())?;
        }
        said.push(line);
    }
    let status = run.wait().map_err(|e| e.to_string())?;
    let _ = kill_process_group(pid, Signal::KILL);
    // The shell's own: there was no line to read.
    let ok = status.code() == Some(1) && said.iter().any(|line| line.contains("lose their pages"));
    Ok(Verdict::check(ok, || format!("{status}\n{}", said.join("\n"))))
}

/// A program that does nothing for three leases.
fn renewed(workshop: &Workshop) -> Result<Verdict, String> {
    let server = Server::start(&[]);
    let words = alone(workshop)?;
    let url = format!("{}?lease=5s", server.url());
    let run = holds(workshop, "0", "16").managed(managed(&url)).run(workshop)?;
    let left = server.keys();
    let ok = is_right(&run, &words) && left == 0;
    Ok(Verdict::check(ok, || format!("{left} keys are left\n{}", run.report())))
}

fn all_killed(workshop: &Workshop) -> Result<Verdict, String> {
    let server = Server::start(&[]);
    let mut command = Command::new(workshop.uzswap());
    let url = format!("{}?lease=5s", server.url());
    command.args(["run", "--quiet", "--memory", "32M", "--store", &url, "--", "python3"]);
    command.arg(workshop.script("values.py")).args([HELD_MIB, "600"]);
    let mut run =
        command.process_group(0).stdin(Stdio::null()).spawn().map_err(|e| e.to_string())?;
    wait_for("values", || server.keys() > 8);
    let group = Pid::from_raw(run.id() as i32).expect("a process of ours");
    kill_process_group(group, Signal::KILL).map_err(|e| e.to_string())?;
    let _ = run.wait();
    let left = server.keys();
    let lives: i64 = server.says(&["pttl", &server.says(&["randomkey"])]).parse().unwrap_or(-1);
    wait_for("the lease to end", || server.keys() == 0);
    let ok = left > 8 && (1..=5000).contains(&lives);
    Ok(Verdict::check(ok, || format!("{left} keys were left, one of them for {lives} ms")))
}

/// Pages that a server refuses stay in memory.
fn full_server(workshop: &Workshop) -> Result<Verdict, String> {
    let server = Server::start(&["--maxmemory", "6mb", "--maxmemory-policy", "noeviction"]);
    let words = alone(workshop)?;
    let run = holds(workshop, "0", "0").managed(managed(&server.url())).run(workshop)?;
    let left = server.keys();
    let ok = run.succeeded()
        && run.stdout.lines().next() == Some(&words)
        && notices(&run).contains("store_failed")
        && run.stat("written_back_pages").unwrap_or(0) > 0
        && left == 0;
    Ok(Verdict::check(ok, || format!("{left} keys are left\n{}", run.report())))
}

fn evicting(workshop: &Workshop) -> Result<Verdict, String> {
    let server = Server::start(&["--maxmemory", "100mb"]);
    for policy in ["allkeys-lru", "volatile-ttl"] {
        server.says(&["config", "set", "maxmemory-policy", policy]);
        let run = uzswap(workshop, &server.url(), &["true"]);
        let doctor = Command::new(workshop.uzswap())
            .args(["doctor", "--store", &server.url()])
            .output()
            .map_err(|e| e.to_string())?;
        let said = String::from_utf8_lossy(&run.stderr);
        let found = String::from_utf8_lossy(&doctor.stdout);
        let ok = run.status.code() == Some(2)
            && said.contains(policy)
            && said.contains("noeviction")
            && doctor.status.code() == Some(1)
            && found.contains(&format!("policy {policy}"))
            && found.contains("-> redis-cli");
        if !ok {
            return Ok(Verdict::Failed(format!("{run:?}\n{found}")));
        }
    }
    server.says(&["config", "set", "maxmemory-policy", "noeviction"]);
    let run = uzswap(workshop, &server.url(), &["true"]);
    Ok(Verdict::check(run.status.success(), || format!("{run:?}")))
}

/// All values become others of the same length.
const SPOIL: &str = "for _, key in ipairs(redis.call('keys', 'uz:*')) do \
    redis.call('set', key, string.rep('x', redis.call('strlen', key)), 'keepttl') end";

fn spoiled(workshop: &Workshop) -> Result<Verdict, String> {
    let spoil = |server: &Server| _ = server.says(&["eval", SPOIL, "0"]);
    loses(workshop, spoil, "corrupt_page", "came back damaged")
}

fn gone(workshop: &Workshop) -> Result<Verdict, String> {
    let flush = |server: &Server| _ = server.says(&["flushall"]);
    loses(workshop, flush, "remote_gone", "had a page no more")
}

fn only_one_killed(workshop: &Workshop) -> Result<Verdict, String> {
    loses(workshop, Server::kill, "remote_lost", "on a server that did not answer")
}

/// Something happens to the only server as soon as it has values; the notice and the message say
/// that pages are lost.
fn loses(
    workshop: &Workshop,
    happens: impl Fn(&Server) + Sync,
    notice: &str,
    message: &str,
) -> Result<Verdict, String> {
    let server = Server::start(&[]);
    let job = holds(workshop, "60", "0").managed(managed(&server.url()));
    let run = run_and(workshop, &job, || server.keys() > 8, || happens(&server))?;
    let ok = is_lost(&run, notice, message);
    Ok(Verdict::check(ok, || run.report()))
}

fn cluster(workshop: &Workshop) -> Result<Verdict, String> {
    let cluster = Cluster::start();
    let words = alone(workshop)?;
    let run = holds(workshop, "0", "0").managed(managed(&cluster.url())).run(workshop)?;
    let left = cluster.keys();
    print!("{}", run.stdout);
    let lone = run.stat("remote_lone_copies");
    let ok = is_right(&run, &words) && lone == Some(0);
    if !ok {
        return Ok(Verdict::Failed(run.report()));
    }
    // Replicas hear of it a moment later.
    wait_for("the last key to go", || cluster.keys() == 0);
    let primaries = cluster.0.iter().filter(|s| Cluster::is_primary(s)).count();
    // A replica would evict once it is a primary.
    let replica = cluster.0.iter().find(|s| !Cluster::is_primary(s)).expect("there are three");
    replica.says(&["config", "set", "maxmemory-policy", "allkeys-lfu"]);
    let refused = uzswap(workshop, &cluster.url(), &["true"]);
    let is_refused = refused.status.code() == Some(2)
        && String::from_utf8_lossy(&refused.stderr).contains("allkeys-lfu");
    Ok(Verdict::check(primaries == 3 && is_refused, || {
        format!("{primaries} primaries, {left} keys, {refused:?}")
    }))
}

fn primary_killed(workshop: &Workshop) -> Result<Verdict, String> {
    let cluster = Cluster::start();
    let words = alone(workshop)?;
    let job = holds(workshop, "12", "0").managed(managed(&cluster.url()));
    let run = run_and(workshop, &job, || cluster.keys() > 8, || cluster.kill_busy())?;
    print!("{}", run.stdout);
    let ok = is_right(&run, &words) && run.stat("remote_timeouts").unwrap_or(0) > 0;
    if ok {
        wait_for("the last key to go", || cluster.keys() == 0);
    }
    Ok(Verdict::check(ok, || run.report()))
}

/// Forks, execs and calls of all kinds meanwhile.
fn stressed(workshop: &Workshop) -> Result<Verdict, String> {
    let cluster = Cluster::start();
    let mut argv = vec![workshop.program("churn").into_os_string(), "12".into()];
    argv.extend([seed().to_string().into(), "80".into(), "4".into()]);
    let job = Job::new(argv).hangs_after(Duration::from_secs(240)).managed(managed(&cluster.url()));
    let run = run_and(workshop, &job, || cluster.keys() > 8, || cluster.kill_busy())?;
    println!("{} after {:?}", run.stdout.trim(), run.elapsed);
    let ok = run.succeeded()
        && run.stdout.contains("clean")
        && notices(&run).is_empty()
        && !run.stderr.contains("no replica")
        && run.stat("remote_timeouts").unwrap_or(0) > 0;
    if ok {
        wait_for("the last key to go", || cluster.keys() == 0);
    }
    Ok(Verdict::check(ok, || run.report()))
}

/// Half of a node's slots go to another one meanwhile, with the values in them: MOVED and ASK.
fn resharded(workshop: &Workshop) -> Result<Verdict, String> {
    let cluster = Cluster::start();
    let words = alone(workshop)?;
    let job = holds(workshop, "15", "0").managed(managed(&cluster.url()));
    let moved = std::sync::Mutex::new(String::new());
    let run = run_and(
        workshop,
        &job,
        || cluster.keys() > 8,
        || {
            let from = cluster.busy().expect("a primary with values");
            let mut others =
                cluster.0.iter().filter(|s| Cluster::is_primary(s) && s.port != from.port);
            let to = others.next_back().expect("another primary");
            let id = |s: &Server| s.says(&["cluster", "myid"]);
            let (from_id, to_id) = (id(from), id(to));
            let mut command = Command::new("redis-cli");
            command.args(["--cluster", "reshard", &format!("127.0.0.1:{}", from.port)]);
            command.args(["--cluster-from", &from_id, "--cluster-to", &to_id]);
            command.args([
                "--cluster-slots",
                "2500",
                "--cluster-yes",
                "--cluster-timeout",
                "20000",
            ]);
            let done = command.stdin(Stdio::null()).output().expect("redis-cli starts");
            *moved.lock().expect("no panic") = format!("{:?}", done.status.code());
        },
    )?;
    let told = |what: &str| {
        let of = |s: &Server| {
            let stats = s.says(&["info", "errorstats"]);
            let field = format!("errorstat_{what}:count=");
            stats.lines().find_map(|l| l.strip_prefix(&field)?.trim().parse::<u64>().ok())
        };
        cluster.0.iter().filter_map(of).sum::<u64>()
    };
    println!("{} redirections by MOVED, {} by ASK", told("MOVED"), told("ASK"));
    print!("{}", run.stdout);
    let moved = moved.into_inner().expect("no panic");
    let ok = is_right(&run, &words) && moved == "Some(0)" && told("MOVED") > 0;
    if ok {
        wait_for("the last key to go", || cluster.keys() == 0);
    }
    Ok(Verdict::check(ok, || format!("resharding: {moved}\n{}", run.report())))
}
