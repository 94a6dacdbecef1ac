//! `uzswap estimate`: what it says of a program's pages is what `uzswap run` makes of them, the
//! program notices nothing, and what cannot be estimated is said in one line. Short form: all but
//! the count of each use of a page.

use std::path::Path;
use std::process::{Command, ExitCode, Output};
use std::sync::Arc;

use serde_json::Value;
use uzswap_tests::suite::command;
use uzswap_tests::{Suite, Verdict, Workshop, full};

/// How far the ratio may be off.
const WITHIN: f64 = 1.1;

fn main() -> ExitCode {
    let workshop = Arc::new(Workshop::new());
    let mut suite = Suite::new();
    type Case = fn(&Workshop) -> Result<Verdict, String>;
    let cases: [(&str, Case); 5] = [
        ("the_ratio_is_that_of_a_run", ratio),
        ("each_use_of_a_page_is_counted", uses),
        ("a_process_that_runs", running),
        ("a_program_under_uzswap_already", managed_already),
        ("what_cannot_be_estimated_is_said", refused),
    ];
    for (name, case) in cases {
        // It takes as long as all others.
        if name == "each_use_of_a_page_is_counted" && !full() {
            continue;
        }
        let w = workshop.clone();
        suite.add(name, move || case(&w));
    }
    drop(workshop);
    suite.main()
}

fn output(command: &mut Command) -> Result<Output, String> {
    command.output().map_err(|e| format!("{}: {e}", command.get_program().display()))
}

fn estimate(workshop: &Workshop) -> Command {
    let mut command = Command::new(workshop.uzswap());
    command.arg("estimate");
    command
}

fn half(workshop: &Workshop, mib: &str, seconds: &str) -> Result<Vec<std::ffi::OsString>, String> {
    let python = command("python3")?.into_os_string();
    Ok(vec![python, "-I".into(), workshop.script("half.py").into(), mib.into(), seconds.into()])
}

fn json(path: &Path) -> Result<Value, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))
}

fn number(value: &Value, what: &str) -> Result<f64, String> {
    value.as_f64().ok_or_else(|| format!("there is no {what}"))
}

/// Half of each page is random: the ratio is nearly two, whoever compresses.
fn ratio(workshop: &Workshop) -> Result<Verdict, String> {
    let (estimated, stats) =
        (workshop.dir().join("estimate.json"), workshop.dir().join("half-stats.json"));
    let line = half(workshop, "128", "1")?;
    let watched = output(estimate(workshop).arg("--json").arg(&estimated).arg("--").args(&line))?;
    let said = String::from_utf8_lossy(&watched.stderr);
    if watched.status.code() != Some(7) || watched.stdout != b"held\n" {
        return Ok(Verdict::Failed(format!(
            "the program is another one: {:?}\n{said}",
            watched.status
        )));
    }
    let mut run = Command::new(workshop.uzswap());
    run.args(["run", "--memory", "96M", "--store", "none", "--stats"])
        .arg(&stats)
        .arg("--")
        .args(&line);
    if output(&mut run)?.status.code() != Some(7) {
        return Ok(Verdict::Failed("it did not run under uzswap".to_string()));
    }
    let (estimated, stats) = (json(&estimated)?, json(&stats)?);
    let counter = |name: &str| number(&stats["counters"][name], name);
    let measured = counter("stored_pages")? * 4096.0 / counter("pool_bytes")?;
    let expected = number(&estimated["codec"]["ratio"], "ratio")?;
    println!("ratio: {expected:.2} expected, {measured:.2} measured\n{said}");
    let is_near = expected / measured < WITHIN && measured / expected < WITHIN;
    let need = number(&estimated["peak_bytes"], "peak")?;
    let limits = estimated["limits"].as_array().map_or(0, Vec::len);
    Ok(Verdict::check(is_near && (120e6..200e6).contains(&need) && limits == 3, || {
        format!("{expected} expected, {measured} measured, {need} bytes, {limits} limits")
    }))
}

/// Of a program that goes through all of its memory in order, again and again, nothing is there the
/// next time where not all of it fits.
fn uses(workshop: &Workshop) -> Result<Verdict, String> {
    const MIB: u64 = 96;
    const ROUNDS: u64 = 30;
    let python = command("python3")?;
    let line = |command: &mut Command| {
        command
            .arg("-I")
            .arg(workshop.script("rounds.py"))
            .args([MIB, ROUNDS].map(|n| n.to_string()));
    };
    let mut free = Command::new(&python);
    line(&mut free);
    let free = output(&mut free)?;
    let path = workshop.dir().join("uses.json");
    let mut loads = Vec::new();
    for how in [&[][..], &["--from-outside"]] {
        let mut watched = estimate(workshop);
        watched
            .args(how)
            .args(["--memory", "64M,300M", "--json"])
            .arg(&path)
            .arg("--")
            .arg(&python);
        line(&mut watched);
        let watched = output(&mut watched)?;
        let said = String::from_utf8_lossy(&watched.stderr);
        if !watched.status.success() || watched.stdout != free.stdout {
            return Ok(Verdict::Failed(format!(
                "the program is another one: {:?}\n{said}",
                watched.status
            )));
        }
        let estimated = json(&path)?;
        println!("{said}");
        if estimated["watched_one_in"].is_u64() != how.is_empty() {
            return Ok(Verdict::Failed(format!("watched otherwise than was said: {estimated}")));
        }
        let limit = |i: usize| number(&estimated["limits"][i]["faults_per_second"], "rate");
        let seconds = number(&estimated["seconds"], "time")?;
        loads.push([limit(0)? * seconds, limit(1)? * seconds]);
    }
    let all = (MIB * 256 * ROUNDS) as f64;
    println!("{all} pages, estimated from within and from outside: {loads:?}");
    // From outside less can be said than that it pages.
    let is_right =
        (0.75 * all..1.25 * all).contains(&loads[0][0]) && loads.iter().all(|l| l[1] == 0.0);
    Ok(Verdict::check(is_right, || format!("{loads:?} for {all}")))
}

fn running(workshop: &Workshop) -> Result<Verdict, String> {
    let line = half(workshop, "64", "100")?;
    let mut program = Command::new(&line[0]).args(&line[1..]).spawn().map_err(|e| e.to_string())?;
    let pid = program.id().to_string();
    // Filling takes a moment.
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while resident_pages(&pid) * 4096 < 64 << 20 && std::time::Instant::now() < end {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let watched = output(estimate(workshop).args([&pid, "--for", "1s", "--memory", "40M,1G"]));
    let is_alive = matches!(program.try_wait(), Ok(None));
    let _ = program.kill();
    let _ = program.wait();
    let watched = watched?;
    let said = String::from_utf8_lossy(&watched.stderr);
    println!("{said}");
    // With more memory than it has, nothing changes.
    let is_right = watched.status.success()
        && said.lines().any(|line| line.starts_with("  40 MiB ("))
        && said.lines().any(|line| line.starts_with("  1.0 GiB (") && line.ends_with("as without"));
    Ok(Verdict::check(is_right && is_alive, || format!("alive: {is_alive}\n{said}")))
}

/// Pages that a process has in memory, by the second number of its statm.
fn resident_pages(pid: &str) -> u64 {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0)
}

fn managed_already(workshop: &Workshop) -> Result<Verdict, String> {
    let line = half(workshop, "48", "100")?;
    let mut run = Command::new(workshop.uzswap());
    let mut run =
        run.args(["run", "--memory", "1G", "--"]).args(&line).spawn().map_err(|e| e.to_string())?;
    // The program is the first; the witness of signals comes after it.
    let children = format!("/proc/{0}/task/{0}/children", run.id());
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let pid = loop {
        let listed = std::fs::read_to_string(&children).unwrap_or_default();
        let pid = listed.split(' ').next().unwrap_or_default();
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        if maps.contains("libuzswap_preload") || std::time::Instant::now() > end {
            break pid.to_string();
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    };
    let refused = is_refused(workshop, &pid, "1s");
    let _ = run.kill();
    let _ = run.wait();
    if let Verdict::Failed(why) = refused? {
        return Ok(Verdict::Failed(why));
    }
    // A shell that starts the program has no library yet, or loses it for a moment.
    let library = workshop.uzswap().with_file_name("libuzswap_preload");
    let mut late = Command::new(command("sh")?)
        .args(["-c", "sleep 0.5; LD_PRELOAD=$0 exec sleep 100"])
        .arg(library)
        .spawn()
        .map_err(|e| e.to_string())?;
    // However long the machine takes to start it, it is watched for longer.
    let refused = is_refused(workshop, &late.id().to_string(), "4s");
    let _ = late.kill();
    let _ = late.wait();
    refused
}

fn is_refused(workshop: &Workshop, pid: &str, time: &str) -> Result<Verdict, String> {
    let watched = output(estimate(workshop).args([pid, "--for", time]))?;
    let said = String::from_utf8_lossy(&watched.stderr).into_owned();
    let is_right = watched.status.code() == Some(2) && said.contains("is under uzswap already");
    Ok(Verdict::check(is_right && said.lines().count() == 1, || said))
}

fn refused(workshop: &Workshop) -> Result<Verdict, String> {
    for (arguments, code, words) in [
        (&["4194303"][..], 2, "there is no process 4194303"),
        (&["2"], 2, "a thread of the kernel"),
        (&["python3"], 2, "'python3' is no process id"),
        (&[], 2, "what to estimate?"),
        (&["--memory", "x", "1"], 2, "no size"),
        (&["--", "/no/such/program"], 127, "no such file"),
        (&["--json", "/no/such/file", "--", "true"], 2, "--json: /no/such/file"),
        // It is over before it can be looked at.
        (&["--", "true"], 0, "no estimate"),
    ] {
        let refused = output(estimate(workshop).args(arguments))?;
        let said = String::from_utf8_lossy(&refused.stderr);
        let is_right = refused.status.code() == Some(code)
            && said.contains(words)
            && said.lines().count() == 1;
        if !is_right {
            return Ok(Verdict::Failed(format!("{arguments:?}: {:?}, {said}", refused.status)));
        }
    }
    Ok(Verdict::Passed)
}
