//! The naive model, which knows what each page must hold, and the random events beside it: of the
//! program, the kernel and the evictor.

use core::sync::atomic::Ordering;

use super::{READ_WRITE, STRETCH_PAGES, Spec, Thread, Touch, World};
use crate::control::Counter;
use crate::control::orders::ALL_PAGES;
use crate::pager::BringIn;
use crate::store::testing::Fault;
use crate::sys::PAGE_SIZE;
use crate::testing::{Choices, any_page, noise};

type Bytes = [u8; PAGE_SIZE];

/// The mapping and the contents that a page must have.
#[derive(Clone)]
struct Expected {
    is_mapped: bool,
    prot: u32,
    /// `None`: zeros.
    bytes: Option<Box<Bytes>>,
}

const ZEROS: Bytes = [0; PAGE_SIZE];
const UNMAPPED: Expected = Expected { is_mapped: false, prot: 0, bytes: None };
const PROTS: [u32; 8] = [READ_WRITE, READ_WRITE, READ_WRITE, READ_WRITE, READ_WRITE, 1, 7, 0];

impl Expected {
    fn bytes(&self) -> &Bytes {
        self.bytes.as_deref().unwrap_or(&ZEROS)
    }

    fn allows(&self, is_write: bool) -> bool {
        self.is_mapped && self.prot != 0 && (!is_write || self.prot & 2 != 0)
    }
}

/// Counts of a run of events.
#[derive(Default, Debug)]
pub struct Sum {
    pub touches: u64,
    pub lost: u64,
    pub calls: u64,
    pub forks: u64,
    /// Counts of [`WAYS`].
    pub ways: [u64; WAYS.len()],
}

/// Counters of the ways by which pages go and come.
pub const WAYS: [Counter; 14] = [
    Counter::FirstTouches,
    Counter::LimboHits,
    Counter::QuickReturns,
    Counter::Loads,
    Counter::FaultAroundPages,
    Counter::AheadPages,
    Counter::HeldPages,
    Counter::CleanEvictions,
    Counter::LoneEvictions,
    Counter::EvictionsRefused,
    Counter::ReadBackPages,
    Counter::OwnedPages,
    Counter::HugeFaults,
    Counter::HugeEvictions,
];

struct Model<'w> {
    world: &'w World,
    thread: Thread<'w>,
    /// A guest, which claims nothing: see [`World::guest`].
    guest: Thread<'w>,
    /// The first page of its part of the program, and what each page must hold.
    first: usize,
    pages: Vec<Expected>,
    /// Loads may fail now.
    is_faulty: bool,
    /// The page after the last touch, where sequential touches go on.
    next: usize,
    /// One access in so many is a write.
    one_writes: u64,
    sum: Sum,
}

/// Runs `operations` random events in a new world. `forks`: some are forks, for which there must be
/// only one thread.
pub fn run(spec: Spec, random: &mut impl Choices, operations: u64, forks: bool) -> Sum {
    let world = World::new(spec);
    let mut model = Model::new(&world, 0, spec.pages);
    for _ in 0..operations {
        if random.is_over() {
            break;
        }
        match random.below(1000) {
            kind @ 0..930 => model.event(kind, random),
            930..980 => model.evict(random),
            980..998 => model.circumstances(random),
            998 if forks && random.below(4) == 0 => model.fork(),
            _ => world.check(),
        }
    }
    if random.below(2) == 0 {
        model.calm_down();
        world.end_paging();
    }
    model.end();
    world.check_empty();
    model.sum.ways = WAYS.map(|way| world.pager.slot().get(way));
    model.sum
}

/// Runs one thread's part of a world: `operations` random events of the program there, and at last
/// a look at all of it. No other thread may use these pages; all share the world.
pub fn run_part(
    world: &World,
    first: usize,
    pages: usize,
    random: &mut impl Choices,
    operations: u64,
) -> Sum {
    let mut model = Model::new(world, first, pages);
    for _ in 0..operations {
        let kind = random.below(930);
        model.event(kind, random);
    }
    model.end();
    model.sum
}

impl<'w> Model<'w> {
    fn new(world: &'w World, first: usize, pages: usize) -> Model<'w> {
        let mut model = Model {
            world,
            thread: world.thread(),
            guest: world.guest(),
            first,
            pages: vec![UNMAPPED; pages],
            is_faulty: false,
            next: 0,
            one_writes: 3,
            sum: Sum::default(),
        };
        model.map(0, model.pages.len() / 2, READ_WRITE);
        model
    }
}

impl Model<'_> {
    /// Runs an event of the program, of 930 kinds.
    fn event(&mut self, kind: u64, random: &mut impl Choices) {
        match kind {
            0..750 => self.touch(random),
            750..850 => self.call(random),
            850..900 => self.change(random),
            _ => self.advise(random),
        }
    }

    fn at(&self, page: usize) -> usize {
        self.world.at(self.first + page)
    }

    /// A random run of pages, mostly a short one.
    fn stretch(&self, random: &mut impl Choices, most: usize) -> (usize, usize) {
        let len = match random.below(8) {
            0 => 1 + random.index(most),
            _ => 1 + random.index(most.min(16)),
        };
        let len = len.min(self.pages.len());
        (random.index(self.pages.len() - len + 1), len)
    }

    /// Touches one page, or some in order.
    fn touch(&mut self, random: &mut impl Choices) {
        let count = if random.below(64) == 0 { 1 + random.index(256) } else { 1 };
        let mut page = match random.below(4) {
            0 => self.next,
            1 => random.index(self.pages.len() / 8),
            _ => random.index(self.pages.len()),
        };
        let is_write = random.below(self.one_writes) == 0;
        let is_guest = random.below(16) == 0;
        for _ in 0..count {
            let value = random.next();
            let change = (is_write).then_some((random.below(4) == 0, value));
            self.touch_page(page % self.pages.len(), change, is_guest);
            page += 1;
        }
        self.next = page;
    }

    /// Reads a page, or writes a word of it, or all of it.
    fn touch_page(&mut self, page: usize, change: Option<(bool, u64)>, is_guest: bool) {
        let addr = self.at(page);
        let expected = &mut self.pages[page];
        let thread = if is_guest { &mut self.guest } else { &mut self.thread };
        let touch = thread.access(addr + 100, change.is_some(), |bytes| {
            assert!(bytes == expected.bytes(), "page {page}");
            let Some((all, value)) = change else { return };
            if all {
                *bytes = any_page(value);
            } else {
                let word = value as usize % (PAGE_SIZE / 8) * 8;
                bytes[word..word + 8].copy_from_slice(&value.to_le_bytes());
            }
            expected.bytes = Some(Box::new(*bytes));
        });
        self.sum.touches += 1;
        match touch {
            Touch::Done => assert!(expected.allows(change.is_some()), "page {page}"),
            Touch::Forbidden => assert!(!expected.allows(change.is_some()), "page {page}"),
            Touch::Lost => {
                assert!(self.is_faulty, "page {page}");
                self.sum.lost += 1;
            }
        }
    }

    /// A system call with a buffer.
    fn call(&mut self, random: &mut impl Choices) {
        let (page, len) = self.stretch(random, 100);
        let is_write = random.below(self.one_writes) == 0;
        let pages = &mut self.pages[page..page + len];
        if !pages.iter().all(|p| p.allows(is_write)) {
            return;
        }
        let value = random.next();
        let made = self.thread.call(self.world.at(self.first + page), len, is_write, |i, bytes| {
            let expected = &mut pages[i];
            assert!(bytes == expected.bytes(), "page {}", page + i);
            if is_write {
                bytes[8..16].copy_from_slice(&value.to_le_bytes());
                expected.bytes = Some(Box::new(*bytes));
            }
        });
        assert!(made || self.is_faulty);
        self.sum.calls += 1;
    }

    fn map(&mut self, page: usize, len: usize, prot: u32) {
        self.world.map(self.first + page, len, prot);
        self.pages[page..page + len].fill(Expected { is_mapped: true, prot, bytes: None });
    }

    /// Changes the program's mappings.
    fn change(&mut self, random: &mut impl Choices) {
        let (page, len) = self.stretch(random, self.pages.len() / 4);
        let all_mapped = self.pages[page..page + len].iter().all(|p| p.is_mapped);
        let prot = PROTS[random.index(PROTS.len())];
        match random.below(8) {
            0 | 1 if self.pages.len() >= 2 * STRETCH_PAGES && random.below(8) == 0 => {
                let stretches = self.pages.len() / STRETCH_PAGES;
                let first = random.index(stretches);
                self.map(first * STRETCH_PAGES, STRETCH_PAGES, READ_WRITE);
            }
            0 | 1 if !all_mapped || random.below(8) == 0 => self.map(page, len, prot),
            2 if random.below(2) == 0 => {
                self.world.unmap(self.first + page, len);
                self.pages[page..page + len].fill(UNMAPPED);
            }
            // The program has another use for this memory, and the pager no longer manages it.
            2 if all_mapped => {
                // A kernel without memory, or a store that fails, may keep the memory under the
                // pager.
                if !self.world.end_paging_of(self.first + page, len) {
                    self.calm_down();
                    assert!(self.world.end_paging_of(self.first + page, len));
                }
                (page..page + len).for_each(|page| self.touch_page(page, None, false));
            }
            3 if all_mapped => {
                self.world.protect(self.first + page, len, prot);
                self.pages[page..page + len].iter_mut().for_each(|p| p.prot = prot);
            }
            4 if all_mapped => {
                self.world.discard(self.first + page, len);
                self.pages[page..page + len].iter_mut().for_each(|p| p.bytes = None);
            }
            5 | 6 if all_mapped => self.remap(random, page, len),
            7 if all_mapped && self.is_one_range(page, len) => {
                let new_len = 1 + random.index(2 * len);
                let free = self.pages[page + len..].iter().take_while(|p| !p.is_mapped).count();
                let new_len = new_len.min(len + free);
                if new_len != len {
                    let prot = self.pages[page].prot;
                    self.world.resize(self.first + page, len, new_len, prot);
                    let (low, high) = (len.min(new_len), len.max(new_len));
                    let new = Expected { is_mapped: true, prot, bytes: None };
                    self.pages[page + low..page + high].fill(if new_len > len {
                        new
                    } else {
                        UNMAPPED
                    });
                }
            }
            _ => {}
        }
    }

    fn is_one_range(&self, page: usize, len: usize) -> bool {
        let range = self.world.pager.ranges.find(self.at(page));
        range.is_some_and(|r| self.at(page + len) <= r.end)
    }

    fn remap(&mut self, random: &mut impl Choices, from: usize, len: usize) {
        let to = random.index(self.pages.len() - len + 1);
        if to + len > from && from + len > to || !self.is_one_range(from, len) {
            return;
        }
        let keeps = random.below(4) == 0;
        self.world.remap(self.first + from, self.first + to, len, keeps);
        for i in 0..len {
            let was = self.pages[from + i].clone();
            self.pages[from + i] =
                if keeps { Expected { bytes: None, ..was.clone() } } else { UNMAPPED };
            self.pages[to + i] = was;
        }
    }

    /// Lets the evictor, or a user outside, want memory.
    fn evict(&mut self, random: &mut impl Choices) {
        let pager = &self.world.pager;
        match random.below(16) {
            0..11 => _ = pager.evict_to_watermark(),
            11 => pager.watch_rest(),
            12 if random.below(4) == 0 => {
                let pages = if random.below(4) == 0 { ALL_PAGES } else { random.below(300) };
                let mut reclaim = pager.begin_reclaim(pages);
                (0..4).any(|_| pager.reclaim_portion(&mut reclaim));
            }
            12 => _ = pager.bring_in_portion(&mut BringIn::default()),
            13 => _ = pager.recompress_idle(),
            14 if random.below(4) == 0 => pager.give_buffers_back(),
            15 => pager.publish_gauges(),
            _ => pager.balance_pool(),
        }
    }

    /// Lets the program say what it needs.
    fn advise(&mut self, random: &mut impl Choices) {
        let (page, len) = self.stretch(random, 300);
        let (mut at, end) = (self.at(page), self.at(page + len));
        let pager = &self.world.pager;
        match random.below(4) {
            0 => pager.make_cold(at, end),
            1 => {
                while at < end {
                    at = pager.page_out(at, end);
                }
            }
            2 => {
                let mut left = pager.wanted_most();
                while at < end && left > 0 {
                    let (next, brought) = pager.bring_in(at, end, left);
                    (at, left) = (next, left - brought.max(1));
                }
            }
            _ if self.pages[page..page + len].iter().all(|p| p.allows(false)) => {
                let on = random.below(3) == 0 && len < 40;
                self.world.lock_in_memory(&self.thread, self.first + page, len, on);
            }
            _ => {}
        }
    }

    /// Changes the circumstances of the process: its limit, trouble of the kernel and the store,
    /// its turn.
    fn circumstances(&mut self, random: &mut impl Choices) {
        let (world, spec) = (self.world, self.world.spec);
        let pager = &world.pager;
        match random.below(11) {
            9 | 10 => self.one_writes = [2, 10, 100, 1000][random.index(4)],
            0 | 1 => {
                let limit = spec.limit_pages / 2 + random.below(spec.limit_pages as u64) as i64;
                pager.tree().limit_pages.store(limit, Ordering::Relaxed);
            }
            2 | 3 => world.fake().set_trouble([0, 0, 3, 20, 100][random.index(5)]),
            4 | 5 => {
                let Some(store) = world.store else { return };
                let fault =
                    [Fault::Never, Fault::Never, Fault::Every(3), Fault::From(5)][random.index(4)];
                self.is_faulty = fault != Fault::Never;
                store.set_fault(fault);
                store.set_late(random.below(2) == 0);
                if !self.is_faulty {
                    pager.active().expect("active").cache.retry_store();
                }
            }
            6 => match random.below(2) {
                0 => pager.slot().turn.pause(u64::MAX),
                _ => pager.slot().turn.resume(),
            },
            7 => pager.set_unshared(),
            // Many pages that neither pool nor store takes.
            _ => {
                let page = random.index(self.pages.len() - 200);
                for page in page..page + random.index(200) {
                    let bytes = noise(random.next());
                    let expected = &mut self.pages[page];
                    let touch =
                        self.thread.access(world.at(self.first + page), true, |b| *b = bytes);
                    assert!(touch != Touch::Lost || self.is_faulty);
                    if touch == Touch::Done {
                        expected.bytes = Some(Box::new(bytes));
                    }
                }
            }
        }
    }

    /// Forks a child that looks at all that it has, and writes some of it.
    fn fork(&mut self) {
        let (pages, world) = (&self.pages, self.world);
        if self.is_faulty {
            return;
        }
        let child = |thread: &mut Thread<'_>| {
            world.pager.evict_to_watermark();
            for (page, expected) in pages.iter().enumerate() {
                let is_write = page % 3 == 0;
                let touch = thread.access(world.at(page), is_write, |bytes| {
                    assert!(bytes == expected.bytes(), "page {page} of the child");
                    bytes[0] ^= is_write as u8;
                });
                assert_eq!(
                    touch == Touch::Done,
                    expected.allows(is_write),
                    "page {page} of the child"
                );
            }
        };
        assert!(world.fork(&mut self.thread, child), "a child came to a bad end");
        self.sum.forks += 1;
    }

    /// Makes the kernel and the store work again.
    fn calm_down(&mut self) {
        self.world.fake().set_trouble(0);
        if core::mem::take(&mut self.is_faulty)
            && let Some(store) = self.world.store
        {
            store.set_fault(Fault::Never);
            self.world.pager.active().expect("active").cache.retry_store();
        }
    }

    /// Looks at all pages at last, and unmaps everything.
    fn end(&mut self) {
        self.calm_down();
        for page in 0..self.pages.len() {
            self.touch_page(page, None, false);
        }
        self.world.unmap(self.first, self.pages.len());
    }
}

/// Runs a thread that shares `pages` with others: on each page it counts in a word of its own, and
/// checks the count.
pub fn count_in_words(
    world: &World,
    pages: core::ops::Range<usize>,
    me: usize,
    random: &mut impl Choices,
    operations: u64,
) {
    let mut thread = world.thread();
    let mut counts = vec![0u64; pages.len()];
    let place = me * 8..me * 8 + 8;
    for _ in 0..operations {
        let len = if random.below(16) == 0 { pages.len() / 2 } else { 1 };
        let first = random.index(pages.len() - len);
        let is_write = random.below(4) == 0;
        let mut look = |i: usize, bytes: &mut Bytes| {
            let word = u64::from_le_bytes(bytes[place.clone()].try_into().expect("a word"));
            assert_eq!(word, counts[i], "page {i} of thread {me}");
            counts[i] += is_write as u64;
            bytes[place.clone()].copy_from_slice(&counts[i].to_le_bytes());
        };
        if random.below(8) == 0 {
            let is_made = thread
                .call(world.at(pages.start + first), len, is_write, |i, b| look(first + i, b));
            assert!(is_made, "nothing is lost");
            continue;
        }
        for i in first..first + len {
            let touch = thread.access(world.at(pages.start + i), is_write, |bytes| look(i, bytes));
            assert_eq!(touch, Touch::Done);
        }
    }
    for (i, count) in counts.iter().enumerate() {
        thread.access(world.at(pages.start + i), false, |bytes| {
            assert_eq!(bytes[place.clone()], count.to_le_bytes(), "page {i} of thread {me}");
        });
    }
}
