//! The cache over Valkey servers that do their work, and over servers that do it wrong. In any case
//! a page comes back as it was or not at all.

use super::fork::fork;
use super::servers::PAGES;
use super::*;
use crate::control::Settings;
use crate::store::extents::{Leases, set_owner};
use crate::store::remote::Server;
use crate::store::testing::LONG_PATIENCE_NS;
use crate::store::valkey::hostile::{ALL_WRONG, Hostile, Mode};
use crate::store::valkey::{Valkey, ValkeyStore, Verb};
use crate::sys::Errno;
use crate::sys::file::testing;
use crate::sys::socket::Patience;

/// In place of ten seconds, where a server is wrong: each wait for it costs the test so long.
const SHORT_PATIENCE_NS: u64 = 600_000_000;

type World = super::servers::World<Hostile, ValkeyStore>;

fn settings(servers: &[Hostile], kind: u32) -> Settings {
    let mut settings = Settings::new();
    settings.servers_len = servers.len() as u32;
    for (place, server) in settings.servers.iter_mut().zip(servers) {
        let port = server.address().port().to_be_bytes();
        let address = [&[2, 0], &port[..], &[127, 0, 0, 1], &[0; 8]].concat();
        *place = Server { kind, extents: 64, ..Server::new(&address, b"").unwrap() };
    }
    settings.lease_ms = 60_000;
    settings.key_prefix = *b"uz:aaaaaaaaa";
    assert!(settings.is_valid() && settings.is_valkey());
    settings
}

fn open(servers: Vec<Hostile>, kind: u32, mode: Mode) -> World {
    set_owner(1);
    let settings = settings(&servers, kind);
    // As in a run: a process sees what those that it forked have leased.
    let leases: &'static Leases = testing::shared();
    let valkey = Valkey::new(&settings.terms(), leases);
    let valkey = match mode {
        Mode::Right => valkey.with_patient_tries(),
        _ => valkey.with_patience(SHORT_PATIENCE_NS),
    };
    World::new(servers, ValkeyStore::open(valkey).unwrap(), leases)
}

fn world() -> World {
    world_for(Mode::Right)
}

/// In which the server will be wrong in that way.
fn world_for(mode: Mode) -> World {
    open(vec![Hostile::start()], Server::VALKEY, mode)
}

/// Two nodes of a Cluster, of which the first has everything.
fn cluster(replicas: u64) -> World {
    let servers: Vec<_> = (0..2).map(|_| Hostile::start()).collect();
    servers.iter().for_each(|server| server.belongs_to(&servers[0], replicas));
    open(servers, Server::CLUSTER, Mode::Right)
}

#[test]
fn pages_come_back_and_values_go() {
    let worlds =
        [(world(), Server::VALKEY), (cluster(0), Server::CLUSTER), (cluster(1), Server::CLUSTER)];
    for (mut w, kind) in worlds {
        w.fill(1);
        assert_eq!(w.load(), (PAGES, 0));
        let c = w.cache.remote_counts();
        assert!(c.loads > 10 && (c.timeouts, c.second_copies, c.lone_copies) == (0, 0, 0), "{c:?}");
        let values = w.servers[0].values();
        assert!(values.keys().all(|key| key.starts_with(b"uz:aaaaaaaaa") && key.len() == 18));
        // Nothing that a page has in clear is there.
        let (_, page) = &w.pages[3];
        let has = |value: &Vec<u8>| value.windows(32).any(|bytes| bytes == &page[1000..1032]);
        assert!(!values.is_empty() && !values.values().any(has));
        // More than is kept to be written to soon.
        for _ in 0..2 {
            for round in 2..14 {
                w.fill(round);
            }
            assert_eq!(w.load().1, 0);
            w.drop_all();
        }
        w.cache.check();
        let most = w.servers[0].values().len();
        w.fill(20);
        assert_eq!(w.load(), (PAGES, 0));
        assert!(w.servers[0].values().len() < most + 20, "values of freed pages go");
        // As `uzswap run` does at the end.
        let settings = settings(&w.servers, kind);
        let run = Valkey::new(&settings.terms(), w.leases);
        let run = run.with_patient_tries();
        run.connect(LONG_PATIENCE_NS).unwrap();
        let units = 0..64 * 16 + 1;
        let there = w.servers[0].values().len() as u64;
        let mut patience = Patience::new(LONG_PATIENCE_NS);
        assert_eq!(run.each(Verb::Renew, units.clone(), &mut patience), Ok(there));
        assert_eq!(run.each(Verb::Unlink, units, &mut patience), Ok(there));
        assert!(w.servers[0].values().is_empty());
        run.nodes().iter().for_each(|node| node.close());
    }
}

#[test]
fn whatever_a_server_does_wrong_a_page_is_lost_and_never_wrong() {
    for mode in ALL_WRONG {
        let mut w = world_for(mode);
        w.fill_all_copies(1);
        w.servers[0].remember();
        w.drop_all();
        w.fill_all_copies(2);
        w.pages.truncate(8);
        w.servers[0].set(mode);
        if mode != Mode::Full {
            let (came, lost) = w.load();
            assert!(came + lost == 8 && lost > 0, "{mode:?}: {lost} lost");
            w.servers[0].set(Mode::Right);
        }
        assert_eq!(w.load_all(), 8, "the entries are as they were ({mode:?})");
    }
}

#[test]
fn whatever_a_server_does_wrong_with_writes_nothing_is_lost() {
    let alike =
        [Mode::WrongBytes, Mode::Stale, Mode::Short, Mode::Long, Mode::Negative, Mode::Empty];
    for mode in ALL_WRONG.into_iter().filter(|mode| !alike.contains(mode)) {
        let mut w = world_for(mode);
        w.fill_all_copies(1);
        w.servers[0].set(mode);
        w.fill(2);
        // Until the last patience is over. A value that a connection took before it hung up is
        // there, so there may be no failure.
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let is_over = || w.cache.store_failure().is_some() || mode == Mode::HangsUp;
        while !is_over() && std::time::Instant::now() < end {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let failure = w.cache.store_failure();
        assert!(failure.is_some() || mode == Mode::HangsUp, "{mode:?}");
        assert!(mode != Mode::Full || failure == Some(Errno::ENOSPC));
        w.servers[0].set(Mode::Right);
        assert_eq!(w.load_all(), w.pages.len() as u64, "{mode:?}");
    }
}

#[test]
fn connections_that_break_are_made_again() {
    let mut w = world();
    for round in 1..6 {
        w.fill(round);
        w.servers[0].hang_up();
    }
    assert_eq!(w.load(), (5 * PAGES, 0));
    assert_eq!(w.cache.store_failure(), None);
    assert!(w.cache.remote_counts().timeouts > 0);
}

#[test]
fn values_that_move_to_another_node_are_found() {
    let mut w = cluster(0);
    for round in 1..6 {
        w.fill(round);
        let (from, to) = (&w.servers[round as usize % 2], &w.servers[1 - round as usize % 2]);
        from.moves_to(to);
        assert_eq!(w.load(), (round * PAGES, 0));
    }
    // And if the one that had them is gone.
    let others = w.servers.iter().position(|server| server.values().is_empty()).unwrap();
    w.servers[1 - others].moves_to(&w.servers[others]);
    drop(w.servers.remove(1 - others));
    assert_eq!(w.load(), (5 * PAGES, 0));
    w.fill(7);
    assert_eq!((w.load(), w.cache.store_failure()), ((6 * PAGES, 0), None));
}

#[test]
fn a_replica_is_waited_for_and_one_that_does_not_come_only_now_and_then() {
    let mut w = cluster(1);
    w.fill(1);
    assert_eq!(w.load(), (PAGES, 0));
    let waits = w.servers[0].waits();
    assert!(waits > 3 && w.cache.remote_counts().lone_copies == 0);
    // The map says that there is one, and it has nothing.
    let mut w = cluster(1);
    w.servers[0].replica_is_gone();
    w.fill(1);
    assert_eq!(w.load(), (PAGES, 0));
    let lone = w.cache.remote_counts().lone_copies;
    assert!(
        lone > 3 && w.servers[0].waits() < lone,
        "{lone} alone, {} waits",
        w.servers[0].waits()
    );
}

#[test]
fn a_server_without_a_value_says_so() {
    let mut w = world();
    w.fill(1);
    w.servers[0].set(Mode::Empty);
    let (entry, mut loaded) = (w.pages[0].0, [0; PAGE_SIZE]);
    let gone = w.cache.swap_in(entry, &mut loaded);
    assert!(matches!(gone, Err(LoadError::Io(crate::store::valkey::GONE))), "{gone:?}");
}

#[test]
fn a_forked_child_reads_by_connections_of_its_own() {
    for mut w in [world(), cluster(1)] {
        w.fill(1);
        let World { cache, pages, .. } = &w;
        let child = fork(cache, || {
            set_owner(2);
            let load = |own: &(SwapEntry, Page)| {
                let mut loaded = [0xee; PAGE_SIZE];
                cache.swap_in(own.0, &mut loaded).is_ok() && loaded == own.1
            };
            let ok = pages.iter().all(load);
            let mut written = [(pages[0].0, 0u64); 64];
            for (i, (entry, tag)) in written.iter_mut().enumerate() {
                *tag = 10_000 + i as u64;
                let Ok(new) = cache.swap_out(&any_page(*tag)) else { return false };
                *entry = new;
            }
            cache.shrink(1 << 20);
            let right = |(entry, tag): &(SwapEntry, u64)| {
                let mut loaded = [0; PAGE_SIZE];
                cache.swap_in(*entry, &mut loaded).is_ok() && loaded == any_page(*tag)
            };
            ok && written.iter().all(right) && cache.remote_counts().loads > 0
        });
        assert_eq!(testing::wait(child), 0);
        let has = |id: u32| w.leases.iter().any(|l| l.load(Ordering::Relaxed) == id);
        assert!(has(1) && has(2));
        w.fill(2);
        assert_eq!(w.load(), (2 * PAGES, 0));
    }
}
