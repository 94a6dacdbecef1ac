//! A queue of numbered pages from which any page can be taken out: two links for each page that
//! there may be.

/// Not in the list; and no neighbour.
const ABSENT: u32 = u32::MAX;
const NONE: u32 = u32::MAX - 1;

pub struct List {
    /// Of each page the one before it and the one after it.
    links: Vec<[u32; 2]>,
    ends: [u32; 2],
    len: usize,
}

impl List {
    /// An empty one, for pages below `lives`.
    pub fn new(lives: usize) -> List {
        List { links: vec![[ABSENT; 2]; lives], ends: [NONE; 2], len: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn contains(&self, page: u32) -> bool {
        self.links[page as usize][0] != ABSENT
    }

    pub fn push(&mut self, page: u32) {
        debug_assert!(!self.contains(page));
        let last = self.ends[1];
        self.links[page as usize] = [last, NONE];
        *self.after(last) = page;
        self.ends[1] = page;
        self.len += 1;
    }

    /// Takes the page out that has been there longest.
    pub fn pop(&mut self) -> Option<u32> {
        let first = self.ends[0];
        (first != NONE).then(|| {
            self.remove(first);
            first
        })
    }

    /// Takes a page out; says whether it was there.
    pub fn remove(&mut self, page: u32) -> bool {
        if !self.contains(page) {
            return false;
        }
        let [before, after] = std::mem::replace(&mut self.links[page as usize], [ABSENT; 2]);
        *self.after(before) = after;
        match after {
            NONE => self.ends[1] = before,
            after => self.links[after as usize][0] = before,
        }
        self.len -= 1;
        true
    }

    /// The link from a page to the next one; of `NONE`, to the first page.
    fn after(&mut self, page: u32) -> &mut u32 {
        match page {
            NONE => &mut self.ends[0],
            page => &mut self.links[page as usize][1],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::Random;
    use std::collections::VecDeque;

    #[test]
    fn it_does_what_a_queue_does() {
        let (mut list, mut model, mut random) = (List::new(20), VecDeque::new(), Random(3));
        for _ in 0..5000 {
            let page = (random.next() >> 20) as u32 % 20;
            match random.next() >> 30 & 3 {
                0 => assert_eq!(list.pop(), model.pop_front()),
                1 => {
                    assert_eq!(list.remove(page), model.contains(&page));
                    model.retain(|p| *p != page);
                }
                _ if !list.contains(page) => {
                    list.push(page);
                    model.push_back(page);
                }
                _ => {}
            }
            assert_eq!(list.len(), model.len());
        }
        while let Some(page) = list.pop() {
            assert_eq!(model.pop_front(), Some(page));
        }
        assert!(model.is_empty());
    }
}
