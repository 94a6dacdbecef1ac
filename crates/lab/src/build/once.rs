//! One build, from its start to its end, watched: how long it takes, what it costs, and what it
//! makes.

use std::fs::File;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::super::process::{Interrupt, Tree, children_major_faults, children_seconds};
use super::super::scratch::Scratch;
use super::source::{Objects, Source};
use uzswap_cli::Failure;
use uzswap_cli::program::reason;

/// The outcome of a build.
#[derive(Clone, Copy, Debug)]
pub struct Build {
    pub wall: Duration,
    /// Of all its processes.
    pub cpu_seconds: f64,
    /// Of all its processes, as the kernel counts them.
    pub major_faults: u64,
    /// The most private anonymous memory that all of them together were seen to have.
    pub peak_bytes: u64,
    pub objects: Objects,
}

impl Build {
    /// Its figures, if it made what the other one did.
    pub fn like(&self, other: &Build) -> Result<Value, String> {
        if self.objects.count != other.objects.count {
            return Err(format!(
                "{} objects instead of {}",
                self.objects.count, other.objects.count
            ));
        }
        match self.objects == other.objects {
            true => Ok(self.figures()),
            false => Err("wrong objects".to_string()),
        }
    }

    pub fn figures(&self) -> Value {
        json!({
            "wall_seconds": self.wall.as_secs_f64(),
            "cpu_seconds": self.cpu_seconds,
            "cpu_percent": self.cpu_seconds / self.wall.as_secs_f64() * 100.0,
            "major_faults": self.major_faults,
            "peak_anonymous_bytes": self.peak_bytes,
            "objects": self.objects.count,
        })
    }
}

/// Runs the command, which is a build of the source, on the tree as it was unpacked; leaves it like
/// that. The inner error says how it failed.
pub fn once(
    source: &Source,
    mut command: Command,
    scratch: &Scratch,
    patience: Duration,
    interrupt: &Interrupt,
    look: &mut dyn FnMut(),
) -> Result<Result<Build, String>, Failure> {
    const PAUSE: Duration = Duration::from_millis(10);
    const LOOK_EVERY: u32 = 5;
    let complaints = scratch.path().join("stderr");
    let stderr = File::create(&complaints)
        .map_err(|e| Failure::environment(format!("{}: {}", complaints.display(), reason(&e))))?;
    let before = (children_seconds(), children_major_faults());
    let started = Instant::now();
    let mut tree =
        match Tree::start(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr)) {
            Ok(tree) => tree,
            Err(why) => return Ok(Err(why)),
        };
    let (mut peak_bytes, mut turn) = (0, 0);
    let end = loop {
        if let Some(end) = tree.end() {
            break end;
        }
        if started.elapsed() > patience {
            break Err(format!("timed out after {:.0} s", patience.as_secs_f64()));
        }
        // Ends it, and what it started.
        interrupt.check()?;
        if turn % LOOK_EVERY == 0 {
            peak_bytes = tree.anonymous_bytes().max(peak_bytes);
            look();
        }
        turn += 1;
        thread::sleep(PAUSE);
    };
    let wall = started.elapsed();
    drop(tree);
    let (cpu_seconds, major_faults) =
        (children_seconds() - before.0, children_major_faults() - before.1);
    let objects = source.objects();
    let restored = source.restore();
    let build =
        end.map_err(|why| match first_complaint(&std::fs::read(&complaints).unwrap_or_default()) {
            Some(complaint) => format!("{why}: {complaint}"),
            None => why,
        });
    Ok(build.and_then(|()| {
        restored?;
        Ok(Build { wall, cpu_seconds, major_faults, peak_bytes, objects: objects? })
    }))
}

/// The first line that speaks of an error: the last one is make's, which only says that there was
/// one.
fn first_complaint(stderr: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(stderr);
    let complaint = text
        .lines()
        .find(|line| ["rror", "atal", "uzswap:"].iter().any(|word| line.contains(word)));
    complaint.map(String::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_are_compared_by_what_they_made() {
        let build = |count, digest| Build {
            wall: Duration::from_secs(2),
            cpu_seconds: 3.0,
            major_faults: 1,
            peak_bytes: 4096,
            objects: Objects { count, digest },
        };
        assert_eq!(build(3, 5).like(&build(3, 5)).unwrap()["cpu_percent"], 150.0);
        assert_eq!(build(2, 5).like(&build(3, 5)).unwrap_err(), "2 objects instead of 3");
        assert_eq!(build(3, 4).like(&build(3, 5)).unwrap_err(), "wrong objects");
    }

    #[test]
    fn the_first_complaint_is_shown() {
        let stderr =
            b"a.c: warning: b\ncc: fatal error: Killed signal terminated program cc1\nmake: *** \
              Error 1\n";
        assert_eq!(
            first_complaint(stderr).unwrap(),
            "cc: fatal error: Killed signal terminated program cc1"
        );
        assert_eq!(first_complaint(b""), None);
    }
}
