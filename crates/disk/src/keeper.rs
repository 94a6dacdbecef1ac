//! The thread that does what nobody waits for: the clock, the limit, recompression, idle pages, a
//! store that has failed.
//!
//! zram leaves all of this to scripts of its users. Here it happens by itself: idle pages are
//! compressed again more densely while no request comes, and written to the store once they were
//! idle for long enough, if that is wanted. Each round takes a bounded time, so that all of this
//! goes on while much is compressed.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use uzswap::cache::Which;

use crate::disk::Disk;

/// The time between two rounds: within a second a disk that was emptied has given its memory back.
const ROUND: Duration = Duration::from_millis(200);
/// The most time of a round for compressing again, half of one processor; and as much again for
/// idle pages.
const PACKING: Duration = Duration::from_millis(100);
/// Pages compressed again between two looks at the clock.
const PACKED_AT_ONCE: usize = 64;
/// Idle pages compressed again or written between two looks at the clock. They are many, because
/// each such search begins at the first page of the disk.
const IDLE_AT_ONCE: usize = 512;
/// The time between two searches for idle pages, if the last one has dealt with all.
const IDLE_ROUND: Duration = Duration::from_secs(5);
/// A store that failed is tried again after this time: its disk may have room by then.
const STORE_AGAIN: Duration = Duration::from_secs(5);
/// A disk with a store is over its limit if it takes more than a sixteenth above: that much it
/// takes now and then, for buffers.
const OVER_PART: u64 = 16;
/// The most bytes that one round moves to the store because of that: a fast disk writes them in the
/// time of a round's other work.
const MOVED_BYTES: u64 = 16 << 20;
/// After so many rounds without a request the buffers are given back, and again after as many more:
/// idle pages may have needed them meanwhile.
const RESTS_AFTER: u32 = 25;
/// The part of its memory, of 100, at which a disk is said to be nearly full.
const NEARLY_FULL_PERCENT: u64 = 90;
/// The part of its memory, of 100, below which a disk must have fallen before that is said again.
const SAID_AGAIN_PERCENT: u64 = 80;

/// The limit of writing back.
struct Limit {
    /// Pages that may still be written back, without those that somebody is about to write.
    left: Option<u64>,
    /// How often it was set.
    settings: u64,
}

/// Pages that one writer may write back: nobody else can spend them meanwhile.
struct Grant {
    pages: u64,
    /// The setting of the limit that they are of.
    setting: u64,
}

/// The settings and flags that the keeper and the orders share.
pub struct Upkeep {
    /// For orders and idleness together.
    write_back_limit: Mutex<Limit>,
    /// Seconds after which a page is idle; 0: never.
    idle_after: AtomicU64,
    is_stopped: Mutex<bool>,
    stops: Condvar,
    is_nearly_full: AtomicBool,
    /// The error of a store that has failed and taken nothing since; 0: it works.
    store_errno: AtomicI32,
}

impl Upkeep {
    pub fn new(write_back_limit: Option<u64>, idle_after_seconds: u64) -> Upkeep {
        Upkeep {
            write_back_limit: Mutex::new(Limit { left: write_back_limit, settings: 0 }),
            idle_after: AtomicU64::new(idle_after_seconds),
            is_stopped: Mutex::new(false),
            stops: Condvar::new(),
            is_nearly_full: AtomicBool::new(false),
            store_errno: AtomicI32::new(0),
        }
    }

    fn limit(&self) -> MutexGuard<'_, Limit> {
        self.write_back_limit.lock().expect("a panic ends the process")
    }

    /// Sets the limit from now on: pages that somebody is about to write are of the limit before.
    pub fn set_write_back_limit(&self, pages: Option<u64>) {
        let mut limit = self.limit();
        *limit = Limit { left: pages, settings: limit.settings + 1 };
    }

    pub fn set_idle_after(&self, seconds: u64) {
        self.idle_after.store(seconds, Ordering::Relaxed);
    }

    /// Lines for `stats`.
    pub fn stats(&self) -> String {
        let idle_after = self.idle_after.load(Ordering::Relaxed);
        let left = self.limit().left;
        let limit = left.map_or(String::new(), |pages| format!("writeback_limit {pages}\n"));
        let store_errno = self.store_errno.load(Ordering::Relaxed);
        format!("idle_after {idle_after}\n{limit}store_errno {store_errno}\n")
    }

    /// Writes pages back, as many as the limit leaves; says how many.
    pub fn write_back(&self, disk: &Disk, which: Which, max_pages: u64) -> u64 {
        let mut written = 0;
        loop {
            let grant = self.grant(max_pages - written);
            let most = usize::try_from(grant.pages).unwrap_or(usize::MAX);
            let pages = disk.cache().write_back_which(which, most) as u64;
            self.give_back(&grant, pages);
            written += pages;
            // After all that was granted there may be more by now: another writer has needed less
            // than it was granted.
            if pages == 0 || pages < grant.pages || written >= max_pages {
                return written;
            }
        }
    }

    /// Spends up to `most` pages of the limit before they are written.
    fn grant(&self, most: u64) -> Grant {
        let mut limit = self.limit();
        let pages = limit.left.map_or(most, |left| left.min(most));
        limit.left = limit.left.map(|left| left - pages);
        Grant { pages, setting: limit.settings }
    }

    /// Ends a grant of which `written` pages were needed. A limit that was set since does not get
    /// the rest.
    fn give_back(&self, grant: &Grant, written: u64) {
        let mut limit = self.limit();
        if limit.settings == grant.setting {
            limit.left = limit.left.map(|left| left + grant.pages.saturating_sub(written));
        }
    }

    /// Ends the keeper.
    pub fn stop(&self) {
        *self.is_stopped.lock().expect("a panic ends the process") = true;
        self.stops.notify_all();
    }

    /// Waits for the next round; true: there is none.
    fn wait(&self) -> bool {
        let stopped = self.is_stopped.lock().expect("a panic ends the process");
        *self.stops.wait_timeout_while(stopped, ROUND, |s| !*s).expect("a panic ends the process").0
    }
}

/// Facts that one round keeps for the next.
struct Rounds {
    requests: u64,
    quiet: u32,
    looked_for_idle: Instant,
    /// There was no time for all idle pages.
    has_more_idle: bool,
    /// The last time at which a store that failed was tried again, or was seen to fail first.
    tried_store: Instant,
    /// Clusters that it had taken by then.
    store_writes: u64,
}

impl Rounds {
    fn new() -> Rounds {
        let now = Instant::now();
        Rounds {
            requests: 0,
            quiet: 0,
            looked_for_idle: now,
            has_more_idle: false,
            tried_store: now,
            store_writes: 0,
        }
    }
}

/// Starts the keeper. `say` has the lines that its user should see.
pub fn start(
    disk: Arc<Disk>,
    upkeep: Arc<Upkeep>,
    say: impl Fn(&str) + Send + 'static,
) -> std::io::Result<thread::JoinHandle<()>> {
    let keep = move || {
        let mut rounds = Rounds::new();
        while !upkeep.wait() {
            round(&disk, &upkeep, &mut rounds, &say);
        }
    };
    thread::Builder::new().name("uzswap-keeper".to_string()).spawn(keep)
}

fn round(disk: &Disk, upkeep: &Upkeep, rounds: &mut Rounds, say: &impl Fn(&str)) {
    let cache = disk.cache();
    cache.set_now(disk.second());
    disk.divide_memory();
    tend_store(disk, upkeep, rounds);
    keep_limit(disk);
    warn(disk, upkeep, say);
    if rounds.has_more_idle || rounds.looked_for_idle.elapsed() >= IDLE_ROUND {
        rounds.looked_for_idle = Instant::now();
        rounds.has_more_idle = look_for_idle(disk, upkeep, disk.second(), PACKING);
    }
    cache.train();
    let t = &disk.traffic;
    let requests = t.reads.load(Ordering::Relaxed) + t.writes.load(Ordering::Relaxed);
    rounds.quiet = if requests == rounds.requests { rounds.quiet + 1 } else { 0 };
    rounds.requests = requests;
    cache.set_leisure(rounds.quiet > 0);
    let began = Instant::now();
    while began.elapsed() < PACKING && cache.recompress(PACKED_AT_ONCE) > 0 {}
    let is_empty = cache.counters().stored_pages == 0;
    if is_empty {
        cache.give_tables_back();
    }
    let is_quiet = rounds.quiet > 0 && rounds.quiet.is_multiple_of(RESTS_AFTER);
    if is_quiet || is_empty && rounds.quiet == 1 {
        cache.give_buffers_back();
    }
}

/// Lets a store that failed be tried again now and then. It works again once it has taken something
/// since, and not failed for as long.
fn tend_store(disk: &Disk, upkeep: &Upkeep, rounds: &mut Rounds) {
    let cache = disk.cache();
    let failure = if disk.has_store() { cache.store_failure() } else { None };
    let is_known = upkeep.store_errno.load(Ordering::Relaxed) != 0;
    let is_time = rounds.tried_store.elapsed() >= STORE_AGAIN;
    match failure {
        Some(errno) => {
            upkeep.store_errno.store(errno.0, Ordering::Relaxed);
            if !is_known || is_time {
                rounds.tried_store = Instant::now();
                rounds.store_writes = cache.counters().cluster_writes;
            }
            if is_known && is_time {
                cache.retry_store();
            }
        }
        None if is_known && is_time && cache.counters().cluster_writes > rounds.store_writes => {
            upkeep.store_errno.store(0, Ordering::Relaxed);
            upkeep.is_nearly_full.store(false, Ordering::Relaxed);
        }
        None => {}
    }
}

/// Moves pages above the limit to the store. Writers do that by the way, but a limit that was
/// lowered holds also where nobody writes.
fn keep_limit(disk: &Disk) {
    let (cache, most) = (disk.cache(), disk.memory_bytes());
    let over = disk.used_bytes().saturating_sub(most);
    if over > most / OVER_PART && disk.has_store() && cache.store_failure().is_none() {
        cache.shrink_used(over.min(MOVED_BYTES) as usize);
    }
}

/// Says once that little memory is left, before a client hears that there is none.
fn warn(disk: &Disk, upkeep: &Upkeep, say: &impl Fn(&str)) {
    if disk.has_store() && upkeep.store_errno.load(Ordering::Relaxed) == 0 {
        return;
    }
    let (used, all) = (disk.used_bytes(), disk.memory_bytes());
    let is_above = |percent| u128::from(used) * 100 >= u128::from(all) * u128::from(percent);
    if !is_above(SAID_AGAIN_PERCENT) {
        upkeep.is_nearly_full.store(false, Ordering::Relaxed);
    } else if is_above(NEARLY_FULL_PERCENT) && !upkeep.is_nearly_full.swap(true, Ordering::Relaxed)
    {
        let mib = |bytes: u64| bytes >> 20;
        say(&format!(
            "{} of {} MiB of memory are used: when all are, writes fail for lack of space \
             (ENOSPC); 'set memory=SIZE' allows more",
            mib(used),
            mib(all)
        ));
    }
}

/// Deals with the pages that are idle at second `now`, for some time; says whether there are more.
fn look_for_idle(disk: &Disk, upkeep: &Upkeep, now: u32, time: Duration) -> bool {
    let idle_after = upkeep.idle_after.load(Ordering::Relaxed);
    let latest = u64::from(now).checked_sub(idle_after).filter(|at| *at > 0);
    let Some(latest) = latest.filter(|_| idle_after > 0) else { return false };
    disk.cache().mark_idle(latest as u32);
    let idle = Which { idle: true, ..Which::default() };
    let began = Instant::now();
    loop {
        let done = if disk.has_store() {
            upkeep.write_back(disk, idle, IDLE_AT_ONCE as u64)
        } else {
            // An order may take minutes, and has idle pages first: a round does not wait for it.
            let tried = disk.cache().try_recompress_which(idle, IDLE_AT_ONCE);
            let Some(pages) = tried else { return true };
            pages as u64
        };
        if done < IDLE_AT_ONCE as u64 {
            return false;
        }
        if began.elapsed() >= time {
            return true;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::array;

    use uzswap::cache::Page;
    use uzswap::sys::{Errno, fd, file, socket};

    use super::*;
    use crate::disk::{DiskError, PAGE_BYTES};
    use crate::tests::{disk, disk_over, random};

    fn page(n: u64) -> Page {
        let mut next = random(n + 1);
        array::from_fn(|_| next(256) as u8)
    }

    fn check(disk: &Disk, pages: u64) {
        let mut bytes = [0; PAGE_BYTES as usize];
        for n in 0..pages {
            disk.read(n * PAGE_BYTES, &mut bytes).unwrap();
            assert!(bytes == page(n), "page {n}");
        }
        disk.cache().check();
    }

    #[test]
    fn a_store_that_failed_is_tried_again() {
        const PAGES: u64 = 512;
        let disk = disk_over(true, PAGES * PAGE_BYTES, 1 << 20);
        let (upkeep, mut rounds) = (Upkeep::new(None, 0), Rounds::new());
        let mut pass = |time| {
            rounds.tried_store -= time;
            round(&disk, &upkeep, &mut rounds, &|_| {});
            upkeep
                .stats()
                .lines()
                .find_map(|line| line.strip_prefix("store_errno "))
                .unwrap()
                .to_string()
        };
        let write = |n: u64| disk.write(n * PAGE_BYTES, &page(n));
        // A file that is always full takes the place of the store's.
        let mut descriptors = Vec::new();
        disk.cache().for_each_descriptor(|fd| descriptors.push(fd));
        let kept = file::duplicate(descriptors[0]).unwrap();
        socket::replace(descriptors[0], fd::open_read_write(c"/dev/full").unwrap()).unwrap();
        let stored = (0..PAGES).find(|n| write(*n).is_err()).expect("there is no room");
        assert_eq!(pass(Duration::ZERO), Errno::ENOSPC.0.to_string());
        socket::replace(descriptors[0], kept).unwrap();
        assert_eq!(write(stored), Err(DiskError::Full), "nothing is tried at once");
        assert_eq!(pass(STORE_AGAIN), Errno::ENOSPC.0.to_string(), "nothing was written yet");
        assert!((stored..PAGES).all(|n| write(n).is_ok()));
        assert_eq!(pass(STORE_AGAIN), "0");
        check(&disk, PAGES);
    }

    #[test]
    fn a_limit_that_is_lowered_holds_though_nobody_writes() {
        const PAGES: u64 = 2048;
        const MOST: u64 = 2 << 20;
        for has_store in [true, false] {
            let disk = disk_over(has_store, PAGES * PAGE_BYTES, 16 << 20);
            (0..PAGES).for_each(|n| disk.write(n * PAGE_BYTES, &page(n)).unwrap());
            let (upkeep, mut rounds) = (Upkeep::new(None, 0), Rounds::new());
            let mut pass = || round(&disk, &upkeep, &mut rounds, &|_| {});
            pass();
            assert!(disk.used_bytes() > PAGES * PAGE_BYTES, "there is room");
            disk.set_memory_bytes(MOST);
            // The need of the writes counts from the next round on.
            (0..3).for_each(|_| pass());
            let is_kept = disk.used_bytes() <= MOST + MOST / OVER_PART;
            assert_eq!(is_kept, disk.has_store(), "{} bytes", disk.used_bytes());
            check(&disk, PAGES);
        }
    }

    #[test]
    fn more_idle_pages_than_a_round_has_time_for_are_left_to_the_next() {
        const PAGES: u64 = 2 * IDLE_AT_ONCE as u64 + 10;
        let half = |n: u64| -> Page {
            let bytes = page(n);
            array::from_fn(|at| if at < bytes.len() / 2 { bytes[at] } else { n as u8 })
        };
        let idle = Which { idle: true, ..Which::default() };
        for has_store in [false, true] {
            let disk = disk_over(has_store, PAGES * PAGE_BYTES, 16 << 20);
            (0..PAGES).for_each(|n| disk.write(n * PAGE_BYTES, &half(n)).unwrap());
            let upkeep = Upkeep::new(None, 60);
            let look = |now| look_for_idle(&disk, &upkeep, now, Duration::ZERO);
            assert!(!look(60), "no page is as old");
            assert!(look(61) && look(61));
            assert!(!look(61), "there were ten");
            assert_eq!(disk.cache().recompress_which(idle, usize::MAX), 0, "all were dealt with");
            let at_once = disk.cache().counters().written_back_pages;
            assert_eq!(at_once, if disk.has_store() { PAGES } else { 0 });
        }
    }

    #[test]
    fn writers_side_by_side_spend_the_limit_once() {
        const PAGES: u64 = 2048;
        const LIMIT: u64 = PAGES / 2;
        let disk = disk_over(true, PAGES * PAGE_BYTES, 16 << 20);
        (0..PAGES).for_each(|n| disk.write(n * PAGE_BYTES, &page(n)).unwrap());
        let upkeep = Upkeep::new(Some(LIMIT), 0);
        let both = std::sync::Barrier::new(2);
        let write = || {
            both.wait();
            upkeep.write_back(&disk, Which::default(), LIMIT)
        };
        let written: u64 = thread::scope(|scope| {
            [scope.spawn(write), scope.spawn(write)]
                .map(|writer| writer.join().unwrap())
                .iter()
                .sum()
        });
        assert_eq!((written, disk.cache().counters().written_back_pages), (LIMIT, LIMIT));
        assert!(upkeep.stats().contains("\nwriteback_limit 0\n"));
    }

    #[test]
    fn what_a_writer_does_not_need_of_the_limit_is_for_others_unless_it_was_set_since() {
        let upkeep = Upkeep::new(Some(100), 0);
        let [first, second] = [80, 80].map(|most| upkeep.grant(most));
        assert_eq!((first.pages, second.pages), (80, 20));
        upkeep.give_back(&first, 30);
        assert_eq!(upkeep.limit().left, Some(50));
        upkeep.set_write_back_limit(Some(7));
        upkeep.give_back(&second, 0);
        assert_eq!(upkeep.limit().left, Some(7));
        let third = upkeep.grant(5);
        upkeep.set_write_back_limit(None);
        upkeep.give_back(&third, 0);
        assert_eq!(upkeep.limit().left, None);
        assert_eq!(upkeep.grant(9).pages, 9);
    }

    #[test]
    fn rounds_go_on_at_once_where_idle_pages_are_left() {
        let disk = disk(1 << 20, 4 << 20);
        let (upkeep, mut rounds) = (Upkeep::new(None, 60), Rounds::new());
        rounds.has_more_idle = true;
        rounds.looked_for_idle -= Duration::from_secs(1);
        let before = rounds.looked_for_idle;
        round(&disk, &upkeep, &mut rounds, &|_| {});
        assert!(rounds.looked_for_idle > before && !rounds.has_more_idle, "it looked, for all");
    }

    #[test]
    fn buffers_that_idle_pages_took_in_the_quiet_go_back_again() {
        let disk = disk(1 << 20, 4 << 20);
        (0..64).for_each(|n| disk.write(n * PAGE_BYTES, &page(n)).unwrap());
        let (upkeep, mut rounds) = (Upkeep::new(None, 0), Rounds::new());
        let mut rest = || {
            for _ in 0..RESTS_AFTER {
                round(&disk, &upkeep, &mut rounds, &|_| {});
            }
            disk.cache().footprint_bytes()
        };
        let resting = rest();
        assert!(disk.cache().recompress_which(Which::default(), 8) > 0);
        assert!(disk.cache().footprint_bytes() > resting);
        assert_eq!(rest(), resting);
    }
}
