//! One run of a program, from its start to its end, watched: how long it takes, and what it says.
//!
//! ```text
//!  Tree::start ──> end? interrupted? too long? look ──> verdict        every 2 ms; looks every 50 ms
//!        └─ a thread that hears: its output, or as its client ──> digest
//! ```

use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Read};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::super::process::{Interrupt, Tree, children_seconds};
use super::catalogue::Line;
use super::redis;
use uzswap_cli::Failure;
use uzswap_cli::program::reason;

/// The outcome of a run.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub wall: Duration,
    /// Of all its processes.
    pub cpu_seconds: f64,
    /// Of what it said.
    pub digest: u64,
}

impl Run {
    /// Its figures, if it said what the other one did.
    pub fn like(&self, other: &Run) -> Result<Value, String> {
        match self.digest == other.digest {
            true => Ok(
                json!({"wall_seconds": self.wall.as_secs_f64(), "cpu_seconds": self.cpu_seconds}),
            ),
            false => Err("wrong output".to_string()),
        }
    }
}

/// Runs the command, which is that of `line`, and calls `look` now and then. The inner error says
/// how it failed.
pub fn watch(
    mut command: Command,
    line: &Line,
    patience: Duration,
    interrupt: &Interrupt,
    look: &mut dyn FnMut(&Tree),
) -> Result<Result<Run, String>, Failure> {
    const PAUSE: Duration = Duration::from_millis(2);
    const LOOK_EVERY: u32 = 25;
    // How long a server that ends may be seen to hang up before it is seen to end; what measures it
    // may have work to do then.
    const GRACE: Duration = Duration::from_secs(60);
    let stdout = if line.socket.is_some() { Stdio::null() } else { Stdio::piped() };
    let cpu_before = children_seconds();
    let started = Instant::now();
    let mut tree = match Tree::start(command.stdin(Stdio::null()).stdout(stdout)) {
        Ok(tree) => tree,
        Err(why) => return Ok(Err(why)),
    };
    let over = Arc::new(AtomicBool::new(false));
    let listener = listen(line, tree.stdout(), &over);
    let mut silent_since = None;
    let mut turn = 0;
    let end = loop {
        if let Some(end) = tree.end() {
            break Some(end);
        }
        if started.elapsed() > patience {
            break Some(Err(format!("timed out after {:.0} s", patience.as_secs_f64())));
        }
        if listener.is_finished() && silent_since.get_or_insert_with(Instant::now).elapsed() > GRACE
        {
            break None;
        }
        // Ends it, and what it started.
        interrupt.check()?;
        if turn % LOOK_EVERY == 0 {
            look(&tree);
        }
        turn += 1;
        thread::sleep(PAUSE);
    };
    let wall = started.elapsed();
    let cpu_seconds = children_seconds() - cpu_before;
    over.store(true, Ordering::Relaxed);
    drop(tree);
    let heard = listener.join().map_err(|_| Failure::failed("the listener failed".to_string()))?;
    Ok(match (end, heard) {
        // The program's own end first: what the listener complains about is mostly a consequence of
        // it.
        (Some(Err(why)), _) | (_, Err(why)) => Err(why),
        (None, Ok(_)) => Err("it goes on after its output has ended".to_string()),
        (Some(Ok(())), Ok(digest)) => Ok(Run { wall, cpu_seconds, digest }),
    })
}

/// Hears what the program says, in a thread of its own: a full pipe would stop the program.
fn listen(
    line: &Line,
    stdout: Option<ChildStdout>,
    over: &Arc<AtomicBool>,
) -> JoinHandle<Result<u64, String>> {
    let over = Arc::clone(over);
    match (line.socket.clone(), stdout) {
        (Some(socket), _) => thread::spawn(move || redis::drive(&socket, &over)),
        (None, Some(stdout)) => thread::spawn(move || digest(stdout).map_err(|e| reason(&e))),
        (None, None) => thread::spawn(|| Err("its output was not piped".to_string())),
    }
}

/// Sixty-four bits are enough against accidents, which is what a wrong byte is.
fn digest(mut from: impl Read) -> io::Result<u64> {
    let mut digest = DefaultHasher::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(digest.finish()),
            bytes => digest.write(&buffer[..bytes]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(script: &str, patience_ms: u64) -> Result<Run, String> {
        let line = Line::of_shell(script);
        let patience = Duration::from_millis(patience_ms);
        watch(line.command(), &line, patience, &Interrupt::default(), &mut |_| ()).unwrap()
    }

    #[test]
    fn the_same_words_have_the_same_digest() {
        let words =
            run("i=0; while [ $i -lt 9000 ]; do echo word $i; i=$((i+1)); done", 100_000).unwrap();
        // However they come.
        let again = run("sleep 0.01; seq -f 'word %.0f' 0 8999; exit 0", 100_000).unwrap();
        assert_eq!(words.digest, again.digest);
        assert!(words.like(&again).unwrap()["wall_seconds"].as_f64().unwrap() > 0.0);
        let other = run("seq -f 'word %.0f' 1 9000", 100_000).unwrap();
        assert_eq!(other.like(&words).unwrap_err(), "wrong output");
    }

    #[test]
    fn failures_say_why() {
        assert_eq!(run("echo half of it; kill -9 $$", 100_000).unwrap_err(), "killed");
        assert_eq!(run("exit 3", 100_000).unwrap_err(), "ended with exit status: 3");
        let started = Instant::now();
        assert!(run("sleep 1000 & sleep 1000", 100).unwrap_err().starts_with("timed out"));
        assert!(started.elapsed() < Duration::from_secs(500), "a process was left, and waited for");
    }

    #[test]
    fn it_is_looked_at_while_it_runs() {
        let line = Line::of_shell("sleep 2");
        let mut bytes = Vec::new();
        let patience = Duration::from_secs(100);
        let mut look = |tree: &Tree| bytes.push(tree.anonymous_bytes());
        watch(line.command(), &line, patience, &Interrupt::default(), &mut look).unwrap().unwrap();
        assert!(bytes.iter().any(|bytes| *bytes > 0), "{bytes:?}");
    }
}
