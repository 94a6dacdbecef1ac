//! A cache over servers of the tests' own, and the pages that were put into it: one for each kind
//! of server.

use super::*;
use crate::store::extents::Leases;

/// The pages of one filling.
pub const PAGES: u64 = 600;
/// How often a server that is right is asked again that was too late for the short patience.
const AGAIN_MOST: usize = 20;
/// The pause before that: twice as long as a server that was too late is left alone.
const PAUSE: std::time::Duration = std::time::Duration::from_secs(2);

pub struct World<H, S: Store> {
    pub servers: Vec<H>,
    pub cache: SwapCache<S>,
    pub leases: &'static Leases,
    pub pages: Vec<(SwapEntry, Page)>,
}

impl<H, S: Store> World<H, S> {
    pub fn new(servers: Vec<H>, store: S, leases: &'static Leases) -> Self {
        World { servers, cache: over(store, 64 << 10), leases, pages: Vec::new() }
    }

    /// Puts so many pages in, and nearly all of them out to the servers.
    pub fn fill(&mut self, tag: u64) {
        for i in 0..PAGES {
            let page = any_page(tag * PAGES + i);
            if let Ok(entry) = self.cache.swap_out(&page) {
                self.pages.push((entry, page));
            }
        }
        self.cache.shrink(1 << 20);
    }

    /// Fills until each cluster is at all of its servers, which are right. On a busy machine one
    /// may answer later than it is waited for; then a cluster has one copy, and so have those after
    /// it, or none.
    pub fn fill_all_copies(&mut self, tag: u64) {
        let kept = self.pages.len();
        for _ in 0..AGAIN_MOST {
            let before = self.cache.remote_counts().lone_copies;
            self.fill(tag);
            let has_failed = self.cache.store_failure().is_some();
            if self.cache.remote_counts().lone_copies == before && !has_failed {
                return;
            }
            self.pages.drain(kept..).for_each(|(entry, _)| self.cache.free(entry));
            self.cache.retry_store();
            std::thread::sleep(PAUSE);
        }
        panic!("a server is too late each time");
    }

    /// Loads every page: how many came, and how many could not be had. None is wrong.
    pub fn load(&self) -> (u64, u64) {
        let (mut came, mut lost) = (0, 0);
        for (entry, page) in &self.pages {
            let mut loaded = [0xee; PAGE_SIZE];
            match self.cache.swap_in(*entry, &mut loaded) {
                Ok(()) => {
                    assert!(loaded == *page, "wrong bytes");
                    came += 1;
                }
                Err(LoadError::NotFound) => panic!("it is there"),
                Err(_) => lost += 1,
            }
        }
        (came, lost)
    }

    /// Loads until every page has come, from servers that are right; says how many there are.
    pub fn load_all(&self) -> u64 {
        let mut loads = (0..AGAIN_MOST).map(|_| self.load());
        loads.find(|(_, lost)| *lost == 0).expect("the servers have all of them").0
    }

    /// Drops all, and what is in the readers' buffers is of no cluster any more.
    pub fn drop_all(&mut self) {
        self.pages.drain(..).for_each(|(entry, _)| self.cache.free(entry));
    }
}
