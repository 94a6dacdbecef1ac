//! The races of the pager, on a kernel of the tests' own: many schedules of a few threads, where
//! each attempt to take a lock, and each page that the kernel changes, is a point at which another
//! thread may run.
//! ```text
//! RUSTFLAGS="--cfg shuttle" cargo test -p uzswap --release --features testing \
//!     --test shuttle_pager
//! ```
//! `UZSWAP_SCHEDULES` sets how many schedules each test tries.
//!
//! Every test looks at contents, at what must hold when nobody is in the pager, and whether words
//! say what the kernel has.
#![cfg(shuttle)]

use std::sync::atomic::Ordering;

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::Arc;
use shuttle::thread;
use shuttle::{Config, Runner};
use uzswap::control::Counter;
use uzswap::region::PageState;
use uzswap::testing::pager::events::{count_in_words, run_part};
use uzswap::testing::pager::{READ_WRITE, Spec, Touch, World};
use uzswap::testing::{Random, page};

/// Pages of the program.
const PAGES: usize = 48;
/// More slots than the process keeps, however short memory is.
const SPEC: Spec = Spec { slots: 128, ..Spec::roomy(PAGES) };

/// Tries many schedules: random ones, and ones with few changes at unlikely places.
fn schedules(model: impl Fn() + Send + Sync + Clone + 'static) {
    let number =
        std::env::var("UZSWAP_SCHEDULES").ok().and_then(|text| text.parse().ok()).unwrap_or(100);
    let config = || {
        let mut config = Config::new();
        config.stack_size = 1 << 20;
        // Many times what the longest takes, and soon over where a claim never ends.
        config.max_steps = shuttle::MaxSteps::FailAfter(200_000);
        config
    };
    Runner::new(RandomScheduler::new(number), config()).run(model.clone());
    Runner::new(PctScheduler::new(4, number), config()).run(model);
}

/// Tries the schedules of a model with each mechanism.
fn schedules_of_each(model: impl Fn(Spec) + Send + Sync + Clone + 'static) {
    for spec in [SPEC, Spec { hides: true, ..SPEC }] {
        let model = model.clone();
        schedules(move || model(spec));
    }
}

/// Runs one schedule, to show that a test is not for nothing.
fn alone(model: impl Fn() + Send + Sync + 'static) {
    let mut config = Config::new();
    config.stack_size = 1 << 20;
    Runner::new(RandomScheduler::new(1), config).run(model);
}

type Shared = Arc<World>;

fn spawn<R>(
    world: &Shared,
    work: impl FnOnce(&World) -> R + Send + 'static,
) -> thread::JoinHandle<()> {
    let world = world.clone();
    thread::spawn(move || {
        let _ = work(&world);
    })
}

fn join<const N: usize>(threads: [thread::JoinHandle<()>; N]) {
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// The contents of page `i` in generation `generation`.
fn content(i: usize, generation: u64) -> [u8; 4096] {
    page(i as u64 * 1000 + generation)
}

/// A world with all pages written, generation 0, and resident.
fn world(spec: Spec) -> Shared {
    let world = World::new(spec);
    world.map(0, PAGES, READ_WRITE);
    let mut t = world.thread();
    (0..PAGES).for_each(|i| {
        assert_eq!(t.access(world.at(i), true, |bytes| *bytes = content(i, 0)), Touch::Done);
    });
    Arc::new(world)
}

/// Takes all pages out, as far as the cache.
fn page_out(world: &World) {
    world.page_out();
    assert_eq!(world.count(|s| matches!(s, PageState::Stored(_))), PAGES);
}

/// Takes all pages out, as far as limbo.
fn into_limbo(world: &World) {
    (0..8).for_each(|_| _ = world.sweep(false));
    assert!(world.count(|s| matches!(s, PageState::Limbo(_))) > PAGES / 2);
}

/// Reads pages, which must be as at first.
fn read(world: &World, pages: impl Iterator<Item = usize>) {
    let mut t = world.thread();
    for i in pages {
        assert_eq!(
            t.access(world.at(i), false, |b| assert!(*b == content(i, 0), "page {i}")),
            Touch::Done
        );
    }
}

/// Adds to a byte of each of `pages`, which nobody else writes, and returns to it twice.
fn write(world: &World, pages: impl Iterator<Item = usize> + Clone) {
    let mut t = world.thread();
    for generation in 0..2 {
        for i in pages.clone() {
            let touch = t.access(world.at(i), true, |b| {
                assert!(*b == content(i, generation), "page {i} in generation {generation}");
                *b = content(i, generation + 1);
            });
            assert_eq!(touch, Touch::Done);
        }
    }
    for i in pages {
        t.access(world.at(i), false, |b| assert!(*b == content(i, 2), "page {i} at last"));
    }
}

/// System calls that write a buffer of `pages` pages.
fn calls(world: &World, first: usize, pages: usize) {
    let mut t = world.thread();
    for generation in 0..3 {
        let made = t.call(world.at(first), pages, true, |i, b| {
            assert!(
                *b == content(first + i, generation),
                "page {} of a call {generation}",
                first + i
            );
            *b = content(first + i, generation + 1);
        });
        assert!(made);
    }
}

/// Sweeps, and what follows.
fn evict(world: &World, together: bool, age: bool) {
    for _ in 0..4 {
        world.sweep(together);
        if age {
            world.age_out(16);
        }
    }
}

/// The pages in `0..n` of which only every third is there, so that the others lie alone.
fn scattered() -> Shared {
    let world = world(SPEC);
    (0..PAGES).filter(|i| i % 3 == 2).for_each(|i| world.discard(i, 1));
    world
}

#[test]
fn faults_of_many_threads_on_the_same_pages() {
    schedules_of_each(|spec| {
        let world = world(spec);
        page_out(&world);
        let one = spawn(&world, |w| read(w, 0..12));
        let two = spawn(&world, |w| read(w, (0..12).rev()));
        let three = spawn(&world, |w| write(w, 12..18));
        join([one, two, three]);
        world.check();
    });
}

#[test]
fn faults_against_moves_out_and_ageing() {
    schedules_of_each(|spec| {
        let world = world(spec);
        let one = spawn(&world, |w| write(w, (0..24).step_by(2)));
        let two = spawn(&world, |w| read(w, (1..24).step_by(2)));
        let evictor = spawn(&world, |w| evict(w, false, true));
        let other = spawn(&world, |w| evict(w, false, false));
        join([one, two, evictor, other]);
        world.check();
    });
}

#[test]
fn faults_and_calls_between_pages_that_are_hidden_by_one_call() {
    schedules(|| {
        let world = world(Spec { hides: true, ..SPEC });
        page_out(&world);
        // From the last to the first, so that no page brings neighbours along.
        read(&world, (0..PAGES).step_by(2).rev());
        let one = spawn(&world, |w| write(w, (1..12).step_by(4)));
        let two = spawn(&world, |w| calls(w, 13, 2));
        let three = spawn(&world, |w| w.discard(24, 8));
        let evictor = spawn(&world, |w| evict(w, false, true));
        let other = spawn(&world, |w| evict(w, false, false));
        join([one, two, three, evictor, other]);
        world.check();
        // The kernel has mappings enough: a page that is there is shown.
        assert_eq!(world.calls_again.load(Ordering::Relaxed), 0);
        read(&world, [0, 18, 19, 40].into_iter());
    });
}

#[test]
fn faults_of_pages_in_limbo_against_ageing() {
    schedules_of_each(|spec| {
        let world = world(spec);
        into_limbo(&world);
        let one = spawn(&world, |w| write(w, 0..8));
        let two = spawn(&world, |w| read(w, 8..20));
        let age = spawn(&world, |w| (0..3).for_each(|_| w.age_out(16)));
        let other = spawn(&world, |w| (0..3).for_each(|_| w.age_out(8)));
        let discard = spawn(&world, |w| w.discard(20, 20));
        join([one, two, age, other, discard]);
        world.check();
    });
}

#[test]
fn writes_calls_and_discards_against_pages_that_leave_together() {
    schedules(|| {
        let world = scattered();
        let one = spawn(&world, |w| write(w, [0, 1, 3].into_iter()));
        let two = spawn(&world, |w| calls(w, 12, 2));
        let three = spawn(&world, |w| w.discard(24, 8));
        let evictor = spawn(&world, |w| evict(w, true, false));
        join([one, two, three, evictor]);
        world.check();
        read(&world, [16, 18, 19, 40].into_iter());
    });
    alone(|| {
        let world = scattered();
        evict(&world, true, false);
        assert!(world.pager.slot().get(Counter::LoneEvictions) > 0);
    });
}

#[test]
fn a_fork_against_pages_that_leave_together() {
    schedules(|| {
        let world = scattered();
        let one = spawn(&world, |w| write(w, [0, 1, 3].into_iter()));
        let fork = spawn(&world, |w| {
            w.fork_in_vain();
            w.pager.set_unshared();
        });
        let evictor = spawn(&world, |w| evict(w, true, true));
        join([one, fork, evictor]);
        world.check();
        read(&world, [16, 18, 19, 40].into_iter());
    });
}

#[test]
fn memory_moves_while_pages_leave_together() {
    schedules(|| {
        let world = World::new(Spec { pages: 2 * PAGES, ..SPEC });
        world.map(0, PAGES, READ_WRITE);
        let mut t = world.thread();
        let pages = || (0..PAGES).filter(|i| i % 3 != 2);
        pages().for_each(|i| _ = t.access(world.at(i), true, |bytes| *bytes = content(i, 0)));
        drop(t);
        let world = Arc::new(world);
        let moves = spawn(&world, move |w| {
            w.remap(0, PAGES, PAGES, false);
            // Other memory comes to lie where it was.
            w.map(0, PAGES / 2, READ_WRITE);
            let mut t = w.thread();
            for i in pages() {
                let touch =
                    t.access(w.at(PAGES + i), true, |b| assert!(*b == content(i, 0), "page {i}"));
                assert_eq!(touch, Touch::Done);
            }
            (0..PAGES / 2).for_each(|i| _ = t.access(w.at(i), false, |b| assert!(*b == [0; 4096])));
        });
        let evictor = spawn(&world, |w| evict(w, true, true));
        join([moves, evictor]);
        world.check();
    });
}

#[test]
fn faults_against_unmapping_and_mapping_anew() {
    schedules_of_each(|spec| {
        let world = world(spec);
        page_out(&world);
        let change = spawn(&world, |w| {
            w.unmap(4, 8);
            w.map(4, 8, READ_WRITE);
            let mut t = w.thread();
            (4..12).for_each(|i| {
                let touch = t.access(w.at(i), true, |b| {
                    assert!(*b == [0; 4096], "page {i} is new");
                    *b = content(i, 1);
                });
                assert_eq!(touch, Touch::Done);
            });
            w.discard(6, 2);
            (6..8).for_each(|i| {
                _ = t.access(w.at(i), false, |b| assert!(*b == [0; 4096], "page {i}"))
            });
        });
        let reads = spawn(&world, |w| {
            let mut t = w.thread();
            for i in 0..14 {
                // A read finds the old contents, the new ones, or zeros; never anything else, nor
                // another page's.
                let touch = t.access(w.at(i), false, |b| {
                    let is_known = *b == content(i, 0) || *b == content(i, 1) || *b == [0; 4096];
                    assert!(is_known, "page {i}");
                });
                assert!(touch == Touch::Done || (4..12).contains(&i));
            }
        });
        let evictor = spawn(&world, |w| evict(w, true, true));
        join([change, reads, evictor]);
        world.check_but(4..12);
        read(&world, (0..4).chain(12..PAGES));
    });
}

#[test]
fn calls_hold_their_buffers_whoever_evicts() {
    schedules_of_each(|spec| {
        let world = world(spec);
        into_limbo(&world);
        let one = spawn(&world, |w| calls(w, 0, 4));
        let two = spawn(&world, |w| calls(w, 6, 3));
        let evictor = spawn(&world, |w| evict(w, true, true));
        let other = spawn(&world, |w| _ = w.pager.page_out(w.at(0), w.at(12)));
        join([one, two, evictor, other]);
        world.check();
    });
}

#[test]
fn windows_come_in_while_their_pages_change() {
    schedules(|| {
        let world = world(Spec { slots: 256, ..SPEC });
        // Frames for a window: those of pages that went by way of limbo.
        into_limbo(&world);
        assert!(world.stock());
        page_out_rest(&world);
        let reads = spawn(&world, |w| read_any(w, 0..16));
        let writes = spawn(&world, |w| write_and_page_out(w, 6..7));
        let change = spawn(&world, |w| w.discard(30, 3));
        join([reads, writes, change]);
        world.check();
    });
}

/// Reads pages in order, some of which another thread writes.
fn read_any(world: &World, pages: impl Iterator<Item = usize>) {
    let mut t = world.thread();
    for i in pages {
        let is_known = |b: &[u8; 4096]| (0..3).any(|generation| *b == content(i, generation));
        assert_eq!(t.access(world.at(i), false, |b| assert!(is_known(b), "page {i}")), Touch::Done);
    }
}

/// Writes pages and takes them out again at once: what came in meanwhile is of before.
fn write_and_page_out(world: &World, pages: core::ops::Range<usize>) {
    let mut t = world.thread();
    for generation in 0..2 {
        for i in pages.clone() {
            let touch = t.access(world.at(i), true, |b| {
                assert!(*b == content(i, generation), "page {i} in generation {generation}");
                *b = content(i, generation + 1);
            });
            assert_eq!(touch, Touch::Done);
        }
        world.pager.page_out(world.at(pages.start), world.at(pages.end));
    }
}

/// Threads that all begin to read in order at the same place: what one loads without a claim
/// another claims, brings and frees.
#[test]
fn windows_of_threads_that_read_the_same() {
    schedules(|| {
        let world = world(Spec { slots: 256, ..SPEC });
        into_limbo(&world);
        assert!(world.stock());
        page_out_rest(&world);
        join([0, 1, 4].map(|first| spawn(&world, move |w| read(w, first..24))));
        world.check();
    });
}

/// Takes out what is in the program still, without a need for the frames that are kept.
fn page_out_rest(world: &World) {
    for _ in 0..8 {
        world.sweep(false);
        world.age_out(PAGES);
    }
}

#[test]
fn programs_of_threads_with_parts_and_pages_in_common() {
    schedules_of_each(|spec| {
        let world = Arc::new(World::new(Spec { has_store: true, ..spec }));
        world.map(32, 16, READ_WRITE);
        let parts = [0, 1].map(|part| {
            spawn(&world, move |w| run_part(w, part * 16, 16, &mut Random::new(part as u64), 12))
        });
        let words = [0, 1].map(|me| {
            spawn(&world, move |w| {
                count_in_words(w, 32..48, me, &mut Random::new(7 + me as u64), 10)
            })
        });
        let evictor = spawn(&world, |w| evict(w, true, true));
        join(parts);
        join(words);
        join([evictor]);
        world.unmap(32, 16);
        world.check_empty();
    });
}
