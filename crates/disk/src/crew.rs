//! The threads that serve connections: one joins for each, and a few work at a time.
//!
//! ```text
//!   connections ──> epoll ──> a thread at work: requests of one that are there ──> the next event
//!                             │ waits for its client in the middle of a request, or takes long
//!                             └──> a thread that is off works meanwhile
//! ```
//! With a thread waiting on each socket, every request costs a wake-up and a change of threads. A
//! thread that takes the next request of any connection finds one there already when many clients
//! ask, and goes on.
//!
//! There are as many threads as connections: each could wait in the middle of a request for a
//! client of its own, and the next event still finds a thread. While there are no more connections
//! than may work at a time, each thread waits on its own socket, without epoll.
//!
//! A connection is in the hands of one thread: its *turn*. An event that another thread gets
//! meanwhile says that there is more to do before the turn ends.

use std::io::{self, ErrorKind, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use uzswap::sys::epoll::{Epoll, Ready};
use uzswap::sys::{self, Errno, socket};

use crate::channel::{Channel, Input};
use crate::disk::Disk;
use crate::handshake::Agreement;
use crate::server::Stream;
use crate::session::Session;

/// Calls of one turn after which it is long: another thread works meanwhile, so that a client that
/// sends and sends keeps nobody waiting.
const LONG_TURN_CALLS: u32 = 64;

/// Looks for an event before a thread sleeps. Clients whose replies have just gone run meanwhile,
/// and ask again. More than a few would spend time where nobody asks.
const LOOKS: u32 = 3;

// The holder of a connection's turn.
const NOBODY: u8 = 0;
const SOMEBODY: u8 = 1;
/// Somebody, who is to look again.
const AGAIN: u8 = 2;

/// Threads by what they do.
#[derive(Default)]
struct Hands {
    at_work: usize,
    off: usize,
}

/// See the module.
pub struct Crew {
    epoll: Epoll,
    /// The most threads that work at a time.
    most: usize,
    /// By place.
    connections: Box<[Mutex<Option<Arc<Connection>>>]>,
    members: AtomicUsize,
    hands: Mutex<Hands>,
    /// As in `hands`, to be read without the lock.
    at_work: AtomicUsize,
    /// Threads that wait for an event.
    idle: AtomicUsize,
    comes: Condvar,
}

/// The part that both sides of a connection share.
struct Link {
    stream: Stream,
    crew: Arc<Crew>,
    place: usize,
    /// Another thread works instead of the one whose turn it is.
    is_lent: AtomicBool,
    /// Calls of this turn.
    calls: AtomicU32,
    is_added: AtomicBool,
    /// Nothing comes after what is there.
    is_ending: AtomicBool,
}

struct Connection {
    link: Arc<Link>,
    turn: AtomicU8,
    session: Mutex<(Channel<Incoming, Outgoing>, Agreement)>,
}

impl Crew {
    pub fn new(most: usize, connections: usize) -> io::Result<Crew> {
        Ok(Crew {
            epoll: Epoll::new().map_err(in_words)?,
            most: most.max(1),
            connections: (0..connections).map(|_| Mutex::new(None)).collect(),
            members: AtomicUsize::new(0),
            hands: Mutex::default(),
            at_work: AtomicUsize::new(0),
            idle: AtomicUsize::new(0),
            comes: Condvar::new(),
        })
    }

    /// Serves a connection after its handshake, and others with it, until some connection has
    /// ended. There is a place for it.
    pub fn join(
        self: &Arc<Self>,
        disk: &Disk,
        stream: Stream,
        channel: Channel<(), ()>,
        agreement: Agreement,
    ) {
        let connection = self.enter(stream, channel, agreement);
        self.members.fetch_add(1, Ordering::SeqCst);
        // Its first requests may have come with the handshake, and no event tells of those: so they
        // are served at once, however many threads work.
        self.count(&mut self.hands(), 1);
        let mut next = Some(connection);
        loop {
            if let Some(connection) = next.take()
                && self.take_turn(&connection, disk)
            {
                break;
            }
            if self.at_work.load(Ordering::SeqCst) > self.most {
                self.end_work();
                self.begin_work();
            }
            next = self.wait();
        }
        self.members.fetch_sub(1, Ordering::SeqCst);
        self.end_work();
    }

    /// Finds a place.
    fn enter(
        self: &Arc<Self>,
        stream: Stream,
        channel: Channel<(), ()>,
        agreement: Agreement,
    ) -> Arc<Connection> {
        let found = self.connections.iter().enumerate().find_map(|(place, slot)| {
            let slot = lock(slot);
            slot.is_none().then_some((place, slot))
        });
        let (place, mut slot) = found.expect("there are as many places as connections");
        let link = Arc::new(Link {
            stream,
            crew: self.clone(),
            place,
            is_lent: AtomicBool::new(false),
            calls: AtomicU32::new(0),
            is_added: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
        });
        let input = Incoming { link: link.clone(), has_all: false };
        let channel = channel.over(input, Outgoing { link: link.clone() });
        let session = Mutex::new((channel, agreement));
        let connection = Connection { link, turn: AtomicU8::new(NOBODY), session };
        slot.insert(Arc::new(connection)).clone()
    }

    /// The connection of the next event.
    fn wait(&self) -> Option<Arc<Connection>> {
        self.idle.fetch_add(1, Ordering::SeqCst);
        let soon = (0..LOOKS).find_map(|_| self.look());
        let ready = soon.or_else(|| self.epoll.wait().expect("epoll waits"));
        self.idle.fetch_sub(1, Ordering::SeqCst);
        let ready = ready?;
        let connection = lock(&self.connections[ready.name as usize]).clone()?;
        if ready.is_end {
            connection.link.is_ending.store(true, Ordering::SeqCst);
        }
        Some(connection)
    }

    /// Looks for an event, and lets clients ask meanwhile.
    fn look(&self) -> Option<Ready> {
        let ready = self.epoll.look().ok()?;
        if ready.is_none() {
            sys::yield_now();
        }
        ready
    }

    /// Serves what a connection has sent, unless it is in other hands; says whether it has ended.
    fn take_turn(&self, connection: &Connection, disk: &Disk) -> bool {
        let turn = &connection.turn;
        let begin = |was| match was {
            NOBODY => Some(SOMEBODY),
            _ => Some(AGAIN),
        };
        if turn.fetch_update(Ordering::SeqCst, Ordering::SeqCst, begin) != Ok(NOBODY) {
            return false;
        }
        let link = &*connection.link;
        let mut session = lock(&connection.session);
        let (channel, agreement) = &mut *session;
        let is_end = loop {
            channel.input().begin_turn();
            let served = Session { channel, disk, agreement: *agreement }.serve();
            if !served.is_err_and(|e| e.kind() == ErrorKind::WouldBlock) || !link.add() {
                break true;
            }
            link.take_back();
            let end = turn.compare_exchange(SOMEBODY, NOBODY, Ordering::SeqCst, Ordering::SeqCst);
            if end.is_ok() {
                break false;
            }
            turn.store(SOMEBODY, Ordering::SeqCst);
        };
        if is_end {
            link.take_back();
            link.remove();
            *lock(&self.connections[link.place]) = None;
        }
        is_end
    }

    // ---- Who works

    fn hands(&self) -> MutexGuard<'_, Hands> {
        lock(&self.hands)
    }

    fn count(&self, hands: &mut Hands, more: isize) {
        hands.at_work = hands.at_work.strict_add_signed(more);
        self.at_work.store(hands.at_work, Ordering::SeqCst);
    }

    /// Waits until so few threads work that one more may.
    fn begin_work(&self) {
        let mut hands = self.hands();
        while hands.at_work >= self.most {
            hands.off += 1;
            hands = self.comes.wait(hands).expect("a panic ends the process");
            hands.off -= 1;
        }
        self.count(&mut hands, 1);
    }

    fn end_work(&self) {
        let mut hands = self.hands();
        self.count(&mut hands, -1);
        // One that waits for events already goes on, and lets others work once it cannot.
        if hands.off > 0 && hands.at_work < self.most && self.idle.load(Ordering::SeqCst) == 0 {
            self.comes.notify_one();
        }
    }

    fn is_alone(&self) -> bool {
        self.members.load(Ordering::SeqCst) <= self.most
    }
}

impl Link {
    /// Waits for the client, while another thread works.
    fn wait<T>(&self, wait: impl FnOnce() -> T) -> T {
        if self.is_lent.load(Ordering::SeqCst) {
            return wait();
        }
        self.crew.end_work();
        let done = wait();
        self.crew.count(&mut self.crew.hands(), 1);
        done
    }

    /// Lets another thread work until the turn ends.
    fn lend(&self) {
        if !self.is_lent.swap(true, Ordering::SeqCst) {
            self.crew.end_work();
        }
    }

    /// Lends in a long turn.
    fn count_call(&self) {
        if self.calls.fetch_add(1, Ordering::Relaxed) >= LONG_TURN_CALLS {
            self.lend();
        }
    }

    /// The turn ends: works itself again.
    fn take_back(&self) {
        if self.is_lent.swap(false, Ordering::SeqCst) {
            self.crew.count(&mut self.crew.hands(), 1);
        }
    }

    /// Has events from now on; says whether that could be.
    fn add(&self) -> bool {
        let is_added = self.is_added.swap(true, Ordering::SeqCst);
        is_added || self.crew.epoll.add(self.stream.fd(), self.place as u64).is_ok()
    }

    fn remove(&self) {
        if self.is_added.swap(false, Ordering::SeqCst) {
            let _ = self.crew.epoll.remove(self.stream.fd());
        }
    }
}

/// Bytes from a client.
struct Incoming {
    link: Arc<Link>,
    /// All was taken that had come: an event tells of more.
    has_all: bool,
}

impl Incoming {
    fn begin_turn(&mut self) {
        self.link.calls.store(0, Ordering::Relaxed);
        self.has_all = false;
    }

    fn take(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.link.count_call();
        let taken = socket::receive_now(self.link.stream.fd(), to).map_err(in_words)?;
        self.has_all = taken < to.len() && !self.link.is_ending.load(Ordering::SeqCst);
        Ok(taken)
    }
}

impl Read for Incoming {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self.take(to) {
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                let link = &*self.link;
                link.wait(|| link.stream.read(to))
            }
            done => done,
        }
    }
}

impl Input for Incoming {
    fn expect_long(&mut self) {
        self.link.lend();
    }

    fn read_between(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let link = &*self.link;
        if link.crew.is_alone() {
            link.remove();
            return link.wait(|| link.stream.read(to));
        }
        if self.has_all {
            return Err(ErrorKind::WouldBlock.into());
        }
        self.take(to)
    }
}

/// Bytes to a client.
struct Outgoing {
    link: Arc<Link>,
}

impl Write for Outgoing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let link = &*self.link;
        link.count_call();
        match socket::send_now(link.stream.fd(), bytes) {
            Ok(0) | Err(Errno::EAGAIN) => link.wait(|| link.stream.write(bytes)),
            done => done.map_err(in_words),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn in_words(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.0)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("a panic ends the process")
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;
    use crate::protocol::{CMD_FLUSH, CMD_READ, CMD_TRIM, CMD_WRITE};
    use crate::testing::{config, request};

    #[test]
    fn when_all_have_gone_nobody_is_at_work() {
        const CLIENTS: u64 = 6;
        let disk = Disk::new(&config(64 << 20, 64 << 20)).unwrap();
        for most in [1, 2, CLIENTS as usize] {
            let crew = Arc::new(Crew::new(most, CLIENTS as usize).unwrap());
            let serve = |stream| {
                let nothing = Channel::new(&[][..], io::sink()).unwrap();
                crew.join(&disk, Stream::Unix(stream), nothing.over((), ()), Agreement::default());
            };
            let ask = |mut stream: UnixStream, n: u64| {
                let len = 300 << 10;
                // Longer than a socket holds, so it is waited for; then a long request, and a turn
                // of many.
                let write = request(0, CMD_WRITE, 1, n << 20, len as u32);
                stream.write_all(&write).unwrap();
                stream.write_all(&vec![n as u8; len]).unwrap();
                stream.write_all(&request(0, CMD_READ, 2, n << 20, len as u32)).unwrap();
                let mut said = vec![0; 16 + 16 + len];
                stream.read_exact(&mut said).unwrap();
                assert!(said[32..].iter().all(|byte| *byte == n as u8));
                stream.write_all(&request(0, CMD_TRIM, 3, 32 << 20, 32 << 20)).unwrap();
                let flushes = request(0, CMD_FLUSH, 4, 0, 0).repeat(500);
                stream.write_all(&flushes).unwrap();
                stream.read_exact(&mut vec![0; 501 * 16]).unwrap();
            };
            thread::scope(|scope| {
                for n in 0..CLIENTS {
                    let (near, far) = UnixStream::pair().unwrap();
                    scope.spawn(|| serve(near));
                    scope.spawn(move || ask(far, n));
                }
            });
            assert_eq!(crew.members.load(Ordering::SeqCst), 0);
            let hands = crew.hands();
            assert_eq!((hands.at_work, hands.off), (0, 0));
            assert!(crew.connections.iter().all(|place| lock(place).is_none()));
        }
    }
}
