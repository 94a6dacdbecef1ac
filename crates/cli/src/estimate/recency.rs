//! Pages in the order in which they were last used. The *distance* of a page is how many others
//! were used since it was (Mattson et al., Evaluation techniques for storage hierarchies, 1970). A
//! memory of M pages from which the one used longest ago goes misses a page whose distance is M or
//! more.
//!
//! ```text
//!   places   0    1    2    3    4    5    6        a page that is used goes to the end; who was there is gone
//!            a    -    c    -    d    b    a2       distance of c: those behind it, counted by a Fenwick tree
//! ```

use std::collections::BTreeMap;

/// A page: its process and its number.
pub type Page = (u32, u64);

/// The fewest places: with fewer, pages would be renumbered all the time.
const PLACES_LEAST: usize = 1024;

pub struct Recency {
    places: BTreeMap<Page, usize>,
    pages: Vec<Option<Page>>,
    /// Sums of pages at places, as Fenwick has them (A new data structure for cumulative frequency
    /// tables, 1994).
    sums: Vec<u32>,
    next: usize,
}

impl Recency {
    pub fn new() -> Recency {
        Recency {
            places: BTreeMap::new(),
            pages: vec![None; PLACES_LEAST],
            sums: vec![0; PLACES_LEAST + 1],
            next: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// The page of the same process that follows `page`.
    pub fn following(&self, page: Page) -> Option<Page> {
        let (next, _) = self.places.range((page.0, page.1 + 1)..).next()?;
        (next.0 == page.0).then_some(*next)
    }

    /// A page is used. Returns its distance, if it is known.
    pub fn touch(&mut self, page: Page) -> Option<usize> {
        if self.next == self.pages.len() {
            // Places of pages that went are used again.
            self.retain(|_| true);
        }
        let place = self.next;
        self.next += 1;
        let before = self.places.insert(page, place);
        let distance = before.map(|before| {
            self.clear(before);
            self.len() - 1 - self.count_to(before)
        });
        self.pages[place] = Some(page);
        self.add(place, 1);
        distance
    }

    /// The pages of a process in `[from, to)` are no more. Returns how many there were.
    pub fn remove(&mut self, process: u32, from: u64, to: u64) -> usize {
        let mut taken = self.places.split_off(&(process, from));
        self.places.append(&mut taken.split_off(&(process, to)));
        taken.values().for_each(|place| self.clear(*place));
        taken.len()
    }

    /// Forgets the pages that are not to be kept.
    pub fn retain(&mut self, keep: impl Fn(&Page) -> bool) {
        self.pages.retain(|page| page.as_ref().is_some_and(&keep));
        self.number();
    }

    /// `child` has the pages of `parent`, and they are as old.
    pub fn fork(&mut self, parent: u32, child: u32) {
        let of_parent = self.places.range((parent, 0)..(parent, u64::MAX));
        let mut of_child: BTreeMap<usize, u64> =
            of_parent.map(|(page, place)| (*place, page.1)).collect();
        if of_child.is_empty() {
            return;
        }
        self.remove(child, 0, u64::MAX);
        // All pages keep their order; each of the child's lies behind its parent's.
        let old = std::mem::take(&mut self.pages);
        self.pages = (old.iter().enumerate())
            .filter_map(|(place, page)| page.map(|page| (place, page)))
            .flat_map(|(place, page)| {
                [Some(page), of_child.remove(&place).map(|page| (child, page))]
            })
            .flatten()
            .map(Some)
            .collect();
        self.number();
    }

    /// Pages at places up to and with this one.
    fn count_to(&self, place: usize) -> usize {
        let mut at = place + 1;
        let mut sum = 0;
        while at > 0 {
            sum += self.sums[at] as usize;
            at &= at - 1;
        }
        sum
    }

    fn clear(&mut self, place: usize) {
        self.pages[place] = None;
        self.add(place, u32::MAX);
    }

    /// Adds one, or by wrapping around takes one away.
    fn add(&mut self, place: usize, what: u32) {
        let mut at = place + 1;
        while at < self.sums.len() {
            self.sums[at] = self.sums[at].wrapping_add(what);
            at += at & at.wrapping_neg();
        }
    }

    /// Gives the pages the places in which they are, and leaves as many free.
    fn number(&mut self) {
        self.next = self.pages.len();
        let places = (2 * self.next).max(PLACES_LEAST);
        self.pages.resize(places, None);
        self.sums = vec![0; places + 1];
        self.places.clear();
        for place in 0..self.next {
            self.places.insert(self.pages[place].expect("those before next are pages"), place);
            self.add(place, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::Random;

    /// A naive model of it: a list.
    #[derive(Default)]
    struct Model(Vec<Page>);

    impl Model {
        fn touch(&mut self, page: Page) -> Option<usize> {
            let at = self.0.iter().position(|p| *p == page);
            let distance = at.map(|at| self.0.len() - 1 - at);
            at.map(|at| self.0.remove(at));
            self.0.push(page);
            distance
        }

        fn remove(&mut self, process: u32, from: u64, to: u64) -> usize {
            let before = self.0.len();
            self.0.retain(|page| page.0 != process || !(from..to).contains(&page.1));
            before - self.0.len()
        }

        fn fork(&mut self, parent: u32, child: u32) {
            if self.0.iter().all(|page| page.0 != parent) {
                return;
            }
            self.remove(child, 0, u64::MAX);
            let old = std::mem::take(&mut self.0);
            for page in old {
                self.0.push(page);
                if page.0 == parent {
                    self.0.push((child, page.1));
                }
            }
        }
    }

    #[test]
    fn distances_are_those_of_a_list() {
        for seed in 1..6 {
            let (mut random, mut recency, mut model) =
                (Random(seed), Recency::new(), Model::default());
            for step in 0..20_000 {
                let (process, page) = (random.below(3) as u32, random.below(200));
                match random.below(200) {
                    0 => {
                        let to = page + random.below(50);
                        assert_eq!(
                            recency.remove(process, page, to),
                            model.remove(process, page, to)
                        );
                    }
                    2 => {
                        recency.retain(|page| page.1 % 64 != 7);
                        model.0.retain(|page| page.1 % 64 != 7);
                    }
                    1 => {
                        let child = (process + 1) % 3;
                        recency.fork(process, child);
                        model.fork(process, child);
                    }
                    _ => {
                        let page = (process, page);
                        assert_eq!(
                            recency.touch(page),
                            model.touch(page),
                            "seed {seed}, step {step}"
                        );
                    }
                }
                assert_eq!(recency.len(), model.0.len());
            }
        }
    }
}
