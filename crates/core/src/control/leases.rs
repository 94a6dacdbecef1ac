//! Leases of extents over the life of a process. Its children may read its extents after it is
//! gone, so an extent is free when its owner and all descendants that may read it are gone.

use core::sync::atomic::Ordering;

use super::slot::ID_END;
use super::{Slot, Tree};

impl Slot {
    /// The process of the slot, as its extents name it.
    pub fn lease_owner(&self) -> u32 {
        self.id() & (ID_END - 1)
    }
}

impl Tree {
    /// Before a fork: lets the child read the parent's extents, and those that the parent may read.
    pub fn inherit_leases(&self, parent: &Slot, child: Option<&Slot>) {
        let Some(child) = child else { return self.keeps_leases.store(1, Ordering::Release) };
        let own = parent.lease_owner();
        let inherited =
            parent.reads.iter().map(|r| r.load(Ordering::Relaxed)).filter(|id| *id != 0);
        let mut places = child.reads.iter();
        for id in inherited.chain([own]) {
            match places.next() {
                Some(place) => place.store(id, Ordering::Release),
                None => self.keeps_leases.store(1, Ordering::Release),
            }
        }
    }

    /// Whether a process that `is_there` may still read, or write, the extents of the process that
    /// had this id.
    pub fn is_lease_wanted(&self, owner: u32, is_there: impl Fn(&Slot) -> bool) -> bool {
        let may_use = |s: &Slot| {
            s.lease_owner() == owner || s.reads.iter().any(|r| r.load(Ordering::Acquire) == owner)
        };
        let keeps = self.keeps_leases.load(Ordering::Acquire) != 0;
        self.live_slots().any(|s| (keeps || may_use(s)) && is_there(s))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::slot::ANCESTORS;
    use crate::control::zeroed_tree as tree;

    #[test]
    fn extents_are_wanted_as_long_as_their_process_or_whom_it_forked_lives() {
        let t = tree();
        let is_wanted = |owner| t.is_lease_wanted(owner, |_| true);
        let parent = t.claim(1).unwrap();
        let owner = parent.lease_owner();
        let child = t.claim_for_child(1).unwrap();
        t.inherit_leases(parent, Some(child));
        let grandchild = t.claim_for_child(2).unwrap();
        t.inherit_leases(child, Some(grandchild));
        let second = child.lease_owner();
        t.retire(parent, parent.id());
        t.retire(child, child.id());
        assert!(is_wanted(owner) && is_wanted(second));
        t.retire(grandchild, grandchild.id());
        assert!(!is_wanted(owner) && !is_wanted(second));
        let next = t.claim(3).unwrap();
        assert!(std::ptr::eq(next, parent) && !is_wanted(owner), "a slot begins anew");
        // A line of forks that is too long to be noted, and a child that found no slot.
        let mut last = next;
        for pid in 4..4 + ANCESTORS as u32 {
            let child = t.claim_for_child(pid).unwrap();
            t.inherit_leases(last, Some(child));
            assert!(!is_wanted(owner));
            last = child;
        }
        t.inherit_leases(last, Some(t.claim(99).unwrap()));
        assert!(is_wanted(owner));
        t.keeps_leases.store(0, Ordering::Release);
        t.inherit_leases(last, None);
        assert!(is_wanted(owner) && !t.is_lease_wanted(owner, |_| false));
    }
}
