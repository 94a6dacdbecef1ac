//! Memory that a run and its processes hold now, as `ps` and `top` show it.
//!
//! Two sources. The kernel says what anonymous memory a process has. An active process's slot says
//! the rest: what of that is compressed, what was written, how many faults it had. Of a dormant
//! process the slot knows only what it could hold at most, so there the kernel's figure stands for
//! all.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};
use uzswap::control::{Counter, Slot, Tree};

use super::sight::waits_for_turn;
use crate::os;
use crate::procfs::{anonymous_bytes, printable};
use crate::size::{grouped, human};
use crate::written;

pub use crate::size::PAGE_BYTES;

/// The state of a process, as far as paging is concerned.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Activity {
    /// Nothing of it is paged yet.
    #[default]
    Dormant,
    Active,
    /// Others have their turn.
    Waits,
}

impl Activity {
    pub fn name(self) -> &'static str {
        match self {
            Activity::Dormant => "dormant",
            Activity::Active => "active",
            Activity::Waits => "waits",
        }
    }
}

/// One process.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ProcessState {
    pub pid: u32,
    #[serde(deserialize_with = "printable_text")]
    pub name: String,
    pub state: Activity,
    /// The mechanism that pages it; none while it is dormant.
    #[serde(deserialize_with = "printable_option")]
    pub mechanism: Option<String>,
    /// Memory of pages as they are, by the kernel's count.
    pub resident_bytes: u64,
    /// Memory of compressed pages, tables included.
    pub pool_bytes: u64,
    /// The part of the pool for copies of pages that were mapped again.
    pub kept_bytes: u64,
    /// Written to the store so far.
    pub written_bytes: u64,
    /// Memory that counts against the limit.
    pub used_bytes: u64,
    /// Memory that it would hold without uzswap.
    pub needed_bytes: u64,
    /// Faults served so far.
    pub faults: u64,
    /// Whether memory can be reclaimed: a process that could not hold much has no thread for it.
    #[serde(rename = "can_reclaim")]
    pub listens: bool,
}

/// One run.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct RunState {
    pub run: u32,
    #[serde(deserialize_with = "printable_words")]
    pub command: Vec<String>,
    pub limit_bytes: u64,
    /// How long it runs.
    #[serde(rename = "seconds", with = "seconds")]
    pub age: Duration,
    pub processes: Vec<ProcessState>,
}

/// The processes of a tree that are there, with their slots. `control_fd`: the control block's
/// file.
pub fn live(tree: &'static Tree, control_fd: i32) -> impl Iterator<Item = (u32, &'static Slot)> {
    tree.translate(control_fd);
    tree.live_slots()
        .filter_map(|s| s.process().map(|pid| (pid, s)))
        .filter(move |(_, s)| !tree.is_gone(s, control_fd))
}

impl ProcessState {
    /// The state of a process; none if it has gone meanwhile.
    pub fn of(pid: u32, slot: &Slot) -> Option<ProcessState> {
        let anonymous = anonymous_bytes(pid)?;
        let mechanism = slot.mechanism();
        let pages =
            |v: &std::sync::atomic::AtomicI64| v.load(Ordering::Relaxed).max(0) as u64 * PAGE_BYTES;
        let is_active = mechanism.is_some();
        let of_pool = |counter| if is_active { slot.get(counter) } else { 0 };
        let pool_bytes = of_pool(Counter::PoolBytes);
        Some(ProcessState {
            pid,
            name: printable(&os::name_of(pid)),
            mechanism: mechanism.map(|m| m.name().to_string()),
            resident_bytes: anonymous.saturating_sub(pool_bytes),
            pool_bytes,
            kept_bytes: of_pool(Counter::KeptBytes),
            written_bytes: written::pages(|counter| slot.get(counter)) * PAGE_BYTES,
            used_bytes: if is_active { pages(&slot.used_pages) } else { anonymous },
            needed_bytes: if is_active { pages(&slot.needed_pages) } else { anonymous },
            faults: slot.get(Counter::Faults),
            listens: slot.orders.has_listener(),
            state: match is_active {
                _ if waits_for_turn(slot) => Activity::Waits,
                true => Activity::Active,
                false => Activity::Dormant,
            },
        })
    }

    /// How many times more it would hold without uzswap.
    pub fn ratio(&self) -> f64 {
        if self.used_bytes == 0 { 1.0 } else { self.needed_bytes as f64 / self.used_bytes as f64 }
    }

    /// The columns that `ps` and `top` both show of it, in this order; `rate`: faults in a second.
    pub fn cells(&self, rate: u64) -> [String; 8] {
        [
            self.pid.to_string(),
            self.name.clone(),
            self.state.name().to_string(),
            human(self.resident_bytes),
            human(self.pool_bytes),
            human(self.written_bytes),
            format!("{:.1}x", self.ratio()),
            grouped(rate),
        ]
    }
}

impl RunState {
    pub fn used_bytes(&self) -> u64 {
        self.processes.iter().map(|p| p.used_bytes).sum()
    }

    /// The name of its program.
    pub fn name(&self) -> &str {
        self.command.first().map_or("", |c| c.rsplit('/').next().unwrap_or(c))
    }
}

/// Names come from other processes, and are shown on terminals.
fn printable_text<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    String::deserialize(from).map(|text| printable(&text))
}

fn printable_words<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    let words = Vec::<String>::deserialize(from)?;
    Ok(words.iter().map(|word| printable(word)).collect())
}

fn printable_option<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    Ok(Option::<String>::deserialize(from)?.map(|text| printable(&text)))
}

/// A time as a number of seconds.
mod seconds {
    use std::time::Duration;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(time.as_secs_f64())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        Duration::try_from_secs_f64(f64::deserialize(from)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::ControlBlock;
    use uzswap::control::{Mechanism, Settings};

    #[test]
    fn states_come_back_as_they_were() {
        let process = ProcessState {
            pid: 7,
            name: "python3".into(),
            mechanism: Some("userfaultfd".into()),
            resident_bytes: 1,
            pool_bytes: 2,
            kept_bytes: 1,
            written_bytes: 3,
            used_bytes: 4,
            needed_bytes: 5,
            faults: 6,
            listens: true,
            state: Activity::Waits,
        };
        let dormant = ProcessState { mechanism: None, state: Activity::Dormant, ..process.clone() };
        let run = RunState {
            run: 6,
            command: vec!["/usr/bin/python3".into(), "x".into()],
            limit_bytes: 1 << 30,
            age: Duration::from_millis(1500),
            processes: vec![process, dormant],
        };
        let line = serde_json::to_string(&run).unwrap();
        assert!(
            line.contains("\"seconds\":1.5,") && line.contains("\"can_reclaim\":true"),
            "{line}"
        );
        assert_eq!(serde_json::from_str::<RunState>(&line).unwrap(), run);
        assert_eq!((run.name(), run.used_bytes()), ("python3", 8));
        assert!(serde_json::from_str::<RunState>("{\"run\":1}").is_err());
        let hostile =
            serde_json::from_str::<RunState>(&line.replace("python3", "py\\u001b[2J")).unwrap();
        assert_eq!(hostile.processes[0].name, "py?[2J");
        assert_eq!(hostile.command[0], "/usr/bin/py?[2J");
    }

    #[test]
    fn a_process_is_what_the_kernel_and_its_slot_say() {
        let block = ControlBlock::create(&Settings::new()).unwrap();
        let (tree, me) = (block.tree(), std::process::id());
        let slot = tree.claim(me).unwrap();
        tree.claim_for_child(me).unwrap();
        slot.set(Counter::PoolBytes, 4096);
        tree.publish(slot, 100, 250);
        let one = |tree: &'static Tree| {
            let all: Vec<_> = live(tree, block.fd()).collect();
            assert_eq!(all.len(), 1, "who is not born yet is not shown");
            ProcessState::of(all[0].0, all[0].1).unwrap()
        };
        let dormant = one(tree);
        assert_eq!((dormant.pid, dormant.state, dormant.pool_bytes), (me, Activity::Dormant, 0));
        assert!(dormant.resident_bytes > 0 && dormant.used_bytes == dormant.resident_bytes);
        slot.mechanism.store(Mechanism::Protect as u32, Ordering::Relaxed);
        let active = one(tree);
        assert_eq!(
            (active.state, active.pool_bytes, active.used_bytes),
            (Activity::Active, 4096, 409_600)
        );
        assert_eq!(active.ratio(), 2.5);
    }
}
