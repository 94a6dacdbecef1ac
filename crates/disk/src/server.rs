//! Connections: who may come, how many, how long they may take to say what they want.
//!
//! One thread for each. A client that is slow, or stopped, keeps its own thread waiting and nobody
//! else; so there is a largest number of connections, and a handshake has a deadline, after which
//! the place is free again. Once it has shaken hands a client may be silent for as long as it
//! likes: kernels are. A machine that is gone, without a word, has its place until the kernel finds
//! out.

use std::cell::Cell;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use uzswap::sys::socket::keep_alive;

use crate::channel::Channel;
use crate::disk::Disk;
use crate::handshake::{self, Export};
use crate::keeper::Upkeep;
use crate::orders;
use crate::session::Session;

/// Connections at one time: each takes a thread and 264 KiB. A process whose pages are here has
/// two, or up to five.
pub const CONNECTIONS_MOST: usize = 128;
/// The time within which a handshake must be done, and an order be given.
const PATIENCE: Duration = Duration::from_secs(10);
const STACK_BYTES: usize = 256 << 10;
/// The pause after an error of accept, for instance too many open files.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Where clients come from.
#[derive(Debug)]
pub enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// A connection of either kind.
#[derive(Debug)]
enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Listener {
    fn accept(&self) -> io::Result<Stream> {
        Ok(match self {
            Listener::Unix(listener) => Stream::Unix(listener.accept()?.0),
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                // A reply is written as one, and a wait for more would be for nothing.
                stream.set_nodelay(true)?;
                // Without it only a machine that vanishes keeps its place.
                let _ = keep_alive(stream.as_raw_fd());
                Stream::Tcp(stream)
            }
        })
    }
}

impl Stream {
    fn set_patience(&self, patience: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Unix(s) => {
                s.set_read_timeout(patience).and_then(|()| s.set_write_timeout(patience))
            }
            Stream::Tcp(s) => {
                s.set_read_timeout(patience).and_then(|()| s.set_write_timeout(patience))
            }
        }
    }
}

/// A stream that must have said enough by a certain time, as long as there is one.
struct Patient<'a> {
    stream: &'a Stream,
    deadline: &'a Cell<Option<Instant>>,
}

impl Patient<'_> {
    fn before(&self) -> io::Result<()> {
        let Some(deadline) = self.deadline.get() else { return Ok(()) };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        self.stream.set_patience(Some(left))
    }
}

impl Read for Patient<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.before()?;
        match self.stream {
            Stream::Unix(s) => (&mut &*s).read(to),
            Stream::Tcp(s) => (&mut &*s).read(to),
        }
    }
}

impl Write for Patient<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.before()?;
        match self.stream {
            Stream::Unix(s) => (&mut &*s).write(bytes),
            Stream::Tcp(s) => (&mut &*s).write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A disk, and all that clients are told of it.
pub struct Server {
    pub disk: Arc<Disk>,
    pub export: Export,
    pub upkeep: Arc<Upkeep>,
    clients: AtomicUsize,
    /// Connections that give orders: as many may be as clients, counted apart, so that clients
    /// cannot keep orders out.
    orderers: AtomicUsize,
}

/// Counts a connection as long as it lives.
struct Place<'a>(&'a AtomicUsize);

impl<'a> Place<'a> {
    fn take(counter: &'a AtomicUsize) -> Option<Place<'a>> {
        let before = counter.fetch_add(1, Ordering::AcqRel);
        let place = Place(counter);
        (before < CONNECTIONS_MOST).then_some(place)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Server {
    pub fn new(disk: Arc<Disk>, export: Export, upkeep: Arc<Upkeep>) -> Server {
        Server { disk, export, upkeep, clients: AtomicUsize::new(0), orderers: AtomicUsize::new(0) }
    }

    /// Clients that are connected.
    pub fn clients(&self) -> usize {
        self.clients.load(Ordering::Acquire)
    }

    /// Serves the disk to whoever connects, in threads of its own, until the process ends.
    pub fn listen(self: &Arc<Self>, listener: Listener) -> io::Result<()> {
        self.accept(
            listener,
            "uzswap-disk",
            |server| &server.clients,
            |server, stream| {
                let _ = server.serve(stream);
            },
        )
    }

    /// Takes orders from whoever connects.
    pub fn listen_for_orders(self: &Arc<Self>, listener: Listener) -> io::Result<()> {
        self.accept(
            listener,
            "uzswap-orders",
            |server| &server.orderers,
            |server, stream| {
                let deadline = Cell::new(Some(Instant::now() + PATIENCE));
                let mut line = Patient { stream, deadline: &deadline };
                // The work may take any time; its answer must be taken within a minute.
                let _ = orders::serve(&mut line, server, || {
                    deadline.set(Some(Instant::now() + PATIENCE * 6));
                });
            },
        )
    }

    fn accept(
        self: &Arc<Self>,
        listener: Listener,
        name: &'static str,
        counter: fn(&Server) -> &AtomicUsize,
        serve: fn(&Server, &Stream),
    ) -> io::Result<()> {
        let server = self.clone();
        let builder = || thread::Builder::new().name(name.to_string()).stack_size(STACK_BYTES);
        let accept = move || {
            loop {
                let stream = match listener.accept() {
                    Ok(stream) => stream,
                    Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                    Err(_) => {
                        thread::sleep(ACCEPT_AGAIN);
                        continue;
                    }
                };
                // A client for which there is no place, or no thread, is turned away: nothing may
                // wait here.
                let server = server.clone();
                let _ = builder().spawn(move || {
                    if let Some(_place) = Place::take(counter(&server)) {
                        serve(&server, &stream);
                    }
                });
            }
        };
        thread::Builder::new()
            .name(name.to_string())
            .stack_size(STACK_BYTES)
            .spawn(accept)
            .map(drop)
    }

    /// One connection from its first byte to its last. An error says only that the client has gone,
    /// or spoke something else.
    fn serve(&self, stream: &Stream) -> io::Result<()> {
        let until = Instant::now() + PATIENCE;
        let deadline = Cell::new(Some(until));
        let side = || Patient { stream, deadline: &deadline };
        let mut channel = Channel::new(side(), side())?;
        let export = Export { read_only: self.disk.is_read_only(), ..self.export.clone() };
        let Some(agreement) = handshake::shake(&mut channel, &export, until)? else {
            return Ok(());
        };
        deadline.set(None);
        stream.set_patience(None)?;
        Session { channel: &mut channel, disk: &self.disk, agreement }.serve()
    }
}

#[cfg(test)]
mod tests {
    use std::iter;

    use super::*;
    use crate::testing::{config, export};

    fn server() -> Arc<Server> {
        let disk = Disk::new(&config(1 << 20, 4 << 20)).unwrap();
        let export = export(&disk);
        Arc::new(Server::new(Arc::new(disk), export, Arc::new(Upkeep::new(None, 0))))
    }

    #[test]
    fn a_place_that_is_refused_is_not_taken() {
        let server = server();
        let take = || Place::take(&server.clients);
        let mut places: Vec<Place> = iter::from_fn(take).take(1000).collect();
        assert_eq!(places.len(), CONNECTIONS_MOST);
        assert!((0..3).all(|_| take().is_none()));
        assert_eq!(server.clients(), CONNECTIONS_MOST);
        places.pop();
        assert!(take().is_some(), "one is free, after all the refusals");
        drop(places);
        assert_eq!(server.clients(), 0);
    }

    /// The kernel's table of connections: only it sees that a machine has no power any more.
    #[test]
    fn a_silent_client_is_asked_whether_it_is_there() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let [ours, theirs] =
            [listener.local_addr(), client.local_addr()].map(|a| a.unwrap().port());
        let _accepted = Listener::Tcp(listener).accept().unwrap();
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let [ours, theirs] = [ours, theirs].map(|port| format!("0100007F:{port:04X}"));
        let line = table.lines().map(|l| l.split_whitespace().collect::<Vec<_>>());
        let line = line.into_iter().find(|f| f[1..3] == [&ours, &theirs]).expect("it is there");
        let (timer, ticks) = line[5].split_once(':').expect("a timer, and when it rings");
        assert_eq!(timer, "02", "that of keepalive: {line:?}");
        let seconds = u64::from_str_radix(ticks, 16).unwrap() / 100;
        assert!(seconds <= 15 * 60, "{seconds}");
    }

    #[test]
    fn orders_are_taken_though_clients_have_all_places() {
        let server = server();
        let places: Vec<Place> =
            (0..CONNECTIONS_MOST).map(|_| Place::take(&server.clients).unwrap()).collect();
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        server.listen_for_orders(Listener::Tcp(listener)).unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE * 6)).unwrap();
        stream.write_all(b"stats\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("ok\n"), "{answer}");
        assert!(answer.ends_with(&format!("\nclients {}\n", places.len())), "{answer}");
    }

    #[test]
    fn a_deadline_is_for_all_that_is_said_and_not_for_each_byte() {
        let (mut client, ours) = UnixStream::pair().unwrap();
        let stream = Stream::Unix(ours);
        let deadline = Cell::new(Some(Instant::now() + Duration::from_secs(3600)));
        let mut patient = Patient { stream: &stream, deadline: &deadline };
        client.write_all(b"slow").unwrap();
        let mut byte = [0];
        assert_eq!(patient.read(&mut byte).unwrap(), 1);
        // There are more bytes, and room for an answer: only the time is over.
        deadline.set(Some(Instant::now()));
        assert_eq!(patient.read(&mut byte).unwrap_err().kind(), ErrorKind::TimedOut);
        assert_eq!(patient.write(b"no").unwrap_err().kind(), ErrorKind::TimedOut);
        deadline.set(None);
        assert_eq!((patient.read(&mut byte).unwrap(), byte), (1, *b"l"));
    }
}
