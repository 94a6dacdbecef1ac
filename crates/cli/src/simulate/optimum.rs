//! The optimum (Belady's MIN): out goes the page whose next touch is farthest. Two passes: one
//! backwards, for when each page is touched next, and the replay.

use std::collections::BinaryHeap;

use super::sequence::{Event, Policy, Sequence};

/// There is no next touch.
const NEVER: u32 = u32::MAX;

/// For each event of a touch, the event by which the page is touched next.
pub fn next_touches(sequence: &Sequence) -> Vec<u32> {
    let mut next = vec![NEVER; sequence.len()];
    let mut of_page = vec![NEVER; sequence.lives];
    for (at, event) in sequence.events().rev() {
        if let Event::Touch(page) = event {
            next[at] = std::mem::replace(&mut of_page[page as usize], at as u32);
        }
    }
    next
}

pub struct Optimum<'a> {
    next: &'a [u32],
    /// Of each page when it is touched next; 0: it is not in memory (nobody is touched *next* by
    /// the first event).
    due: Vec<u32>,
    /// The pages in memory by their next touch, and entries that are not true any more.
    queue: BinaryHeap<(u32, u32)>,
    there: usize,
    pages: usize,
}

impl<'a> Optimum<'a> {
    pub fn new(next: &'a [u32], lives: usize, pages: usize) -> Optimum<'a> {
        Optimum { next, due: vec![0; lives], queue: BinaryHeap::new(), there: 0, pages }
    }

    fn evict(&mut self) {
        while let Some((due, page)) = self.queue.pop() {
            if self.due[page as usize] == due {
                self.due[page as usize] = 0;
                self.there -= 1;
                return;
            }
        }
    }
}

impl Policy for Optimum<'_> {
    fn touch(&mut self, page: u32, at: usize) -> bool {
        let is_there = self.due[page as usize] != 0;
        if !is_there {
            if self.there == self.pages {
                self.evict();
            }
            self.there += 1;
        }
        self.due[page as usize] = self.next[at];
        self.queue.push((self.next[at], page));
        // Touches leave entries behind them: once they are most of the queue, they go.
        if self.queue.len() > 4 * self.pages + 1024 {
            let due = &self.due;
            self.queue.retain(|(at, page)| due[*page as usize] == *at);
        }
        is_there
    }

    fn forget(&mut self, page: u32) {
        if std::mem::take(&mut self.due[page as usize]) != 0 {
            self.there -= 1;
        }
    }
}
