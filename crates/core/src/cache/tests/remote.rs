//! The cache over servers that do their work, and over servers that do it wrong. In any case a page
//! comes back as it was or not at all.

use std::path::PathBuf;
use std::sync::atomic::AtomicUsize;

use super::fork::fork;
use super::servers::PAGES;
use super::*;
use crate::store::extents::{Geometry, Leases, set_owner};
use crate::store::remote::hostile::{ALL_WRONG, Hostile, Mode};
use crate::store::remote::{Link, NO_ANSWER, PATIENCE_NS, Remote, RemoteStore, Server};
use crate::store::testing::LONG_PATIENCE_NS;
use crate::sys::fd::number_limits;
use crate::sys::file::{self, testing};
use crate::sys::socket::Patience;

const EXPORT_BYTES: usize = 32 << 20;
/// In place of ten seconds, where a server is wrong: each wait for it costs the test so long.
const SHORT_PATIENCE_NS: u64 = 1_000_000_000;
/// As that, where another server is right, which has a part of it: the wrong one costs a quarter.
const SHARED_PATIENCE_NS: u64 = 4 * SHORT_PATIENCE_NS;

type World = super::servers::World<Hostile, RemoteStore>;

fn path() -> PathBuf {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let n = NUMBER.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("uzswap-hostile-{}-{n}", std::process::id()))
}

fn world(servers: usize, copies: usize) -> World {
    world_for(Mode::Honest, servers, copies)
}

/// Servers, and what a process has of them; a process sees what those that it forked have leased,
/// as in a run.
fn remote(servers: usize, copies: usize) -> (Vec<Hostile>, Remote, &'static Leases) {
    set_owner(1);
    let paths: Vec<_> = (0..servers).map(|_| path()).collect();
    let hostile: Vec<_> = paths.iter().map(|p| Hostile::start(p, EXPORT_BYTES)).collect();
    let geometry = Geometry::of(&vec![EXPORT_BYTES as u64; servers]);
    let plain: Vec<_> = paths
        .iter()
        .enumerate()
        .map(|(i, path)| {
            let address = [&[1, 0], path.as_os_str().as_encoded_bytes(), &[0]].concat();
            let mut server = Server::new(&address, b"x").unwrap();
            server.extents = geometry.extents_of(i).len() as u32;
            server
        })
        .collect();
    let leases: &'static Leases = testing::shared();
    (hostile, Remote::new(&plain, copies, geometry.extent_bytes, leases), leases)
}

/// In which a server will be wrong in that way.
fn world_for(mode: Mode, servers: usize, copies: usize) -> World {
    let (servers, remote, leases) = remote(servers, copies);
    let remote = remote.with_patience(match mode {
        Mode::Honest => LONG_PATIENCE_NS,
        _ if copies > 1 => SHARED_PATIENCE_NS,
        _ => SHORT_PATIENCE_NS,
    });
    World::new(servers, RemoteStore::open(remote).unwrap(), leases)
}

#[test]
fn pages_come_back_from_servers_and_space_goes_back_to_them() {
    for (servers, copies) in [(1, 1), (3, 1), (3, 2)] {
        let mut w = world(servers, copies);
        w.fill(1);
        assert_eq!(w.load(), (PAGES, 0));
        let c = w.cache.remote_counts();
        assert!(c.loads > 10 && (c.timeouts, c.second_copies, c.lone_copies) == (0, 0, 0), "{c:?}");
        // Nothing that a page has in clear is there.
        let all = w.servers[0].contents();
        let (_, page) = &w.pages[3];
        assert!(!all.windows(32).any(|bytes| bytes == &page[1000..1032]));
        // More than is kept to be written to soon.
        for _ in 0..2 {
            for round in 2..14 {
                w.fill(round);
            }
            assert_eq!(w.load().1, 0);
            w.drop_all();
        }
        w.cache.check();
        assert!(w.servers.iter().all(|s| s.requests() > 0), "every server has its part");
        assert!(w.servers.iter().map(Hostile::trimmed).sum::<u64>() > 0);
        assert!(w.leases.iter().any(|l| l.load(Ordering::Relaxed) == 1));
    }
}

#[test]
fn of_two_copies_one_may_be_wrong_in_any_way() {
    for mode in ALL_WRONG {
        for bad in 0..2 {
            let mut w = world_for(mode, 2, 2);
            w.fill_all_copies(1);
            w.servers.iter().for_each(Hostile::remember);
            w.drop_all();
            w.fill_all_copies(2);
            w.servers[bad].set(mode);
            assert_eq!(w.load(), (PAGES, 0), "{mode:?} of server {bad}");
            // At least one of them has each cluster that is written now.
            w.fill(3);
            assert_eq!(w.cache.store_failure(), None, "{mode:?} of server {bad}");
            assert_eq!(w.load(), (2 * PAGES, 0), "{mode:?} of server {bad}");
            let c = w.cache.remote_counts();
            let is_seen = if mode == Mode::Full { c.lone_copies > 0 } else { c.second_copies > 0 };
            assert!(is_seen, "{mode:?} of server {bad}: {c:?}");
        }
    }
}

#[test]
fn without_another_copy_a_page_is_lost_and_never_wrong() {
    for mode in ALL_WRONG {
        let mut w = world_for(mode, 1, 1);
        w.fill_all_copies(1);
        w.servers[0].remember();
        w.drop_all();
        w.fill_all_copies(2);
        w.pages.truncate(8);
        w.servers[0].set(mode);
        if mode != Mode::Full {
            let (came, lost) = w.load();
            assert!(came + lost == 8 && lost > 0, "{mode:?}: {lost} lost");
            w.servers[0].set(Mode::Honest);
        }
        assert_eq!(w.load_all(), 8, "the entries are as they were ({mode:?})");
    }
}

#[test]
fn a_copy_that_cannot_be_read_is_waited_for_where_the_other_one_is_wrong() {
    let mut w = world_for(Mode::ReadErrors, 2, 2);
    w.fill_all_copies(1);
    w.pages.truncate(1);
    w.servers[0].set(Mode::WrongBytes);
    w.servers[1].set(Mode::ReadErrors);
    // It is asked twice before it is known that no other copy is right.
    w.servers[1].set_after(w.servers[1].requests() + 3, Mode::Honest);
    assert_eq!(w.load(), (1, 0));
    // And if it stays so nobody says that the page is damaged: it cannot be read.
    w.servers[1].set(Mode::ReadErrors);
    w.cache.give_buffers_back();
    let lost = w.cache.swap_in(w.pages[0].0, &mut [0; PAGE_SIZE]);
    assert_eq!(lost, Err(LoadError::Io(NO_ANSWER)));
    let counters = w.cache.counters();
    assert_eq!((counters.read_errors, counters.corrupt_loads), (1, 0));
}

#[test]
fn a_server_that_lost_everything_is_found_out() {
    let mut w = world(2, 2);
    w.fill_all_copies(1);
    w.servers[0].lose_everything();
    assert_eq!(w.load(), (PAGES, 0));
    assert!(w.cache.remote_counts().second_copies > 0);
    // New pages go to both again.
    w.fill_all_copies(2);
    assert_eq!(w.load(), (2 * PAGES, 0));
    w.servers[1].lose_everything();
    let (came, lost) = w.load();
    assert!(came >= PAGES && lost > 0 && came + lost == 2 * PAGES, "{came} came, {lost} are lost");
}

#[test]
fn connections_that_break_are_made_again() {
    let mut w = world(1, 1);
    for round in 1..6 {
        w.fill(round);
        w.servers[0].hang_up();
    }
    assert_eq!(w.cache.store_failure(), None);
    assert_eq!(w.load(), (5 * PAGES, 0));
    assert!(w.cache.remote_counts().timeouts > 0);
}

#[test]
fn a_connection_by_which_nothing_comes_any_more_is_made_again() {
    // The connection has half of the patience. A machine that stands still for the other half
    // makes the page a lost one, so it is tried with more.
    let loads_by = |patience_ns| {
        let (servers, remote, leases) = remote(1, 1);
        let remote = remote.with_patience(patience_ns);
        let mut w = World::new(servers, RemoteStore::open(remote).unwrap(), leases);
        w.fill(1);
        w.pages.truncate(8);
        let server = &w.servers[0];
        // The connection of the next request stays silent.
        server.set(Mode::Silent);
        server.set_after(server.requests() + 1, Mode::Honest);
        let loads = w.load();
        assert!(w.cache.remote_counts().timeouts > 0);
        loads
    };
    let patience_ns = [SHARED_PATIENCE_NS, LONG_PATIENCE_NS];
    assert!(patience_ns.into_iter().any(|ns| loads_by(ns) == (8, 0)));
}

#[test]
fn a_load_waits_for_no_other_from_the_same_server() {
    let mut w = world(1, 1);
    w.fill(1);
    let (server, cache) = (&w.servers[0], &w.cache);
    let load = |(entry, page): &(SwapEntry, Page)| {
        let mut loaded = [0xee; PAGE_SIZE];
        assert!(cache.swap_in(*entry, &mut loaded) == Ok(()) && loaded == *page);
    };
    // The connection of the next request stays silent, until all are closed.
    let before = server.requests();
    server.set(Mode::Silent);
    server.set_after(before + 1, Mode::Honest);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| load(&w.pages[0]));
        while server.requests() == before {
            std::thread::yield_now();
        }
        // Some of them would be read into the buffer that is waited for.
        let (sender, came) = std::sync::mpsc::channel();
        for page in w.pages.iter().step_by(50).skip(1) {
            let (sender, load) = (sender.clone(), &load);
            scope.spawn(move || {
                load(page);
                sender.send(())
            });
        }
        assert_eq!((came.recv(), first.is_finished()), (Ok(()), false));
        server.hang_up();
    });
}

#[test]
fn a_full_server_ends_writing_and_loses_nothing() {
    let mut w = world(1, 1);
    w.fill(1);
    w.servers[0].set(Mode::Full);
    w.fill(2);
    assert_eq!(w.cache.store_failure(), Some(crate::sys::Errno::ENOSPC));
    assert_eq!(w.load(), (w.pages.len() as u64, 0));
    // As does one whose extents are all leased.
    let mut w = world(1, 1);
    w.leases.iter().for_each(|lease| lease.store(2, Ordering::Relaxed));
    w.fill(1);
    assert_eq!(w.cache.store_failure(), Some(crate::sys::Errno::ENOSPC));
    assert_eq!(w.load(), (w.pages.len() as u64, 0));
}

#[test]
fn a_forked_child_reads_by_connections_of_its_own() {
    let _alone = super::fork::alone();
    let mut w = world(2, 2);
    w.fill(1);
    let (read, write) = file::pipe().unwrap();
    let World { cache, pages, .. } = &w;
    let load = |own: &(SwapEntry, Page)| {
        let mut loaded = [0xee; PAGE_SIZE];
        cache.swap_in(own.0, &mut loaded).is_ok() && loaded == own.1
    };
    let child = fork(cache, || {
        set_owner(2);
        file::close(write);
        let ok = pages.iter().all(load);
        // The child's pages go to extents of its own.
        let mut written = [(pages[0].0, 0u64); 64];
        for (i, (entry, tag)) in written.iter_mut().enumerate() {
            *tag = 10_000 + i as u64;
            let Ok(new) = cache.swap_out(&any_page(*tag)) else { return false };
            *entry = new;
        }
        cache.shrink(1 << 20);
        // Not before the parent has written over what the child does not hold.
        while file::hung_up(&[read]) == 0 {
            std::thread::yield_now();
        }
        let right = |(entry, tag): &(SwapEntry, u64)| {
            let mut loaded = [0; PAGE_SIZE];
            cache.swap_in(*entry, &mut loaded).is_ok() && loaded == any_page(*tag)
        };
        ok && written.iter().all(right) && pages.iter().all(load) && cache.remote_counts().loads > 0
    });
    w.drop_all();
    for round in 2..5 {
        w.fill(round);
        assert_eq!(w.load(), (PAGES, 0));
        w.drop_all();
    }
    file::close(write);
    assert_eq!(testing::wait(child), 0);
    let owners = |id: u32| w.leases.iter().filter(|l| l.load(Ordering::Relaxed) == id).count();
    assert!(owners(1) > 0);
    w.fill(6);
    assert_eq!(w.load(), (PAGES, 0));
    w.cache.check();
}

#[test]
fn a_child_without_a_free_descriptor_leaves_its_parents_connection_alone() {
    let path = path();
    let _server = Hostile::start(&path, EXPORT_BYTES);
    let address = [&[1, 0], path.as_os_str().as_encoded_bytes(), &[0]].concat();
    let (mut link, patience) = (Link::new(), || Patience::new(PATIENCE_NS));
    link.open(&Server::new(&address, b"x").unwrap(), &mut patience()).unwrap();
    let child = testing::fork(|| {
        number_limits(Some([0, 0])).unwrap();
        let is_refused = link.reserve().is_err();
        let is_open = link.is_open();
        link.close();
        is_refused && !is_open
    });
    assert_eq!(testing::wait(child), 0);
    // The child has not ended it either.
    assert_eq!(link.read(0, &mut [0; 4096], &mut patience()), Ok(()));
    link.close();
}
