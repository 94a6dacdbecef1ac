//! A run shows metrics while it lasts and a page at its end, and both agree with `--stats`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use uzswap_tests::exposition::{Exposition, scrape};
use uzswap_tests::suite::command;
use uzswap_tests::{Job, MIB, Managed, Sandbox, Suite, User, Verdict, Workshop};

/// A guard against hanging, not an assertion of speed.
const HANGS_AFTER: Duration = Duration::from_secs(200);

fn main() -> ExitCode {
    let workshop = Arc::new(Workshop::new());
    let mut suite = Suite::new();
    for sandbox in [Sandbox::Open, Sandbox::NoUserfaultfd] {
        let w = workshop.clone();
        suite.add(
            format!("metrics_agree_with_the_statistics::{}", sandbox.mechanism()),
            move || agree(&w, sandbox),
        );
    }
    let w = workshop.clone();
    suite.add("what_cannot_be_is_said_before_the_program_starts", move || refused(&w));
    let w = workshop.clone();
    suite.add("an_interrupted_run_leaves_its_report_and_no_socket", move || interrupted(&w));
    for width in [390, 1280] {
        let w = workshop.clone();
        suite.add(format!("the_report_in_a_browser::{width}"), move || in_a_browser(&w, width));
    }
    drop(workshop);
    suite.main()
}

/// Scrapes while a program pages, forks and starts others.
fn agree(workshop: &Workshop, sandbox: Sandbox) -> Result<Verdict, String> {
    let python = command("python3")?;
    let (socket, signs) = (workshop.dir().join("metrics.sock"), workshop.dir().join("signs"));
    let _ = fs::remove_dir_all(&signs);
    fs::create_dir(&signs).expect("the workshop is ours");
    fs::set_permissions(&signs, fs::Permissions::from_mode(0o777)).expect("it is ours");
    let mut options = vec!["--metrics".into()];
    options.push(format!("unix:{}", socket.display()).into());
    let job = Job::new([
        python.as_os_str(),
        workshop.script("watched.py").as_os_str(),
        "120".as_ref(),
        signs.as_ref(),
    ])
    .user(User::Root)
    .sandbox(sandbox)
    .managed(Managed { memory_bytes: Some(64 * MIB), options });

    std::thread::scope(|scope| {
        let running = scope.spawn(|| job.run(workshop));
        let watched = watch(&socket, &signs.join("ready"), &|| running.is_finished());
        fs::write(signs.join("go"), "").expect("the workshop is ours");
        let run = running.join().expect("a run does not panic")?;
        let report = |why: String| Ok(Verdict::Failed(format!("{why}\n{}", run.report())));
        let (last, scrapes) = match watched {
            Ok(watched) => watched,
            Err(why) => return report(why),
        };
        println!("{scrapes} scrapes, {} samples in the last", last.samples.len());
        if !run.succeeded() {
            return report("it did not finish".to_string());
        }
        if socket.exists() {
            return report("the socket is still there".to_string());
        }
        report_or_pass(compare(&last, &run), report)
    })
}

fn report_or_pass(
    result: Result<(), String>,
    report: impl Fn(String) -> Result<Verdict, String>,
) -> Result<Verdict, String> {
    result.map_or_else(report, |()| Ok(Verdict::Passed))
}

/// Scrapes until `ready` exists, and once more: the last answer, and how many there were.
fn watch(
    socket: &Path,
    ready: &Path,
    has_ended: &dyn Fn() -> bool,
) -> Result<(Exposition, u32), String> {
    let deadline = Instant::now() + HANGS_AFTER;
    let mut last: Option<Exposition> = None;
    let mut scrapes = 0;
    // Clients that say nothing, or not enough: nobody else shall notice.
    let mut stalled = Vec::new();
    loop {
        if has_ended() || Instant::now() > deadline {
            return Err("it ended, or hung, before it was ready".to_string());
        }
        let is_last = ready.exists();
        if let Ok(text) = scrape(socket) {
            let now = Exposition::parse(&text)?;
            if scrapes == 0 {
                let mode = fs::metadata(socket).map_err(|e| e.to_string())?.permissions().mode();
                if mode & 0o777 != 0o600 {
                    return Err(format!("others may use the socket: {mode:o}"));
                }
            }
            if let Some(fallen) = last.as_ref().and_then(|before| now.fallen(before)) {
                return Err(format!("a counter fell: {fallen}"));
            }
            scrapes += 1;
            if scrapes < 5 {
                stalled.extend((0..3).filter_map(|_| UnixStream::connect(socket).ok()));
            }
            if is_last {
                return Ok((now, scrapes));
            }
            last = Some(now);
        }
        std::thread::sleep(Duration::from_millis(150));
    }
}

/// The last scrape was made when the program was only waiting: nearly all that `--stats` counts had
/// happened.
fn compare(last: &Exposition, run: &uzswap_tests::Outcome) -> Result<(), String> {
    let stat = |key: &str| run.stat(key).ok_or_else(|| format!("--stats has no {key}"));
    for key in [
        "faults",
        "first_touches",
        "limbo_hits",
        "loads",
        "evictions",
        "stores",
        "written_back_pages",
        "forks",
    ] {
        let (seen, end) = (last.get(&format!("uzswap_{key}_total")), stat(key)? as f64);
        let is_near = seen <= end && seen >= 0.9 * end - 2000.0;
        if !is_near {
            return Err(format!("{key} was {seen}, and {end} at the end"));
        }
    }
    // Every fault was timed.
    let stats = run.stats.as_ref().ok_or("no statistics")?;
    let kinds = stats["fault_latency"].as_object().ok_or("no fault_latency")?;
    let timed: u64 = kinds.values().filter_map(|kind| kind["count"].as_u64()).sum();
    let faults = stat("faults")?;
    if timed != faults || faults < 100 {
        return Err(format!("{timed} of {faults} faults were timed"));
    }
    for (kind, of_kind) in kinds {
        let counted: u64 =
            of_kind["buckets"].as_array().into_iter().flatten().filter_map(|b| b[1].as_u64()).sum();
        let seen = last.get(&format!("uzswap_fault_duration_seconds_count{{kind=\"{kind}\"}}"));
        if of_kind["count"].as_u64() != Some(counted) || seen.is_nan() || seen > counted as f64 {
            return Err(format!(
                "{kind}: {seen} seen, {counted} in buckets, {} counted",
                of_kind["count"]
            ));
        }
        let at = |key: &str| of_kind[key].as_u64().unwrap_or(u64::MAX);
        if !(at("p50_ns") <= at("p99_ns") && at("p99_ns") <= at("p999_ns")) {
            return Err(format!("{kind}: quantiles out of order"));
        }
    }
    // The processes that were there, by number and name, are part of the whole.
    let of_processes: f64 = last.of("uzswap_process_faults_total").map(|(_, value)| value).sum();
    let is_named =
        last.of("uzswap_process_faults_total").any(|(series, _)| series.contains("name=\"python3"));
    if !is_named || of_processes > last.get("uzswap_faults_total") || of_processes == 0.0 {
        return Err(format!("the processes have {of_processes} faults, named: {is_named}"));
    }
    let limit = last.get("uzswap_limit_bytes");
    if limit != (64 * MIB) as f64 {
        return Err(format!("the limit is {limit}"));
    }
    Ok(())
}

/// `uzswap run` with these options and a program that would leave a trace.
fn run(workshop: &Workshop, options: &[&str], program: &[&str]) -> Output {
    let mut command = Command::new(workshop.uzswap());
    command
        .arg("run")
        .args(["--memory", "64M", "--cache", "none"])
        .args(options)
        .arg("--")
        .args(program);
    command.stdin(Stdio::null()).output().expect("uzswap starts")
}

fn refused(workshop: &Workshop) -> Result<Verdict, String> {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").map_err(|e| e.to_string())?;
    let port = taken.local_addr().map_err(|e| e.to_string())?.port().to_string();
    let trace = workshop.dir().join("trace");
    let dir = workshop.dir().display().to_string();
    let cases = [
        ("--metrics", port.as_str(), "is in use"),
        ("--metrics", "nowhere", "is no address"),
        ("--metrics", "70000", "is no port"),
        ("--metrics", "unix:/nonexistent/s", "does not exist"),
        ("--metrics", "192.0.2.1:9", "no address of this machine"),
        ("--report", "/nonexistent/r.html", "does not exist"),
        ("--report", &dir, "is a directory"),
    ];
    for (option, value, why) in cases {
        let out = run(workshop, &[option, value], &["touch", &trace.display().to_string()]);
        let said = String::from_utf8_lossy(&out.stderr);
        let is_right = out.status.code() == Some(2)
            && said.lines().count() == 1
            && said.contains(why)
            && said.contains(option)
            && !trace.exists();
        if !is_right {
            return Ok(Verdict::Failed(format!("{option} {value}: {:?}: {said}", out.status)));
        }
    }
    Ok(Verdict::Passed)
}

fn interrupted(workshop: &Workshop) -> Result<Verdict, String> {
    let (socket, page) = (workshop.dir().join("i.sock"), workshop.dir().join("i.html"));
    let mut child = Command::new(workshop.uzswap())
        .args(["run", "--memory", "64M", "--cache", "none", "--metrics"])
        .arg(format!("unix:{}", socket.display()))
        .arg("--report")
        .arg(&page)
        .args(["--", "sleep", "1000"])
        .stderr(Stdio::null())
        .spawn()
        .expect("uzswap starts");
    let deadline = Instant::now() + HANGS_AFTER;
    // Once the program is seen among the processes it has started.
    let is_there = || scrape(&socket).is_ok_and(|text| text.contains("name=\"sleep\""));
    while !is_there() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
    let status = child.wait().expect("our child");
    let html = fs::read_to_string(&page).unwrap_or_default();
    let ok =
        status.signal() == Some(15) && !socket.exists() && html.contains("was killed by SIGTERM");
    Ok(Verdict::check(ok, || {
        format!("{status:?}, socket: {}, page of {} bytes", socket.exists(), html.len())
    }))
}

/// The script that inspects the page in the browser. Elements inside of a scrolling element may be
/// wider than the page.
const INSPECT: &str = r#"<script>
addEventListener('load', () => {
  const wide = [...document.body.querySelectorAll('*')].filter((e) =>
    !e.closest('.scroll') && e.getBoundingClientRect().right > innerWidth + 0.5)
    .map((e) => e.tagName + '.' + e.className);
  const small = [...document.body.querySelectorAll('*')].filter((e) =>
    e.textContent.trim() && parseFloat(getComputedStyle(e).fontSize) < 12).map((e) => e.tagName);
  const plots = [...document.querySelectorAll('.plot')].map((p) =>
    p.id + ':' + p.querySelectorAll('svg path[d], svg rect').length);
  const verdict = { errors, wide, small, plots,
    width: document.documentElement.scrollWidth, inner: innerWidth,
    ready: document.body.dataset.ready, resources: performance.getEntriesByType('resource').length,
    images: document.images.length, bad: [...document.querySelectorAll('path')].filter((p) =>
      /NaN|Infinity|undefined/.test(p.getAttribute('d'))).length };
  const pre = document.createElement('pre');
  pre.id = 'verdict';
  pre.textContent = 'VERDICT' + JSON.stringify(verdict) + 'TCIDREV';
  document.body.append(pre);
});
</script>"#;
const CATCH: &str = "<script>const errors = []; addEventListener('error', (e) => \
                     errors.push(e.message));addEventListener('securitypolicyviolation', (e) => \
                     errors.push(e.blockedURI));</script>";

fn browser() -> Result<PathBuf, String> {
    let names =
        ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome"];
    names
        .iter()
        .find_map(|name| command(name).ok())
        .ok_or("no browser (chromium) is installed".to_string())
}

fn in_a_browser(workshop: &Workshop, width: u32) -> Result<Verdict, String> {
    let browser = browser()?;
    let page = workshop.dir().join(format!("page-{width}.html"));
    let touch = workshop.program("touch").display().to_string();
    // A name that would break out of the page, and one that is longer than a phone is wide.
    let hostile = "</script><img src=x onerror=alert(1)><!--\"'&";
    let long = "w".repeat(300);
    let script = format!("{touch} 150 2 1 & {touch} 20 1 1; wait");
    let options = ["--stats", "/dev/null", "--report", page.to_str().expect("a plain path")];
    let out = run(workshop, &options, &["sh", "-c", &script, hostile, &long]);
    let html = fs::read_to_string(&page).map_err(|e| format!("{}: {e}", page.display()));
    let Ok(html) = html else { return Ok(Verdict::Failed(format!("no page: {out:?}"))) };
    if html.contains("<img")
        || html.contains("src=\"")
        || html.contains("http://") && html.contains("href")
    {
        return Ok(Verdict::Failed(
            "something in the page is not text, or is from outside".to_string(),
        ));
    }
    let inspected = html.replacen("<head>", &format!("<head>{CATCH}"), 1).replacen(
        "</body>",
        &format!("{INSPECT}</body>"),
        1,
    );
    fs::write(&page, inspected).expect("the workshop is ours");
    let out = Command::new(&browser)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--virtual-time-budget=4000",
        ])
        .arg(format!("--user-data-dir={}", workshop.dir().join("browser").display()))
        .arg(format!("--window-size={width},2000"))
        .arg("--dump-dom")
        .arg(format!("file://{}", page.display()))
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("{}: {e}", browser.display()))?;
    let dom = String::from_utf8_lossy(&out.stdout);
    let verdict = dom.split_once("VERDICT{").and_then(|(_, rest)| rest.split_once("TCIDREV"));
    let Some((verdict, _)) = verdict.filter(|_| dom.contains("id=\"verdict\"")) else {
        return Err(format!(
            "the browser does not work here: {}",
            String::from_utf8_lossy(&out.stderr)
        ));
    };
    let text =
        format!("{{{}", verdict.replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">"));
    println!("{text}");
    let v: serde_json::Value = serde_json::from_str(&text).map_err(|e| format!("{e}: {text}"))?;
    let none = |key: &str| v[key].as_array().is_some_and(Vec::is_empty) || v[key] == 0;
    let has_plots = ["memory", "faults", "latency", "disk", "ratio"].iter().all(|id| {
        let found =
            v["plots"].as_array().into_iter().flatten().filter_map(|p| p.as_str()?.split_once(':'));
        found.into_iter().any(|(name, shapes)| name == *id && shapes != "0")
    });
    let ok = ["errors", "wide", "small", "resources", "images", "bad"].into_iter().all(none)
        && v["ready"] == "yes"
        && v["inner"] == width
        && v["width"].as_u64().is_some_and(|w| w <= u64::from(width))
        && has_plots;
    Ok(Verdict::check(ok, || text))
}
