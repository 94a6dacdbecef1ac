//! Single steps of the evictor, for tests that want one at a certain moment: in the life of a
//! process they come when memory is short.

use super::World;
use crate::pager::evict::Reclaimed;
use crate::pager::sweep::Victims;
use crate::policy::{BATCH_PAGES, WINDOW_LEAST_PAGES};
use crate::region::PageState;

impl World {
    /// The hand takes pages: runs by MOVE and, if `together`, those that lie alone with one flush.
    pub fn sweep(&self, together: bool) -> Reclaimed {
        let pager = &self.pager;
        let active = pager.active().expect("active");
        let mut s = pager.enter();
        let wants_lone = together && pager.look_for_lone(&mut s, active);
        let mut victims = Victims::new(wants_lone);
        let swept = pager.sweep(&mut s, active, &mut victims, BATCH_PAGES);
        let (s, left) = pager.leave_together(s, active, &mut victims.lone);
        drop(s);
        Reclaimed { taken: swept.taken + left.taken, ..left }
    }

    /// Pages all of the program's memory out, as far as the cache.
    pub fn page_out(&self) {
        let (mut at, end) = (self.at(0), self.at(self.spec.pages));
        while at < end {
            at = self.pager.page_out(at, end);
        }
    }

    /// Gives up to `most` of limbo's oldest pages to the cache.
    pub fn age_out(&self, most: usize) {
        let pager = &self.pager;
        drop(pager.age_out(pager.enter(), pager.active().expect("active"), most));
    }

    /// Keeps the frames of the pages in limbo for a window that comes in.
    pub fn stock(&self) -> bool {
        let pager = &self.pager;
        let mut s = pager.enter();
        s.limbo.want_stock();
        let active = pager.active().expect("active");
        let (s, ..) = pager.age_out_batch(s, active, BATCH_PAGES, true);
        const { assert!(BATCH_PAGES > WINDOW_LEAST_PAGES) };
        s.limbo.has_stock()
    }

    /// Forks where the kernel has no memory for a child.
    pub fn fork_in_vain(&self) {
        let mut s = self.pager.lock();
        let guard = self.pager.prepare_fork(&mut s, None);
        self.pager.after_fork_parent(&mut s, guard, false);
    }

    /// How many of the program's pages are in a state.
    pub fn count(&self, is: impl Fn(PageState) -> bool) -> usize {
        let state = |page: usize| {
            self.pager.table.get(self.at(page)).map_or(PageState::None, |e| e.state())
        };
        (0..self.spec.pages).filter(|page| is(state(*page))).count()
    }
}
