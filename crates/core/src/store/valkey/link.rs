//! One connection to a node: log in, commands, replies.
//!
//! Replies come in the order of the commands, so a command is known by its number. Some commands
//! stand for one request together: `ASKING` before (the key is here this once), `WAIT` behind (a
//! replica has it, too). A reply that does not come in time breaks the connection, as does one that
//! is not by the protocol: nobody could tell any more which reply is to which command.
//!
//! The descriptor keeps its number, as that of [`remote::Link`](crate::store::remote::Link) does.

mod login;
mod request;

pub use login::Login;
pub use request::{Manner, Outcome, PIPELINE_DEPTH, Ticket};

use super::resp::{Address, Complaint, Head, Incoming, Outgoing, Stream};
use crate::store::remote::EPROTO;
use crate::sys::file::{self, Fd};
use crate::sys::socket::{self, Patience};
use crate::sys::{Errno, Result};
use login::log_in;
use request::Request;

const ENOTCONN: Errno = Errno(107);
const ECONNRESET: Errno = Errno(104);

/// Why a request came to nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The connection is no more.
    Broken(Errno),
    /// The server said no, and can be asked other things.
    Said(Complaint),
    /// The server has no such value.
    Gone,
    /// The server's value is not as long as the one that was written.
    Short,
}

pub type Answer<T> = core::result::Result<T, Failure>;

/// Bytes that come within somebody's patience.
struct Socket<'a> {
    fd: Fd,
    patience: &'a mut Patience,
}

impl Stream for Socket<'_> {
    fn some(&mut self, into: &mut [u8]) -> Result<usize> {
        socket::receive_some(self.fd, into, self.patience)
    }
}

/// See the module.
pub struct Link {
    /// -1: none yet.
    fd: Fd,
    is_open: bool,
    to: Address,
    epoch: u32,
    incoming: Incoming,
    /// Requests so far, and those whose replies have come.
    sent: u64,
    answered: u64,
    requests: [Request; PIPELINE_DEPTH],
}

impl Link {
    pub const fn new() -> Link {
        Link {
            fd: -1,
            is_open: false,
            to: Address::NONE,
            epoch: 0,
            incoming: Incoming::new(),
            sent: 0,
            answered: 0,
            requests: [Request::new(Manner { is_asking: false, wait_ms: 0 }); PIPELINE_DEPTH],
        }
    }

    /// The descriptor, whatever it is connected to; -1: none.
    pub fn descriptor(&self) -> Fd {
        self.fd
    }

    /// Takes a number for the connection. A connection that was there before (in the child after
    /// fork: the parent's) is left alone, but not ours any more, whether there is a number or not.
    pub fn reserve(&mut self) -> Result<()> {
        self.forget();
        let empty = socket::unconnected()?;
        if self.fd < 0 {
            self.fd = empty;
            return Ok(());
        }
        socket::replace(self.fd, empty)
    }

    fn forget(&mut self) {
        self.is_open = false;
        self.incoming.clear();
        self.answered = self.sent;
        self.epoch += 1;
    }

    /// Closes the connection for good.
    pub fn close(&mut self) {
        if self.is_open {
            self.break_up();
        }
        if self.fd >= 0 {
            file::close(self.fd);
            self.fd = -1;
        }
    }

    fn break_up(&mut self) {
        // A write that the server has not read must not be carried out after the next one of its
        // key.
        socket::abandon(self.fd);
        self.forget();
    }

    fn broken(&mut self, why: Errno) -> Failure {
        self.break_up();
        Failure::Broken(why)
    }

    /// Connects to the address, if need be.
    pub fn open(&mut self, to: Address, login: &Login, patience: &mut Patience) -> Answer<()> {
        if self.is_open && self.to == to {
            return Ok(());
        }
        if self.is_open {
            self.break_up();
        }
        if self.fd < 0 {
            self.reserve().map_err(Failure::Broken)?;
        }
        let new = socket::connect(to.bytes(), patience).map_err(Failure::Broken)?;
        let entered = log_in(new, login, &mut self.incoming, patience);
        let placed = match entered {
            Ok(()) => socket::replace(self.fd, new).map_err(Failure::Broken),
            Err(e) => {
                file::close(new);
                Err(e)
            }
        };
        self.forget();
        (self.to, self.is_open) = (to, placed.is_ok());
        placed
    }

    fn put(
        &mut self,
        parts: [&[u8]; 3],
        manner: Manner,
        patience: &mut Patience,
    ) -> Answer<Ticket> {
        if !self.is_open {
            return Err(Failure::Broken(ENOTCONN));
        }
        if self.sent - self.answered == PIPELINE_DEPTH as u64 {
            return Err(self.broken(EPROTO));
        }
        let asking: &[u8] = if manner.is_asking { b"*1\r\n$6\r\nASKING\r\n" } else { b"" };
        for part in [asking].into_iter().chain(parts) {
            socket::send(self.fd, part, patience).map_err(|e| self.broken(e))?;
        }
        let number = self.sent;
        self.requests[number as usize % PIPELINE_DEPTH] = Request::new(manner);
        self.sent += 1;
        Ok(Ticket { number, epoch: self.epoch })
    }

    /// Sends `SET key bytes PX lease`. Its result comes by [`Link::result`].
    pub fn send_set(
        &mut self,
        key: &[u8],
        bytes: &[u8],
        lease_ms: u32,
        manner: Manner,
        patience: &mut Patience,
    ) -> Answer<Ticket> {
        let head = Outgoing::new().command(5).word(b"SET").word(key).length(bytes.len());
        let tail =
            Outgoing::new().after_bytes().word(b"PX").word_of_number(u64::from(lease_ms.max(1)));
        let tail = match manner.wait_ms {
            0 => tail,
            ms => tail.command(3).word(b"WAIT").word(b"1").word_of_number(u64::from(ms)),
        };
        let (head, tail) = (text(&head)?, text(&tail)?);
        self.put([head, bytes, tail], manner, patience)
    }

    /// Sends a command whose reply is a number or a text.
    pub fn send(
        &mut self,
        command: &Outgoing,
        manner: Manner,
        patience: &mut Patience,
    ) -> Answer<Ticket> {
        self.put([text(command)?, &[], &[]], Manner { wait_ms: 0, ..manner }, patience)
    }

    /// Receives one reply of the first request that has not all of its own. False: not all of it
    /// has come yet, and `waits` is false.
    fn reply(&mut self, waits: bool, patience: &mut Patience) -> Answer<bool> {
        let mut none = Patience::new(0);
        let patience = if waits { patience } else { &mut none };
        let head = self.incoming.head(&mut Socket { fd: self.fd, patience });
        let reply = match head {
            Ok(Head::Status | Head::Nothing) => Ok(0),
            Ok(Head::Number(n)) => Ok(n),
            Ok(Head::Error(why)) => Err(why),
            Ok(Head::Bulk(_) | Head::Array(_)) => return Err(self.broken(EPROTO)),
            // The part that has come is kept, for the next look.
            Err(Errno::ETIMEDOUT) if !waits => return Ok(false),
            Err(e) => return Err(self.broken(e)),
        };
        if self.answered == self.sent {
            return Err(self.broken(EPROTO));
        }
        if self.requests[self.answered as usize % PIPELINE_DEPTH].take(reply) {
            self.answered += 1;
        }
        Ok(true)
    }

    /// The outcome of a request; `None`: not all of it has come yet, and `waits` is false.
    pub fn result(
        &mut self,
        of: Ticket,
        waits: bool,
        patience: &mut Patience,
    ) -> Option<Answer<Outcome>> {
        loop {
            if of.epoch != self.epoch || !self.is_open {
                return Some(Err(Failure::Broken(ECONNRESET)));
            }
            if of.number < self.answered {
                // So many requests were sent since that this one is forgotten: the caller asks too
                // late.
                let is_kept = self.sent - of.number <= PIPELINE_DEPTH as u64;
                let outcome = self.requests[of.number as usize % PIPELINE_DEPTH].outcome;
                return Some(if is_kept { Ok(outcome) } else { Err(Failure::Broken(EPROTO)) });
            }
            match self.reply(waits, patience) {
                Ok(true) => {}
                Ok(false) => return None,
                Err(why) => return Some(Err(why)),
            }
        }
    }

    /// A request that is waited for.
    pub fn ask(
        &mut self,
        command: &Outgoing,
        manner: Manner,
        patience: &mut Patience,
    ) -> Answer<i64> {
        let ticket = self.send(command, manner, patience)?;
        let outcome = self.result(ticket, true, patience).expect("it is waited for")?;
        outcome.said.map_err(Failure::Said)
    }

    /// Begins a request whose reply is read at once: nothing may be under way.
    fn begin(
        &mut self,
        command: &Outgoing,
        manner: Manner,
        patience: &mut Patience,
    ) -> Answer<Head> {
        if self.sent != self.answered || !self.incoming.is_empty() {
            return Err(self.broken(EPROTO));
        }
        self.send(command, manner, patience)?;
        self.answered = self.sent;
        let next = |link: &mut Link, patience: &mut Patience| {
            let head = link.incoming.head(&mut Socket { fd: link.fd, patience });
            head.map_err(|e| link.broken(e))
        };
        if manner.is_asking {
            // Where the first command is refused the one behind it has a reply all the same.
            if next(self, patience)? != Head::Status {
                return Err(self.broken(EPROTO));
            }
        }
        next(self, patience)
    }

    /// Reads a part of a value, by a link that nobody writes by.
    pub fn read(
        &mut self,
        key: &[u8],
        from: usize,
        buf: &mut [u8],
        manner: Manner,
        patience: &mut Patience,
    ) -> Answer<()> {
        let last = (from + buf.len()).saturating_sub(1) as u64;
        let command = Outgoing::new().command(4).word(b"GETRANGE").word(key);
        let command = command.word_of_number(from as u64).word_of_number(last);
        let len = match self.begin(&command, manner, patience)? {
            Head::Bulk(len) if len <= buf.len() => len,
            Head::Error(why) => return Err(Failure::Said(why)),
            _ => return Err(self.broken(EPROTO)),
        };
        let wanted = buf.len();
        let mut socket = Socket { fd: self.fd, patience };
        let body = self.incoming.body(&mut socket, &mut buf[..len]);
        body.map_err(|e| self.broken(e))?;
        match len {
            0 if wanted > 0 => Err(Failure::Gone),
            len if len < wanted => Err(Failure::Short),
            _ => Ok(()),
        }
    }

    /// Asks for a text: its length in `into`, cut to that. An array's texts come one behind the
    /// other, each with the end of a line. For `uzswap run`.
    pub fn read_text(
        &mut self,
        command: &Outgoing,
        into: &mut [u8],
        patience: &mut Patience,
    ) -> Answer<usize> {
        let mut head = self.begin(command, Manner::default(), patience)?;
        let (mut left, mut len) = (1, 0);
        if let Head::Array(n) = head {
            left = n;
            if n > 0 {
                head = self.next_head(patience)?;
            }
        }
        while left > 0 {
            match head {
                Head::Bulk(bytes) => {
                    let mut socket = Socket { fd: self.fd, patience };
                    let kept = self.incoming.body_beginning(&mut socket, bytes, &mut into[len..]);
                    len += kept.map_err(|e| self.broken(e))?;
                    if let Some(end) = into.get_mut(len) {
                        *end = b'\n';
                        len += 1;
                    }
                }
                Head::Error(why) => return Err(Failure::Said(why)),
                Head::Status | Head::Number(_) | Head::Nothing => {}
                Head::Array(_) => return Err(self.broken(EPROTO)),
            }
            left -= 1;
            if left > 0 {
                head = self.next_head(patience)?;
            }
        }
        Ok(len)
    }

    fn next_head(&mut self, patience: &mut Patience) -> Answer<Head> {
        let head = self.incoming.head(&mut Socket { fd: self.fd, patience });
        head.map_err(|e| self.broken(e))
    }
}

impl Default for Link {
    fn default() -> Self {
        Link::new()
    }
}

fn text(command: &Outgoing) -> Answer<&[u8]> {
    command.bytes().map_err(|_| Failure::Said(Complaint::Other))
}

/// A connection for one question: CLUSTER SLOTS is a reply of its own kind (see `map.rs`).
pub fn ask_once<T>(
    to: Address,
    login: &Login,
    command: &Outgoing,
    patience: &mut Patience,
    read: impl FnOnce(&mut Incoming, &mut dyn FnMut(&mut [u8]) -> Result<usize>) -> Result<T>,
) -> Answer<T> {
    let fd = socket::connect(to.bytes(), patience).map_err(Failure::Broken)?;
    let mut incoming = Incoming::new();
    let asked = log_in(fd, login, &mut incoming, patience).and_then(|()| {
        socket::send(fd, text(command)?, patience).map_err(Failure::Broken)?;
        let mut more = |into: &mut [u8]| socket::receive_some(fd, into, patience);
        read(&mut incoming, &mut more).map_err(Failure::Broken)
    });
    file::close(fd);
    asked
}

impl Stream for &mut dyn FnMut(&mut [u8]) -> Result<usize> {
    fn some(&mut self, into: &mut [u8]) -> Result<usize> {
        self(into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::IntoRawFd;
    use std::os::unix::net::UnixStream;

    const PATIENCE_NS: u64 = 200_000_000;

    /// A link, and its server's side.
    fn pair() -> (Link, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Link { fd: ours.into_raw_fd(), is_open: true, ..Link::new() }, theirs)
    }

    #[test]
    fn replies_that_have_come_in_part_are_not_waited_for() {
        let (mut link, mut server) = pair();
        let patience = &mut Patience::new(PATIENCE_NS);
        let manner = Manner { is_asking: true, wait_ms: 500 };
        let ticket = link.send_set(b"key", b"bytes", 1000, manner, patience).unwrap();
        for byte in b"+OK\r\n+OK\r\n:1\r\n" {
            assert_eq!(link.result(ticket, false, patience), None);
            server.write_all(&[*byte]).unwrap();
        }
        let outcome = Outcome { said: Ok(0), copies: Some(Ok(1)) };
        assert_eq!(link.result(ticket, false, patience), Some(Ok(outcome)));
        assert_eq!(patience.left_ns(), PATIENCE_NS);
        link.close();
    }

    #[test]
    fn a_result_is_kept_for_sixteen_requests_and_one_more_under_way_is_too_many() {
        let (mut link, mut server) = pair();
        let patience = &mut Patience::new(PATIENCE_NS);
        let command = Outgoing::new().command(1).word(b"PING");
        let send = |link: &mut Link| {
            link.send(&command, Manner::default(), &mut Patience::new(PATIENCE_NS))
        };
        let tickets = [(); PIPELINE_DEPTH].map(|()| send(&mut link).unwrap());
        (0..PIPELINE_DEPTH).for_each(|i| write!(server, ":{i}\r\n").unwrap());
        let said = |n| Some(Ok(Outcome { said: Ok(n), copies: None }));
        for i in [15, 0, 7] {
            assert_eq!(link.result(tickets[i], true, patience), said(i as i64));
        }
        let next = send(&mut link).unwrap();
        let late = Some(Err(Failure::Broken(EPROTO)));
        assert_eq!(link.result(tickets[0], false, patience), late, "its place is the next one's");
        assert_eq!(link.result(tickets[1], false, patience), said(1));
        (1..PIPELINE_DEPTH).for_each(|_| _ = send(&mut link).unwrap());
        assert_eq!(send(&mut link), Err(Failure::Broken(EPROTO)));
        // No reply that comes now is to one of these.
        assert_eq!(link.result(next, true, patience), Some(Err(Failure::Broken(ECONNRESET))));
        assert_eq!(send(&mut link), Err(Failure::Broken(ENOTCONN)));
        link.close();
    }

    #[test]
    fn a_value_that_is_gone_or_short_is_told_apart_and_the_link_goes_on() {
        let (mut link, mut server) = pair();
        let patience = &mut Patience::new(PATIENCE_NS);
        let mut buf = [0; 4];
        for (reply, is) in [
            (&b"$4\r\nabcd\r\n"[..], Ok(())),
            (b"$0\r\n\r\n", Err(Failure::Gone)),
            (b"$3\r\nabc\r\n", Err(Failure::Short)),
            (b"-LOADING it\r\n", Err(Failure::Said(Complaint::Later))),
            (b"$4\r\nefgh\r\n", Ok(())),
            (b"$5\r\nijklm\r\n", Err(Failure::Broken(EPROTO))),
            (b"", Err(Failure::Broken(ENOTCONN))),
        ] {
            server.write_all(reply).unwrap();
            let said = String::from_utf8_lossy(reply);
            assert_eq!(link.read(b"key", 9, &mut buf, Manner::default(), patience), is, "{said}");
        }
        assert_eq!(&buf, b"efgh");
        let mut asked = [0; 42];
        server.read_exact(&mut asked).unwrap();
        assert_eq!(&asked, b"*4\r\n$8\r\nGETRANGE\r\n$3\r\nkey\r\n$1\r\n9\r\n$2\r\n12\r\n");
        link.close();
    }
}
