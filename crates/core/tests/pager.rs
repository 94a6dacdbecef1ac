//! The pager on real memory of this process: faults, eviction and bookkeeping, under each
//! mechanism.
#![allow(unsafe_code)]

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::*;
use uzswap::control::orders::ALL_PAGES;
use uzswap::control::{Counter, HugePages, Mechanism};

/// Writers that hit pages at any moment of their way out and back, mostly just after a read has
/// brought them: each adds to words of its own and knows what they must be. Most visits only read,
/// so that most pages go out as they came.
fn no_write_is_lost(base: usize, pages: usize) {
    const WRITERS: usize = 4;
    for i in 0..pages {
        fill(base + i * P, i as u64 * 7919);
    }
    let writers: Vec<_> = (0..WRITERS)
        .map(|t| {
            std::thread::spawn(move || {
                let mut seed = 0x8765_4321 + t as u64;
                let mut added = vec![0u64; pages];
                let first: Vec<u64> = (0..pages)
                    .map(|i| word(base + i * P + t * 8).load(Ordering::Relaxed))
                    .collect();
                for round in 0..2 {
                    for n in 0..pages {
                        // One pass in order, one at random, so that whole runs and single pages go.
                        let i = if round % 2 == 0 { n } else { rnd(&mut seed) as usize % pages };
                        let own = word(base + i * P + t * 8);
                        assert_eq!(
                            own.load(Ordering::Relaxed),
                            first[i].wrapping_add(added[i]),
                            "page {i}"
                        );
                        if rnd(&mut seed).is_multiple_of(16) {
                            for _ in 0..rnd(&mut seed) % 400 {
                                std::hint::spin_loop();
                            }
                            own.fetch_add(1, Ordering::Relaxed);
                            added[i] += 1;
                        }
                    }
                }
                for i in 0..pages {
                    let want = first[i].wrapping_add(added[i]);
                    assert_eq!(
                        word(base + i * P + t * 8).load(Ordering::Relaxed),
                        want,
                        "page {i}"
                    );
                }
            })
        })
        .collect();
    for w in writers {
        w.join().unwrap();
    }
}

/// Windows come in without the lock: meanwhile their pages are read by others, written, and
/// dropped. Readers run through all pages in order; whoever changes one says so before and after in
/// its generation, so that readers know which bytes must be there.
fn windows_meet_changes(base: usize, pages: usize) {
    const BLOCK: usize = 64;
    let generations: Vec<AtomicU64> = (0..pages).map(|_| AtomicU64::new(0)).collect();
    let value = |i: usize, generation: u64| (i as u64 + 1) * 0x9e37_79b9 + generation;
    for i in 0..pages {
        fill(base + i * P, value(i, 0));
    }
    let is_over = AtomicBool::new(false);
    let seen = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                PAGER.evict_to_watermark();
                std::thread::yield_now();
            }
        });
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    for (i, generation) in generations.iter().enumerate() {
                        let before = generation.load(Ordering::SeqCst);
                        let at = base + i * P;
                        if !before.is_multiple_of(2) {
                            continue;
                        }
                        let got = [0, 2 * 8, 510 * 8].map(|o| word(at + o).load(Ordering::SeqCst));
                        if generation.load(Ordering::SeqCst) == before {
                            assert_eq!(got, [value(i, before); 3], "page {i}, generation {before}");
                            seen.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
        let mut seed = 0x5eed;
        for _ in 0..1500 {
            let block = rnd(&mut seed) as usize % (pages / BLOCK) * BLOCK;
            let changed = block..block + BLOCK / (1 + rnd(&mut seed) as usize % 8);
            let (start, len) = (base + changed.start * P, changed.len() * P);
            changed.clone().for_each(|i| _ = generations[i].fetch_add(1, Ordering::SeqCst));
            if rnd(&mut seed).is_multiple_of(2) {
                let mut s = PAGER.lock();
                // SAFETY: the test's own mapping.
                unsafe { libc::madvise(start as *mut _, len, libc::MADV_DONTNEED) };
                PAGER.note_discarded(&mut s, start, start + len);
                drop(s);
                changed
                    .clone()
                    .for_each(|i| assert_eq!(word(base + i * P).load(Ordering::SeqCst), 0));
            }
            changed.clone().for_each(|i| {
                fill(base + i * P, value(i, generations[i].load(Ordering::SeqCst) + 1))
            });
            changed.for_each(|i| _ = generations[i].fetch_add(1, Ordering::SeqCst));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    for (i, generation) in generations.iter().enumerate() {
        check(base + i * P, value(i, generation.load(Ordering::SeqCst)));
    }
    println!("{} reads while others changed pages", seen.load(Ordering::Relaxed));
}

/// A thread that goes round and round through twice the memory finds a part of it resident, and
/// every byte right.
fn what_runs_through_memory_goes_first() {
    const PAGES: usize = 8 << 10;
    const ROUNDS: u64 = 12;
    let base = map(PAGES * P);
    let mut last = 0;
    for round in 0..ROUNDS {
        let before = PAGER.slot().get(Counter::Loads);
        for i in 0..PAGES {
            assert_eq!(word(base + i * P).fetch_add(1, Ordering::Relaxed), round, "page {i}");
        }
        let loads = PAGER.slot().get(Counter::Loads) - before;
        println!("{loads} loads of {PAGES} pages in round {round}");
        last += if round >= ROUNDS / 2 { loads } else { 0 };
    }
    // By age alone nothing would be there. A third could be, beside limbo, buffers and what is kept
    // free.
    let most = PAGES as u64 * (ROUNDS / 2) * 17 / 20;
    assert!(last < most, "{last} loads");
    let mut s = PAGER.lock();
    // SAFETY: the test's own mapping.
    assert_eq!(unsafe { libc::munmap(base as *mut _, PAGES * P) }, 0);
    PAGER.note_unmapped(&mut s, base, base + PAGES * P);
}

/// Pages that are written at random lie alone, and leave together. Meanwhile the program writes
/// them, and the kernel for it: no write is lost, and none is refused that has asked.
fn what_lies_alone_leaves_together(base: usize, pages: usize) {
    const WRITERS: usize = 2;
    /// The word that the kernel writes.
    const KERNELS: usize = 100 * 8;
    let lone = || PAGER.slot().get(Counter::LoneEvictions);
    (0..pages).for_each(|i| fill(base + i * P, i as u64 * 7919));
    let before = lone();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|t| {
                scope.spawn(move || {
                    let mut seed = 0x3141 + t as u64;
                    let mut added = vec![0u64; pages];
                    let own = |i: usize| word(base + i * P + (t + 1) * 8);
                    let first: Vec<u64> =
                        (0..pages).map(|i| own(i).load(Ordering::Relaxed)).collect();
                    for _ in 0..3 * pages {
                        let i = rnd(&mut seed) as usize % pages;
                        assert_eq!(
                            own(i).fetch_add(1, Ordering::Relaxed),
                            first[i] + added[i],
                            "page {i}"
                        );
                        added[i] += 1;
                    }
                    (0..pages).for_each(|i| {
                        assert_eq!(own(i).load(Ordering::Relaxed), first[i] + added[i])
                    });
                })
            })
            .collect();
        scope.spawn(|| {
            let (from, mut to) = std::io::pipe().unwrap();
            let held = PAGER.holds.register(1 << 20).unwrap();
            let (mut seed, mut written, mut at_once) = (0x2718, vec![0u64; pages], 0);
            while !is_over.load(Ordering::Relaxed) {
                let i = rnd(&mut seed) as usize % pages;
                let page = base + i * P;
                written[i] = rnd(&mut seed) | 1;
                std::io::Write::write_all(&mut to, &written[i].to_ne_bytes()).unwrap();
                let mark = held.mark();
                held.push(page, page + P, &raw const seed as usize);
                if PAGER.table.get(page).is_some_and(|e| e.is_writable()) {
                    at_once += 1;
                } else {
                    assert!(PAGER.make_resident(PAGER.lock(), page, page + P).1);
                }
                let fd = std::os::fd::AsRawFd::as_raw_fd(&from);
                // SAFETY: the test's own mapping.
                assert_eq!(unsafe { libc::read(fd, (page + KERNELS) as *mut _, 8) }, 8, "page {i}");
                held.pop_to(mark);
            }
            let is_right = |i: &usize| {
                written[*i] == 0
                    || word(base + i * P + KERNELS).load(Ordering::Relaxed) == written[*i]
            };
            assert_eq!((0..pages).find(|i| !is_right(i)), None);
            println!("{at_once} writes of the kernel without the lock");
        });
        writers.into_iter().for_each(|w| w.join().unwrap());
        is_over.store(true, Ordering::Relaxed);
    });
    let left = lone() - before;
    println!("{left} pages left together");
    if left == 0 {
        return println!("SKIPPED: this kernel does not drop many pages at a time");
    }
    assert!(left > pages as u64 / 2, "{left} pages left together");
}

/// Memory is not moved while pages are copied without the lock: what is missing would be read as
/// zero, and stay so, where other memory has come to lie that is not yet under the mechanism again.
fn what_is_copied_is_not_moved(base: usize, pages: usize) {
    let value = |i: usize| i as u64 * 0x1357 + 1;
    (0..pages).for_each(|i| fill(base + i * P, value(i)));
    let (is_moved, was_moved) = (AtomicBool::new(false), AtomicBool::new(false));
    let gone: Vec<usize> = (0..pages)
        .map(|i| base + i * P)
        .filter(|p| !PAGER.table.get(*p).unwrap().is_resident())
        .collect();
    std::thread::scope(|scope| {
        let s = PAGER.lock();
        scope.spawn(|| {
            let mut s = PAGER.lock();
            PAGER.prepare_move(base, base + pages * P).unwrap();
            is_moved.store(true, Ordering::SeqCst);
            // As if the kernel had moved other memory here; time for whoever still reads.
            std::thread::sleep(std::time::Duration::from_millis(20));
            PAGER.note_moved(&mut s, base, pages * P, base, pages * P, false);
        });
        PAGER.copy_unlocked(s, || {
            for _ in 0..20 {
                std::thread::sleep(std::time::Duration::from_millis(1));
                was_moved.fetch_or(is_moved.load(Ordering::SeqCst), Ordering::SeqCst);
                let mut bytes = [0u8; P];
                gone.iter()
                    .take(200)
                    .for_each(|page| _ = uzswap::sys::program::copy_each(&[*page], &mut bytes));
            }
        });
    });
    assert!(is_moved.into_inner() && !was_moved.into_inner());
    assert!(gone.len() > pages / 8, "{} of {pages} pages had gone", gone.len());
    (0..pages).for_each(|i| check(base + i * P, value(i)));
}

/// A program whose memory may be pinned has all of it moved: what cannot be moved stays.
fn what_may_be_pinned_is_moved(base: usize, pages: usize) {
    let counts = || [Counter::LoneEvictions, Counter::Evictions].map(|c| PAGER.slot().get(c));
    PAGER.note_pins();
    let before = counts();
    let mut seed = 0x1618;
    for _ in 0..pages {
        word(base + rnd(&mut seed) as usize % pages * P).fetch_add(1, Ordering::Relaxed);
    }
    let [lone, all] = core::array::from_fn(|i| counts()[i] - before[i]);
    assert!(
        lone <= 32 && all > pages as u64 / 4,
        "{lone} of {all} left together: more than may have been under way"
    );
}

/// Memory that somebody wants although it is not short: everything goes, as far as the disk, and is
/// back when it is touched.
fn on_demand(base: usize, pages: usize) {
    PAGER.tree().limit_pages.store(1 << 20, Ordering::SeqCst);
    let reclaim = |wanted| {
        let mut reclaim = PAGER.begin_reclaim(wanted);
        while !PAGER.reclaim_portion(&mut reclaim) {}
    };
    let all_are_right = || (0..pages).for_each(|i| check(base + i * P, (i + pages) as u64));
    all_are_right();
    // The evictor may have been in the middle of a step when the limit was raised.
    for _ in 0..100 {
        if PAGER.resident_pages() < pages as i64 {
            std::thread::sleep(std::time::Duration::from_millis(1));
            all_are_right();
        }
    }
    assert!(PAGER.resident_pages() >= pages as i64);
    reclaim(ALL_PAGES);
    let left = PAGER.resident_pages() + PAGER.limbo_pages();
    let pool_bytes = PAGER.active().unwrap().cache.pool_bytes();
    assert!(left < 64 && pool_bytes < 1 << 20, "{left} pages, {pool_bytes} bytes in the pool");
    checked();
    all_are_right();
    let used = PAGER.used_pages();
    // Pages that the program makes cold go first.
    let half = base + pages / 2 * P;
    let at_hand = |from: usize, to: usize| {
        let is_there = |page: &usize| PAGER.table.get(*page).is_some_and(|e| e.is_resident());
        (from..to).step_by(P).filter(is_there).count()
    };
    PAGER.make_cold(half, base + pages * P);
    // Compressed, a page takes half of what it took. By protection faults pages go one by one, not
    // by batches, and where its copy is there each frees all of what it took.
    reclaim(pages as u64 / 8);
    let (warm, cold) = (at_hand(base, half), at_hand(half, base + pages * P));
    let is_protect = PAGER.active().unwrap().kind == Mechanism::Protect;
    let most = if is_protect { pages * 2 / 5 } else { pages * 3 / 8 };
    assert!(warm > pages / 2 - 64 && cold <= most, "{warm} warm pages are there, {cold} cold ones");
    let now = PAGER.used_pages();
    assert!(
        now <= used - pages as i64 / 8 && PAGER.resident_pages() > 64,
        "used {used}, then {now}"
    );
    all_are_right();
}

/// Everything in one process and one test: the pager is a process-wide thing.
fn life(mechanism: Mechanism) {
    const PAGES: usize = 16 << 10;
    if !start(mechanism, 16 << 20, HugePages::Madvise) {
        return;
    }
    let before = std::thread::spawn(|| {
        static STOP: AtomicBool = AtomicBool::new(false);
        while !STOP.load(Ordering::Relaxed) {
            std::thread::sleep(std::time::Duration::from_millis(1));
            PAGER.balance_pool();
            PAGER.evict_to_watermark();
        }
    });
    let _ = before;
    // Only there do pages come in by windows, and only they make a trail.
    if mechanism == Mechanism::Userfaultfd {
        what_runs_through_memory_goes_first();
        checked();
    }
    let base = map(PAGES * P);
    for i in 0..PAGES {
        fill(base + i * P, i as u64 * 7919);
    }
    checked();
    assert!(PAGER.used_pages() <= (16 << 20) / P as i64 + 512, "used {}", PAGER.used_pages());
    for i in 0..PAGES {
        check(base + i * P, i as u64 * 7919);
    }
    // Threads on lanes of their own, random access; each page says what it holds.
    let threads: Vec<_> = (0..4usize)
        .map(|t| {
            std::thread::spawn(move || {
                let mut seed = 0x1234_5678 + t as u64;
                let mut values: Vec<u64> =
                    (0..PAGES / 4).map(|i| (i * 4 + t) as u64 * 7919).collect();
                for _ in 0..6000 {
                    let i = rnd(&mut seed) as usize % values.len();
                    check(base + (i * 4 + t) * P, values[i]);
                    if rnd(&mut seed).is_multiple_of(2) {
                        values[i] = rnd(&mut seed);
                        fill(base + (i * 4 + t) * P, values[i]);
                    }
                }
                for (i, v) in values.iter().enumerate() {
                    check(base + (i * 4 + t) * P, *v);
                }
            })
        })
        .collect();
    for t in threads {
        t.join().unwrap();
    }
    checked();
    if mechanism == Mechanism::Userfaultfd {
        what_lies_alone_leaves_together(base, PAGES / 2);
        what_is_copied_is_not_moved(base, PAGES / 2);
        checked();
    }
    let part = if mechanism == Mechanism::Protect { 4 } else { 2 };
    no_write_is_lost(base, PAGES / part);
    checked();
    windows_meet_changes(base, PAGES / part);
    checked();
    // One range of the pager may be many mappings of the kernel: windows come in over their
    // borders.
    {
        let s = PAGER.lock();
        for i in (40..PAGES.min(2000)).step_by(80) {
            let at = (base + i * P) as *mut _;
            // SAFETY: the test's own mapping.
            assert_eq!(unsafe { libc::madvise(at, 40 * P, libc::MADV_DONTDUMP) }, 0);
        }
        drop(s);
        let pages = PAGES.min(2000);
        (0..pages).for_each(|i| fill(base + i * P, i as u64 * 31));
        let mut fewest = u64::MAX;
        for _ in 0..2 {
            let before = PAGER.slot().get(Counter::Loads);
            (0..pages).for_each(|i| check(base + i * P, i as u64 * 31));
            let loads = PAGER.slot().get(Counter::Loads) - before;
            println!("{loads} loads of {pages} pages over borders");
            let mut reclaim = PAGER.begin_reclaim(ALL_PAGES);
            while !PAGER.reclaim_portion(&mut reclaim) {}
            fewest = fewest.min(loads);
        }
        // Each page once or little more: nothing is loaded in vain. A machine that is busy may
        // stretch one round, and pages that go out again before it is over are loaded again.
        assert!(fewest < 2 * pages as u64 || mechanism == Mechanism::Protect, "{fewest} loads");
        // mremap wants one mapping.
        let _s = PAGER.lock();
        // SAFETY: the test's own mapping.
        assert_eq!(unsafe { libc::madvise(base as *mut _, pages * P, libc::MADV_DODUMP) }, 0);
    }
    checked();
    // Discard: zero afterwards.
    {
        let mut s = PAGER.lock();
        // SAFETY: the test's own mapping.
        unsafe { libc::madvise((base + 100 * P) as *mut _, 500 * P, libc::MADV_DONTNEED) };
        PAGER.note_discarded(&mut s, base + 100 * P, base + 600 * P);
    }
    for i in 100..600 {
        assert_eq!(word(base + i * P).load(Ordering::Relaxed), 0);
    }
    // Move: contents come along.
    for i in 1000..2000 {
        fill(base + i * P, i as u64);
    }
    let to = {
        let mut s = PAGER.lock();
        let (old, len) = (base + 1000 * P, 1000 * P);
        PAGER.prepare_move(old, old + len).unwrap();
        // SAFETY: the test's own mapping.
        let p = unsafe { libc::mremap(old as *mut _, len, 2 * len, libc::MREMAP_MAYMOVE) };
        assert_ne!(p, libc::MAP_FAILED);
        PAGER.note_moved(&mut s, old, len, p as usize, 2 * len, false);
        p as usize
    };
    for i in 0..1000 {
        check(to + i * P, i as u64 + 1000);
        assert_eq!(word(to + (1000 + i) * P).load(Ordering::Relaxed), 0);
    }
    checked();
    if mechanism == Mechanism::Userfaultfd {
        // Between the hole and what has moved.
        what_may_be_pinned_is_moved(base + 2000 * P, PAGES - 2000);
        checked();
    }
    on_demand(to, 1000);
    let slot = PAGER.slot();
    for c in
        [Counter::Faults, Counter::Evictions, Counter::Stores, Counter::Loads, Counter::LimboHits]
    {
        println!("{} {}", c.name(), slot.get(c));
        assert!(c == Counter::LimboHits || slot.get(c) > 1000, "{}", c.name());
    }
    let clean = slot.get(Counter::CleanEvictions);
    assert!(clean > 1000, "{clean} clean evictions");
    assert!(!LOST.load(Ordering::SeqCst));
}

/// Each mechanism needs a process of its own.
fn in_child(mechanism: Mechanism) {
    if std::env::var("UZSWAP_TEST_MECHANISM").as_deref() == Ok(mechanism.name()) {
        return life(mechanism);
    }
    if std::env::var_os("UZSWAP_TEST_MECHANISM").is_some() {
        return;
    }
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--nocapture", "--test-threads=1"])
        .env("UZSWAP_TEST_MECHANISM", mechanism.name())
        .status()
        .unwrap();
    assert!(status.success(), "{}: {status}", mechanism.name());
}

#[test]
fn userfaultfd() {
    in_child(Mechanism::Userfaultfd);
}

#[test]
fn userfaultfd_copy() {
    in_child(Mechanism::UserfaultfdCopy);
}

#[test]
fn protect() {
    in_child(Mechanism::Protect);
}
