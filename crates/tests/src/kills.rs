//! Kills processes of a running job, picked at random: what a build, a batch system or the OOM
//! killer of somebody else may do.
//!
//! The job's first process and its children are spared: uzswap itself and the script that it runs,
//! or the script alone. So is a program by name: whoever starts all the others, for instance, or
//! their number would grow with every new start.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::Group;

/// How many to kill, how fast, and which.
#[derive(Clone, Copy, Debug)]
pub struct Kills {
    pub count: u32,
    /// The longest pause before the next one.
    pub pause: Duration,
    pub seed: u64,
    /// The name of the programs to spare beside the first.
    pub spared: &'static str,
}

/// Kills that go on.
#[derive(Debug)]
pub(crate) struct Killer {
    plan: Kills,
    random: u64,
    next: Instant,
    pub done: u32,
}

impl Killer {
    pub fn new(plan: Kills) -> Killer {
        Killer { plan, random: plan.seed | 1, next: Instant::now(), done: 0 }
    }

    fn random(&mut self) -> u64 {
        // xorshift64
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    /// Kills a member of the group, if it is time.
    pub fn turn(&mut self, group: &Group, first: u32) {
        if self.done >= self.plan.count || Instant::now() < self.next {
            return;
        }
        let mut members = group.members();
        members.retain(|pid| {
            *pid != first
                && status(*pid)
                    .is_some_and(|(name, parent)| parent != first && name != self.plan.spared)
        });
        if members.is_empty() {
            return;
        }
        let chosen = members[self.random() as usize % members.len()];
        let killed = Pid::from_raw(chosen as i32).map(|pid| kill_process(pid, Signal::KILL));
        self.done += u32::from(killed == Some(Ok(())));
        self.next =
            Instant::now() + self.plan.pause.mul_f64(self.random() as f64 / u64::MAX as f64);
    }
}

/// Name and parent of a process.
fn status(pid: u32) -> Option<(String, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may contain anything.
    let (begin, end) = (stat.find('(')? + 1, stat.rfind(')')?);
    let parent = stat[end + 1..].split_whitespace().nth(1)?.parse().ok()?;
    Some((stat[begin..end].to_string(), parent))
}
