//! Serves the metrics: one thread, all connections at once, none of which can hold up another or
//! the run.
//!
//! ```text
//!   accept ─> Reading (the request's head) ─> Writing (the answer) ─> Closing (until the other side has closed) ─> gone
//! ```
//!
//! The resources that a client can take are bounded. A connection lasts a few seconds, and sends so
//! many bytes in so many reads. There are a few connections (the oldest makes room for the next),
//! and so many new ones a second. The text is made at most ten times a second, however many ask.

use std::io::{self, PipeReader};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::Watched;
use super::address::{Listener, Stream};
use super::exposition::Exposition;
use super::request::{self, HEAD_MAX, Request};

const CONNECTIONS_MAX: usize = 16;
/// The longest life of a connection, from accept to the end.
const CONNECTION_TIME: Duration = Duration::from_secs(5);
const ACCEPTS_PER_SECOND: u32 = 50;
/// Reads of one connection: some clients send byte by byte, and each wakes us.
const READS_MAX: u32 = 64;
/// How old the text may be that is given.
const FRESH: Duration = Duration::from_millis(100);

enum Phase {
    Reading(Vec<u8>),
    Writing { head: Vec<u8>, body: Rc<str>, written: usize },
    Closing,
    Gone,
}

struct Connection {
    stream: Box<dyn Stream>,
    accepted: Instant,
    reads: u32,
    phase: Phase,
}

impl Connection {
    fn wants(&self) -> PollFlags {
        match self.phase {
            Phase::Writing { .. } => PollFlags::POLLOUT,
            _ => PollFlags::POLLIN,
        }
    }

    /// Goes on as far as the socket lets us.
    fn advance(&mut self, metrics: &mut Metrics) {
        loop {
            let next = match &mut self.phase {
                Phase::Reading(head) => {
                    let mut bytes = [0; 2048];
                    match self.stream.read(&mut bytes) {
                        Ok(0) => Phase::Gone,
                        Ok(n) => {
                            self.reads += 1;
                            head.extend_from_slice(&bytes[..n.min(HEAD_MAX - head.len())]);
                            match request::parse(head) {
                                Request::Incomplete if self.reads < READS_MAX => continue,
                                Request::Incomplete => Phase::Gone,
                                Request::Metrics { with_body } => {
                                    let (head, body) = request::answer(&metrics.text(), with_body);
                                    Phase::Writing { head, body, written: 0 }
                                }
                                Request::Refused(head) => {
                                    Phase::Writing { head, body: "".into(), written: 0 }
                                }
                            }
                        }
                        Err(e) => return self.failed(&e),
                    }
                }
                Phase::Writing { head, body, written } => {
                    let rest = match written.checked_sub(head.len()) {
                        None => &head[*written..],
                        Some(of_body) => &body.as_bytes()[of_body..],
                    };
                    if rest.is_empty() {
                        self.stream.finish();
                        Phase::Closing
                    } else {
                        match self.stream.write(rest) {
                            Ok(0) => Phase::Gone,
                            Ok(n) => {
                                *written += n;
                                continue;
                            }
                            Err(e) => return self.failed(&e),
                        }
                    }
                }
                // To close while bytes of the other side are unread would take back what it has not
                // read of ours.
                Phase::Closing => {
                    self.reads += 1;
                    match self.stream.read(&mut [0; 2048]) {
                        Ok(0) => Phase::Gone,
                        Ok(_) if self.reads < READS_MAX => continue,
                        Ok(_) => Phase::Gone,
                        Err(e) => return self.failed(&e),
                    }
                }
                Phase::Gone => return,
            };
            self.phase = next;
        }
    }

    fn failed(&mut self, e: &io::Error) {
        if !matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) {
            self.phase = Phase::Gone;
        }
    }
}

/// The text, made anew when it is old.
struct Metrics<'a> {
    watched: &'a Watched<'a>,
    exposition: Exposition,
    made: Option<(Instant, Rc<str>)>,
}

impl Metrics<'_> {
    fn text(&mut self) -> Rc<str> {
        match &self.made {
            Some((at, text)) if at.elapsed() < FRESH => text.clone(),
            _ => {
                let text: Rc<str> = self.exposition.render(self.watched).into();
                self.made = Some((Instant::now(), text.clone()));
                text
            }
        }
    }
}

/// How many connections may still be accepted in this second.
struct Pace {
    since: Instant,
    accepted: u32,
}

impl Pace {
    /// How long to wait until the next may be accepted.
    fn pause(&mut self, now: Instant) -> Duration {
        let left = Duration::from_secs(1).saturating_sub(now - self.since);
        if left.is_zero() {
            *self = Pace { since: now, accepted: 0 };
        }
        if self.accepted < ACCEPTS_PER_SECOND { Duration::ZERO } else { left }
    }
}

/// Serves until the other end of `stop` is closed. The listener's file is gone then.
pub fn serve(listener: Listener, watched: &Watched, stop: PipeReader) {
    let mut metrics = Metrics { watched, exposition: Exposition::new(), made: None };
    let mut connections: Vec<Connection> = Vec::new();
    let mut pace = Pace { since: Instant::now(), accepted: 0 };
    loop {
        let now = Instant::now();
        let pause = pace.pause(now);
        let deadlines = connections
            .iter()
            .map(|c| (c.accepted + CONNECTION_TIME).saturating_duration_since(now));
        let timeout = deadlines.chain((!pause.is_zero()).then_some(pause)).min();
        let mut fds = vec![PollFd::new(stop.as_fd(), PollFlags::POLLIN)];
        let listens = if pause.is_zero() { PollFlags::POLLIN } else { PollFlags::empty() };
        fds.push(PollFd::new(listener.as_fd(), listens));
        fds.extend(connections.iter().map(|c| PollFd::new(c.stream.as_fd(), c.wants())));
        // A millisecond more, so that what is due then is due.
        let timeout =
            timeout.map_or(PollTimeout::NONE, |t| PollTimeout::from(t.as_millis() as u16 + 1));
        if poll(&mut fds, timeout).is_err_and(|e| e != nix::errno::Errno::EINTR) {
            return;
        }
        let ready: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(true)).collect();
        drop(fds);
        if ready[0] {
            return;
        }
        for (connection, _) in connections.iter_mut().zip(&ready[2..]).filter(|(_, ready)| **ready)
        {
            connection.advance(&mut metrics);
        }
        let is_left = |c: &Connection| {
            !matches!(c.phase, Phase::Gone) && c.accepted.elapsed() < CONNECTION_TIME
        };
        connections.retain(is_left);
        if ready[1] {
            // One at a time: the connections that are there already have their turn in between.
            pace.accepted += 1;
            match listener.accept() {
                Ok(stream) => {
                    if connections.len() == CONNECTIONS_MAX {
                        connections.remove(0);
                    }
                    let phase = Phase::Reading(Vec::new());
                    connections.push(Connection {
                        stream,
                        accepted: Instant::now(),
                        reads: 0,
                        phase,
                    });
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                // No descriptor is free, for instance: not again before the next second.
                Err(_) => pace.accepted = ACCEPTS_PER_SECOND,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::time::SystemTime;

    /// Serves an unmanaged run while `clients` runs.
    fn with_server(clients: impl FnOnce(&dyn Fn() -> TcpStream)) {
        let listener = Listener::open("0".as_ref()).unwrap();
        let Listener::Tcp(tcp) = &listener else { panic!() };
        let address = tcp.local_addr().unwrap();
        let watched = Watched {
            tree: None,
            memory_bytes: 1 << 30,
            started: Instant::now(),
            started_at: SystemTime::now(),
        };
        let (stop, end) = io::pipe().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| serve(listener, &watched, stop));
            clients(&|| TcpStream::connect(address).unwrap());
            drop(end);
        });
    }

    fn ask(mut stream: TcpStream) -> String {
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn hostile_clients_do_not_keep_others_from_their_metrics() {
        with_server(|connect| {
            // Some say nothing, some stop halfway, some talk without end, some leave at once.
            let mut held: Vec<TcpStream> = Vec::new();
            for kind in 0..20 {
                let mut stream = connect();
                match kind % 4 {
                    0 => {}
                    1 => stream.write_all(b"GET /met").unwrap(),
                    2 => stream.write_all(&[b'x'; 20_000]).unwrap(),
                    _ => continue,
                }
                held.push(stream);
            }
            for _ in 0..3 {
                let answer = ask(connect());
                assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
                assert!(answer.contains("\nuzswap_managed 0\n"), "{answer}");
            }
        });
    }

    #[test]
    fn several_at_once() {
        with_server(|connect| {
            let streams: Vec<TcpStream> = (0..8).map(|_| connect()).collect();
            for stream in streams.into_iter().rev() {
                let answer = ask(stream);
                let (head, body) = answer.split_once("\r\n\r\n").unwrap();
                assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
            }
        });
    }

    #[test]
    fn connections_are_paced() {
        let now = Instant::now();
        let mut pace = Pace { since: now, accepted: ACCEPTS_PER_SECOND };
        assert!(pace.pause(now) > Duration::from_millis(900));
        assert!(pace.pause(now + Duration::from_secs(1)).is_zero());
        assert_eq!(pace.accepted, 0);
    }
}
