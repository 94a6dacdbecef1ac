//! A run, as its server and its governor see it: the processes, and the memory that they share.

use std::ffi::OsString;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;

use uzswap::control::{Slot, Tree};

use super::state::{self, PAGE_BYTES, ProcessState, RunState};
use crate::procfs::beginning;

/// The most bytes of a command line that are told: as many as the kernel allows in one argument. A
/// byte takes six in JSON at most, so a reply has room for it beside a full table of processes.
const COMMAND_BYTES: usize = 128 << 10;
/// Stands for the words of a command line that are not told.
const MORE: &str = "...";
/// So many looks in a row find nobody before a run is over. From its exec until the library has
/// started a process has no slot, or one without a lock: for some milliseconds, or for seconds on
/// a machine that is busy, and looks are 200 ms apart.
const LOOKS_ALONE: u32 = 15;

/// One `uzswap run` and its processes.
#[derive(Clone)]
pub struct Run {
    /// The process id by which it is named: that of `uzswap run`, also where that has become the
    /// program.
    pub id: u32,
    pub tree: &'static Tree,
    pub control_fd: i32,
    /// See [`words`].
    pub command: Vec<String>,
    pub started: Instant,
}

/// The words of a command line, as far as they are told: a reply that is too long would be none.
pub fn words(command: &[OsString]) -> Vec<String> {
    let (mut words, mut left) = (Vec::new(), COMMAND_BYTES);
    for word in command {
        let word = word.to_string_lossy();
        let told = beginning(&word, left);
        if left > 0 && (!told.is_empty() || word.is_empty()) {
            words.push(told.to_string());
        }
        if left == 0 || told.len() < word.len() {
            words.push(MORE.to_string());
            break;
        }
        // A word has its end, too.
        left = left.saturating_sub(told.len() + 1);
    }
    words
}

/// The limit, and the memory that nobody holds.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    pub limit_pages: u64,
    pub free_pages: u64,
}

impl Run {
    pub fn state(&self) -> RunState {
        let limit_pages = self.tree.limit_pages.load(Ordering::Relaxed).max(0) as u64;
        RunState {
            run: self.id,
            command: self.command.clone(),
            limit_bytes: limit_pages * PAGE_BYTES,
            age: self.started.elapsed(),
            processes: self.live().filter_map(|(pid, slot)| ProcessState::of(pid, slot)).collect(),
        }
    }

    pub fn room(&self) -> Room {
        let pages = |v: &AtomicI64| v.load(Ordering::Relaxed).max(0) as u64;
        let limit_pages = pages(&self.tree.limit_pages);
        Room { limit_pages, free_pages: limit_pages.saturating_sub(pages(&self.tree.used_pages)) }
    }

    /// The processes that are there.
    pub fn live(&self) -> impl Iterator<Item = (u32, &'static Slot)> {
        state::live(self.tree, self.control_fd)
    }

    /// Waits until the last process has gone; `pause` is between two looks.
    pub fn outlast(&self, mut pause: impl FnMut()) {
        let mut looks_alone = 0;
        while looks_alone < LOOKS_ALONE {
            looks_alone = if self.live().next().is_some() { 0 } else { looks_alone + 1 };
            pause();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::protocol::{REPLY_BYTES, reply_line};
    use super::*;
    use crate::os::ControlBlock;
    use uzswap::control::Settings;

    #[test]
    fn a_process_that_executes_another_program_has_not_gone() {
        // Kept for ever: its mapping is.
        let block: &'static ControlBlock =
            Box::leak(Box::new(ControlBlock::create(&Settings::new()).unwrap()));
        let (tree, control_fd) = (block.tree(), block.fd());
        let run = Run { id: 1, tree, control_fd, command: Vec::new(), started: Instant::now() };
        let (mut looks, mut slot) = (0, None);
        run.outlast(|| {
            looks += 1;
            match looks + 1 {
                LOOKS_ALONE => slot = tree.claim(std::process::id()),
                n if n == LOOKS_ALONE + 2 => slot.iter().for_each(|s| tree.retire(s, s.id())),
                _ => {}
            }
        });
        assert_eq!(looks, 2 * LOOKS_ALONE + 1, "first it has no slot, then it is gone");
        let slot = tree.claim(std::process::id()).unwrap();
        // It has a lock while it is there, and the exec gives it back.
        let is_there = |there: bool| slot.is_locked.store((!there).into(), Ordering::Release);
        is_there(false);
        assert!(run.live().next().is_none());
        let mut looks = 0;
        run.outlast(|| {
            looks += 1;
            is_there((LOOKS_ALONE..2 * LOOKS_ALONE).contains(&(looks + 1)));
        });
        assert_eq!(looks, 3 * LOOKS_ALONE - 1, "first it is between two programs, then killed");
        is_there(true);
        run.outlast(|| tree.retire(slot, slot.id()));
    }

    #[test]
    fn the_longest_command_line_has_room_in_a_reply() {
        let of = |word: &str, count: usize| words(&vec![OsString::from(word); count]);
        assert_eq!(of("prog", 2), ["prog", "prog"]);
        assert_eq!(of("", 2), ["", ""]);
        assert_eq!(words(&[]), [""; 0]);
        // The longest in JSON: a byte that it escapes, in one word and in words of their own.
        for (word, count) in
            [("\x01".repeat(2 << 20), 1), ("\x01".into(), 3 << 20), ("".into(), 6 << 20)]
        {
            let command = of(&word, count);
            assert_eq!(command.last().map(String::as_str), Some(MORE));
            let run = RunState { command, ..RunState::default() };
            assert!(reply_line(Ok(run)).len() < REPLY_BYTES / 2, "{count}");
        }
        // A character is told whole or not at all.
        let told = of(&"\u{e4}".repeat(COMMAND_BYTES), 1);
        assert_eq!((told[0].len(), told.len()), (COMMAND_BYTES, 2));
        let told = of(&format!("x{}", "\u{e4}".repeat(COMMAND_BYTES)), 1);
        assert_eq!(told[0].len(), COMMAND_BYTES - 1);
        // One that has just room is whole.
        assert_eq!(of(&"x".repeat(COMMAND_BYTES), 1).len(), 1);
    }
}
