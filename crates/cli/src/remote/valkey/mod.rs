//! A store of values, as `uzswap run` sees to it: the servers are looked at before the program
//! starts, the leases of its values begin anew while it runs, and at the end they are deleted.
//!
//! Values need no claim: each run has keys of its own, that begin with random letters.

pub mod address;
pub mod node;

use std::time::{Duration, Instant};

use uzswap::control::Settings;
use uzswap::store::CLUSTER_BYTES;
use uzswap::store::extents::{EXTENTS_MOST, Geometry, Leases};
use uzswap::store::remote::{EPROTO, NO_ANSWER, Server};
use uzswap::store::valkey::{GONE, LETTERS, PREFIX_BYTES, TOO_MANY, Valkey, Verb};
use uzswap::sys::socket::Patience;
use uzswap::sys::{Errno, file};

use super::keeper::{Kept, owner_of};
use crate::control::Run;
use address::{Address, PASSWORD};
use node::Node;

/// The patience with each answer, before the program starts.
const PATIENCE_NS: u64 = 5_000_000_000;
/// The patience with the values of one extent, while the program runs: sixteen round trips at
/// least, of which each may take a hundred milliseconds. A node that came to nothing is left alone
/// for a while, so that such waits do not add up to a lease.
const EXTENT_NS: u64 = 2_000_000_000;
/// The time after which an extent is renewed again of which some values could not be: by then the
/// node that has them is asked again, or another one in its place.
const ONCE_MORE_AFTER: Duration = Duration::from_secs(3);
/// The part of a second in which leases are renewed. The next second begins with the first extent
/// that was left over.
const RENEWS_WITHIN: Duration = Duration::from_millis(700);
/// The capacity that is assumed where no server says how much it takes.
const CAPACITY_BYTES: u64 = 64 << 30;
/// The most that is used: beyond it an extent has more values than can be renewed in time, and in
/// the end more than keys have numbers for.
const CAPACITY_MOST_BYTES: u64 = 16 << 40;
/// The beginning of every key.
const KEYS: &[u8; 3] = b"uz:";

/// An empty table of leases, for the connections of `uzswap run`, which leases no extent itself.
static NOBODY: Leases = [const { std::sync::atomic::AtomicU32::new(0) }; EXTENTS_MOST];

/// The servers of a run.
pub struct Values {
    shown: String,
    /// As the runtime gets them.
    settings: Box<Settings>,
    valkey: Valkey,
    geometry: Geometry,
    pub nodes: Vec<Node>,
    lease: Duration,
    /// For each extent that is leased, the moment from which on its values are to be renewed.
    due: Vec<Option<Instant>>,
    /// The extent whose turn is next.
    turn: usize,
}

impl std::fmt::Debug for Values {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Values").field(&self.shown).finish()
    }
}

impl Values {
    /// Connects to the servers, and asks each for its settings. An address that names a replica is
    /// an error.
    pub fn open(address: &Address) -> Result<Values, String> {
        let shown = address.text.clone();
        let in_words = |e| in_words(&shown, e);
        let mut settings = Box::new(Settings::new());
        let servers = address.resolve().map_err(|why| format!("{shown}: {why}"))?;
        settings.servers_len = servers.len() as u32;
        settings.servers[..servers.len()].copy_from_slice(&servers);
        settings.lease_ms = address.lease.as_millis() as u32;
        settings.key_prefix = prefix().map_err(in_words)?;
        let valkey = connect(&mut settings, &shown)?;
        let mut nodes: Vec<Node> = valkey
            .primaries()
            .map(|node| Node::ask(&valkey, node.address(), true))
            .collect::<Result<_, _>>()
            .map_err(|why| format!("{shown}: {why}"))?;
        let geometry = cut(nodes.iter().filter_map(Node::capacity_bytes));
        if settings.servers()[0].kind == Server::CLUSTER {
            // Replicas may be primaries soon, so their settings are asked for, too. One that does
            // not answer is left out.
            let replicas: Vec<_> = nodes.iter().flat_map(|node| node.replicas.clone()).collect();
            let ask = |at: &_| Node::ask(&valkey, *at, false).ok();
            nodes.extend(replicas.iter().filter_map(ask));
        }
        settings.extent_bytes = geometry.extent_bytes;
        settings.servers[0].extents = geometry.extents_of(0).len() as u32;
        let (due, lease) = (vec![None; EXTENTS_MOST], address.lease);
        Ok(Values { shown, settings, valkey, geometry, nodes, lease, due, turn: 0 })
    }

    pub fn is_cluster(&self) -> bool {
        self.settings.servers()[0].kind == Server::CLUSTER
    }

    pub fn primaries(&self) -> usize {
        self.valkey.primaries().count()
    }

    /// Whether a primary that is gone is followed by a replica.
    pub fn has_replicas(&self) -> bool {
        self.is_cluster() && self.valkey.primaries().all(|node| node.has_replica())
    }

    /// A server that may delete values of its own accord is no place for pages.
    pub fn check_policies(&self) -> Result<(), String> {
        let evicts = self.nodes.iter().find_map(|node| Some((node, node.evicts()?)));
        match evicts {
            Some((node, policy)) => Err(format!(
                "{}: {} has maxmemory-policy {policy}, and would delete pages when it is full: {}",
                self.shown,
                node.shown,
                node::POLICY_REMEDY
            )),
            None => Ok(()),
        }
    }

    /// Reads and writes a little. Returns the medians of `rounds` times, in nanoseconds: of 4 KiB
    /// read, 64 KiB read, and 64 KiB written.
    pub fn measure(&self, rounds: usize) -> Result<[u64; 3], String> {
        let in_words = |e| in_words(&self.shown, e);
        let mut buf = vec![0x5a; CLUSTER_BYTES];
        let mut patience = Patience::new(PATIENCE_NS);
        let mut times = [const { Vec::new() }; 3];
        for round in 0..rounds as u64 {
            let mut time = |i: usize, done: &mut dyn FnMut() -> Result<(), Errno>| {
                let before = Instant::now();
                done().map_err(in_words)?;
                times[i].push(before.elapsed().as_nanos() as u64);
                Ok::<(), String>(())
            };
            time(2, &mut || self.valkey.store(round, &buf, &mut patience))?;
            time(0, &mut || self.valkey.read(round, 4096, &mut buf[..4096]))?;
            time(1, &mut || self.valkey.read(round, 0, &mut buf))?;
        }
        let rounds = 0..rounds as u64;
        self.valkey.each(Verb::Unlink, rounds, &mut patience).map_err(in_words)?;
        Ok(times.map(|mut times| {
            times.sort_unstable();
            times[times.len() / 2]
        }))
    }

    /// The numbers of the values of an extent; none, if the servers have no such one.
    fn numbers(&self, extent: usize) -> std::ops::Range<u64> {
        let Some((_, at)) = self.geometry.at(extent) else { return 0..0 };
        let first = at / CLUSTER_BYTES as u64;
        first..first + self.geometry.extent_bytes / CLUSTER_BYTES as u64
    }

    /// Does something to the values of an extent, as far as their nodes answer. False: not to all.
    fn each(&self, verb: Verb, extent: usize) -> bool {
        let mut patience = Patience::new(EXTENT_NS);
        self.valkey.each(verb, self.numbers(extent), &mut patience).is_ok()
    }
}

impl Kept for Values {
    fn put(&self, settings: &mut Settings) {
        settings.extent_bytes = self.settings.extent_bytes;
        settings.servers_len = self.settings.servers_len;
        settings.servers = self.settings.servers;
        settings.lease_ms = self.settings.lease_ms;
        settings.key_prefix = self.settings.key_prefix;
    }

    /// Tries what processes will do: rights that are missing show now.
    fn claim(&mut self) -> Result<(), String> {
        let in_words = |e| in_words(&self.shown, e);
        let mut patience = Patience::new(PATIENCE_NS);
        let (written, mut read) = ([7; 512], [0; 512]);
        self.valkey.store(0, &written, &mut patience).map_err(in_words)?;
        self.valkey.read(0, 0, &mut read).map_err(in_words)?;
        self.valkey.each(Verb::Renew, 0..1, &mut patience).map_err(in_words)?;
        self.valkey.each(Verb::Unlink, 0..1, &mut patience).map_err(in_words)?;
        if read != written {
            return Err(format!("{}: what was written comes back otherwise", self.shown));
        }
        Ok(())
    }

    /// True: without somebody who renews their leases values end.
    fn outlives_the_program(&self) -> bool {
        true
    }

    fn beat(&mut self, run: &Run) {
        let began = Instant::now();
        let between = self.lease / 3;
        for i in 0..EXTENTS_MOST {
            let extent = (self.turn + i) % EXTENTS_MOST;
            if owner_of(run.tree, extent) == 0 {
                self.due[extent] = None;
                continue;
            }
            let now = Instant::now();
            if now < *self.due[extent].get_or_insert(began + between) {
                continue;
            }
            // A node that is gone keeps no extent from being renewed at the others.
            let is_done = self.each(Verb::Renew, extent);
            let next = if is_done { between } else { between.min(ONCE_MORE_AFTER) };
            self.due[extent] = Some(now + next);
            if began.elapsed() > RENEWS_WITHIN {
                self.turn = (extent + 1) % EXTENTS_MOST;
                return;
            }
        }
    }

    fn give_back(&mut self, extent: usize) -> bool {
        self.due[extent] = None;
        self.each(Verb::Unlink, extent)
    }

    /// Does nothing: values that could not be deleted end with their leases.
    fn release(&mut self, _is_used: bool) -> Result<(), String> {
        Ok(())
    }

    fn shown(&self) -> String {
        self.shown.clone()
    }
}

/// The extents of primaries that say that they take so much: twice as many as they have room for,
/// since none is filled.
fn cut(capacities: impl Iterator<Item = u64>) -> Geometry {
    let capacity = match capacities.fold(0, u64::saturating_add) {
        0 => CAPACITY_BYTES,
        bytes => bytes.min(CAPACITY_MOST_BYTES),
    };
    Geometry::of(&[2 * capacity])
}

/// Connects to a Cluster, or to one server if it is none.
fn connect(settings: &mut Settings, shown: &str) -> Result<Valkey, String> {
    let hosts = settings.servers_len as usize;
    let mut as_kind = |kind| {
        settings.servers[..hosts].iter_mut().for_each(|server| server.kind = kind);
        let valkey = Valkey::new(&settings.terms(), &NOBODY).with_patience(PATIENCE_NS);
        valkey.connect(PATIENCE_NS).map(|()| valkey)
    };
    match as_kind(Server::CLUSTER) {
        Ok(valkey) if valkey.is_whole() => Ok(valkey),
        Ok(_) => Err(format!(
            "{shown}: slots of the Cluster have no node: see 'redis-cli --cluster check HOST:PORT'"
        )),
        Err(Errno::EOPNOTSUPP) if hosts == 1 => {
            as_kind(Server::VALKEY).map_err(|e| in_words(shown, e))
        }
        Err(Errno::EOPNOTSUPP) => Err(format!(
            "{shown}: several hosts are for the nodes of a Cluster, and these are none: name one \
             of them"
        )),
        Err(e) => Err(in_words(shown, e)),
    }
}

/// Letters that no other run has.
fn prefix() -> Result<[u8; PREFIX_BYTES], Errno> {
    let mut prefix = [0; PREFIX_BYTES];
    file::fill_random(&mut prefix)?;
    prefix.iter_mut().for_each(|byte| *byte = LETTERS[usize::from(*byte % 64)]);
    prefix[..KEYS.len()].copy_from_slice(KEYS);
    Ok(prefix)
}

/// An error of a server, for people.
fn in_words(shown: &str, e: Errno) -> String {
    let why = match e {
        Errno::ETIMEDOUT | NO_ANSWER => "it does not answer".to_string(),
        EPROTO => "what answers there speaks neither Valkey's protocol nor Redis's (TLS, perhaps)"
            .to_string(),
        Errno::EACCES => format!(
            "it refuses what is needed: a user's name and password are wrong or missing \
             (valkey://USER@HOST and {PASSWORD}), or that user may not SET, GETRANGE, PEXPIRE, \
             UNLINK, WAIT, INFO and CLUSTER SLOTS with keys uz:*"
        ),
        Errno::ENOSPC => "it is full (maxmemory): give it more memory, or name another".to_string(),
        Errno::EAGAIN => "it is loading, or without a primary: try again later".to_string(),
        TOO_MANY => {
            format!("its Cluster has more than {} primaries", uzswap::store::valkey::NODES_MOST)
        }
        GONE => "what was written to it is not there any more".to_string(),
        Errno(number) => crate::program::reason(&std::io::Error::from_raw_os_error(number)),
    };
    format!("{shown}: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::ControlBlock;
    use std::io::Write;
    use std::net::TcpListener;
    use std::sync::atomic::Ordering;

    #[test]
    fn keys_of_runs_are_apart_and_mean_nothing_to_a_cluster() {
        let (a, b) = (prefix().unwrap(), prefix().unwrap());
        assert!(a != b && a.starts_with(b"uz:") && !a.contains(&b'{'));
    }

    #[test]
    fn however_much_servers_say_that_they_take_each_value_has_a_key_and_is_renewed() {
        let count = |g: Geometry| g.extent_bytes / CLUSTER_BYTES as u64;
        assert_eq!(cut([].into_iter()), Geometry::of(&[2 * CAPACITY_BYTES]));
        assert_eq!(cut([1 << 30, 3 << 30].into_iter()), Geometry::of(&[8 << 30]));
        for many in [&[u64::MAX][..], &[i64::MAX as u64], &[u64::MAX, 1], &[1 << 63, 1 << 63]] {
            let geometry = cut(many.iter().copied());
            let (_, last) = geometry.at(geometry.extents_of(0).end - 1).expect("there are some");
            assert!((last + geometry.extent_bytes) / (CLUSTER_BYTES as u64) < 1 << 36, "{many:?}");
            assert!(count(geometry) <= 1 << 18, "{many:?}");
        }
    }

    /// Values of a server at that port, in two extents.
    fn values(port: u16) -> Values {
        let mut settings = Box::new(Settings::new());
        let address = Address::parse(&format!("valkey://127.0.0.1:{port}"), |_| None).unwrap();
        let servers = address.resolve().unwrap();
        settings.servers[0] = Server { kind: Server::VALKEY, extents: 2, ..servers[0] };
        (settings.servers_len, settings.extent_bytes) = (1, 1 << 20);
        let valkey = Valkey::new(&settings.terms(), &NOBODY);
        Values {
            shown: "it".to_string(),
            geometry: Geometry::cut(1 << 20, [2].into_iter()),
            settings,
            valkey,
            nodes: Vec::new(),
            lease: Duration::from_secs(3600),
            due: vec![None; EXTENTS_MOST],
            turn: 0,
        }
    }

    #[test]
    fn extents_have_units_of_their_own_and_one_that_is_none_has_none() {
        let mut values = values(1);
        assert_eq!((values.numbers(0), values.numbers(1)), (1..17, 17..33));
        for extent in [2, EXTENTS_MOST - 1] {
            assert!(values.numbers(extent).is_empty() && values.give_back(extent));
        }
    }

    #[test]
    fn servers_that_are_not_there_are_named() {
        let address = Address::parse("valkey://127.0.0.1:1", |_| None).unwrap();
        let error = Values::open(&address).unwrap_err();
        assert!(error.contains("valkey://127.0.0.1:1: "), "{error}");
    }

    #[test]
    fn an_extent_that_cannot_be_renewed_keeps_no_other_from_its_turn() {
        let block: &'static ControlBlock =
            Box::leak(Box::new(ControlBlock::create(&Settings::new()).unwrap()));
        let (tree, control_fd) = (block.tree(), block.fd());
        let run = Run { id: 1, tree, control_fd, command: Vec::new(), started: Instant::now() };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut values = values(listener.local_addr().unwrap().port());
        tree.leases[0].store(7, Ordering::Release);
        tree.leases[1].store(7, Ordering::Release);
        // Their leases begin when they are seen first.
        let before = Instant::now();
        values.beat(&run);
        assert!(values.due[..2].iter().all(|due| due.is_some_and(|at| at > before)));
        assert_eq!((values.due[2], values.turn), (None, 0));
        // A server that refuses every command of one extent, and is left alone with the other.
        let refuses = std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            stream.write_all(&b"-NOPERM no\r\n".repeat(40)).unwrap();
            stream
        });
        (values.lease, values.due) = (Duration::ZERO, vec![None; EXTENTS_MOST]);
        // The second time only if the first one took too long.
        (0..2).for_each(|_| values.beat(&run));
        assert!(values.due[..2].iter().all(Option::is_some), "both have had their turn");
        tree.leases[0].store(0, Ordering::Release);
        values.beat(&run);
        assert!(values.due[0].is_none() && values.due[1].is_some());
        drop(refuses.join().unwrap());
    }
}
