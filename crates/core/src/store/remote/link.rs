//! One connection to an NBD server, as its client: handshake, requests, replies.
//!
//! Simple replies only, one export, nothing that needs memory: a length that a server states is
//! checked against the length that was asked for. A reply that is not by the protocol breaks the
//! connection, and so does one that does not come in time (it would come later, as the answer to
//! another question). A broken connection is made anew by the next request.
//!
//! The descriptor keeps its number: a new connection takes the place of the broken one. So the set
//! of our descriptors, which the program must neither see nor close, does not change under it.

use super::Server;
use crate::nbd::*;
use crate::store::QUEUE_DEPTH;
use crate::sys::file::{self, Fd};
use crate::sys::socket::{self, Patience};
use crate::sys::{Errno, Result};

/// The server does not keep to the protocol.
pub const EPROTO: Errno = Errno(71);
/// The server wants TLS.
pub const ENOKEY: Errno = Errno(126);

/// The longest reply to an option that is taken, in bytes: descriptions and error texts.
const OPTION_REPLY_MOST_BYTES: usize = 8 << 10;
/// Replies to options before the last one. Servers send a handful.
const OPTION_REPLIES_MOST: usize = 64;
/// Requests to give space back that are under way at one time.
pub(super) const TRIMS_MOST: usize = 16;
/// Results of requests that another thread has received and nobody has taken: one more than there
/// are requests under way.
const RESULTS: usize = QUEUE_DEPTH + TRIMS_MOST + 1;

/// An export, as its server describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Export {
    pub bytes: u64,
    pub flags: u16,
    /// Requests start at multiples of this, and so do their lengths.
    pub block_bytes: u32,
}

impl Export {
    pub fn can_trim(&self) -> bool {
        self.flags & SEND_TRIM != 0
    }

    pub fn is_read_only(&self) -> bool {
        self.flags & READ_ONLY != 0
    }

    /// Several connections see the same bytes at once.
    pub fn is_multi_conn(&self) -> bool {
        self.flags & CAN_MULTI_CONN != 0
    }
}

/// Why a request came to nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The connection is no more.
    Broken(Errno),
    /// The server said no, and can be asked other things.
    Refused(Errno),
}

impl Failure {
    pub fn errno(self) -> Errno {
        match self {
            Failure::Broken(e) | Failure::Refused(e) => e,
        }
    }
}

type Answer<T> = core::result::Result<T, Failure>;

/// The name of a request on one link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket {
    cookie: u64,
    /// Connections that broke before.
    epoch: u32,
}

/// See the module.
pub struct Link {
    /// -1: none yet.
    fd: Fd,
    is_open: bool,
    export: Export,
    cookie: u64,
    epoch: u32,
    /// The head of the next reply, as far as it has come.
    head: [u8; SIMPLE_REPLY_BYTES],
    head_len: usize,
    results: [Option<Reply>; RESULTS],
}

/// A request, by its cookie, and its outcome.
type Reply = (u64, core::result::Result<(), Errno>);

impl Link {
    pub const fn new() -> Link {
        Link {
            fd: -1,
            is_open: false,
            export: Export { bytes: 0, flags: 0, block_bytes: 0 },
            cookie: 0,
            epoch: 0,
            head: [0; SIMPLE_REPLY_BYTES],
            head_len: 0,
            results: [None; RESULTS],
        }
    }

    /// The descriptor, whatever it is connected to; -1: none.
    pub fn descriptor(&self) -> Fd {
        self.fd
    }

    pub fn is_open(&self) -> bool {
        self.is_open
    }

    pub fn export(&self) -> &Export {
        &self.export
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
        (self.is_open, self.head_len, self.results) = (false, 0, [None; RESULTS]);
        self.epoch += 1;
    }

    /// Closes the connection for good.
    pub fn close(&mut self) {
        self.give_up();
        if self.fd >= 0 {
            file::close(self.fd);
            self.fd = -1;
        }
    }

    fn break_up(&mut self) {
        // A write that the server has not read must not be carried out after the next one to its
        // place.
        socket::abandon(self.fd);
        self.forget();
    }

    fn broken(&mut self, why: Errno) -> Failure {
        self.break_up();
        Failure::Broken(why)
    }

    /// Ends the connection because of a request that is not answered.
    pub(super) fn give_up(&mut self) {
        if self.is_open {
            self.break_up();
        }
    }

    /// Whether a request without bytes can be sent without a wait.
    pub(super) fn can_send(&self) -> bool {
        self.is_open && socket::has_room(self.fd)
    }

    /// Connects, if need be.
    pub fn open(&mut self, server: &Server, patience: &mut Patience) -> Result<()> {
        if self.is_open {
            return Ok(());
        }
        if self.fd < 0 {
            self.reserve()?;
        }
        let new = socket::connect(server.address(), patience)?;
        match shake_hands(new, server.export(), patience) {
            Ok(export) => {
                socket::replace(self.fd, new)?;
                (self.export, self.is_open) = (export, true);
                Ok(())
            }
            Err(e) => {
                file::close(new);
                Err(e)
            }
        }
    }

    /// Sends a request. Its result comes by [`Link::result`].
    pub fn send(
        &mut self,
        command: u16,
        at: u64,
        len: usize,
        payload: &[u8],
        patience: &mut Patience,
    ) -> Answer<Ticket> {
        if !self.is_open {
            return Err(Failure::Broken(Errno(107 /* ENOTCONN */)));
        }
        self.cookie += 1;
        let request =
            Request { flags: 0, command, cookie: self.cookie, offset: at, len: len as u32 };
        let sent = socket::send(self.fd, &request.to_bytes(), patience)
            .and_then(|()| socket::send(self.fd, payload, patience));
        match sent {
            Ok(()) => Ok(Ticket { cookie: self.cookie, epoch: self.epoch }),
            Err(e) => Err(self.broken(e)),
        }
    }

    /// The next reply, or its head if there is more to it. `None`: not all of it has come yet, and
    /// `waits` is false.
    fn reply(&mut self, waits: bool, patience: &mut Patience) -> Answer<Option<Reply>> {
        let mut none = Patience::new(0);
        let patience = if waits { patience } else { &mut none };
        while self.head_len < SIMPLE_REPLY_BYTES {
            match socket::receive_some(self.fd, &mut self.head[self.head_len..], patience) {
                Ok(n) => self.head_len += n,
                // The part that has come is kept, for the next look.
                Err(Errno::ETIMEDOUT) if !waits => return Ok(None),
                Err(e) => return Err(self.broken(e)),
            }
        }
        self.head_len = 0;
        let head = self.head;
        let mut fields = Fields(&head);
        let (magic, error, cookie) = (fields.u32(), fields.u32(), fields.u64().unwrap_or(0));
        if magic != Some(SIMPLE_REPLY_MAGIC) {
            return Err(self.broken(EPROTO));
        }
        Ok(Some((cookie, error.map_or(Err(EPROTO), result_of))))
    }

    /// Reads, on a link that nobody writes by.
    pub fn read(&mut self, at: u64, buf: &mut [u8], patience: &mut Patience) -> Answer<()> {
        let ticket = self.send(CMD_READ, at, buf.len(), &[], patience)?;
        match self.reply(true, patience)?.expect("it is waited for") {
            (cookie, _) if cookie != ticket.cookie => Err(self.broken(EPROTO)),
            (_, Err(why)) => Err(Failure::Refused(why)),
            (_, Ok(())) => socket::receive(self.fd, buf, patience).map_err(|e| self.broken(e)),
        }
    }

    /// The outcome of a request, once; `None`: it has not come yet, and `waits` is false.
    pub fn result(
        &mut self,
        of: Ticket,
        waits: bool,
        patience: &mut Patience,
    ) -> Option<Answer<()>> {
        loop {
            if of.epoch != self.epoch || !self.is_open {
                return Some(Err(Failure::Broken(Errno(104 /* ECONNRESET */))));
            }
            let mine = |r: &Option<Reply>| r.is_some_and(|(cookie, _)| cookie == of.cookie);
            if let Some(at) = self.results.iter().position(mine) {
                let (_, result) = self.results[at].take().expect("found");
                return Some(result.map_err(Failure::Refused));
            }
            match self.reply(waits, patience) {
                Ok(None) => return None,
                Ok(reply) => match self.results.iter_mut().find(|r| r.is_none()) {
                    Some(free) => *free = reply,
                    // More replies than there were requests.
                    None => return Some(Err(self.broken(EPROTO))),
                },
                Err(why) => return Some(Err(why)),
            }
        }
    }

    /// A request that is waited for.
    pub fn ask(
        &mut self,
        command: u16,
        at: u64,
        len: usize,
        payload: &[u8],
        patience: &mut Patience,
    ) -> Answer<()> {
        let ticket = self.send(command, at, len, payload, patience)?;
        self.result(ticket, true, patience).expect("it is waited for")
    }
}

impl Default for Link {
    fn default() -> Self {
        Link::new()
    }
}

/// An error of the protocol as one of the kernel's.
fn result_of(error: u32) -> core::result::Result<(), Errno> {
    match error {
        0 => Ok(()),
        1 => Err(Errno::EPERM),
        22 => Err(Errno::EINVAL),
        28 => Err(Errno::ENOSPC),
        _ => Err(Errno::EIO),
    }
}

/// Asks for the export, and for nothing else.
fn shake_hands(fd: Fd, name: &[u8], patience: &mut Patience) -> Result<Export> {
    let mut greeting = [0; 18];
    socket::receive(fd, &mut greeting, patience)?;
    let mut fields = Fields(&greeting);
    let magic = (fields.u64(), fields.u64());
    let flags = fields.u16().unwrap_or(0);
    if magic != (Some(INIT_MAGIC), Some(OPTION_MAGIC)) || flags & FLAG_FIXED_NEWSTYLE == 0 {
        return Err(EPROTO);
    }
    let mut text = [0; 4 + 16 + 4 + Server::NAME_BYTES + 4];
    let mut len = 0;
    let mut put = |bytes: &[u8]| {
        text[len..len + bytes.len()].copy_from_slice(bytes);
        len += bytes.len();
    };
    put(&u32::from(flags & (FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES)).to_be_bytes());
    put(&OPTION_MAGIC.to_be_bytes());
    put(&OPT_GO.to_be_bytes());
    put(&(4 + name.len() as u32 + 4).to_be_bytes());
    put(&(name.len() as u32).to_be_bytes());
    put(name);
    put(&1u16.to_be_bytes());
    put(&INFO_BLOCK_SIZE.to_be_bytes());
    socket::send(fd, &text[..len], patience)?;
    let mut export = Export { block_bytes: 1, ..Export::default() };
    for _ in 0..OPTION_REPLIES_MOST {
        if option_reply(fd, &mut export, patience)? {
            // Without INFO_EXPORT nothing is known.
            return if export.flags & HAS_FLAGS != 0 { Ok(export) } else { Err(EPROTO) };
        }
    }
    Err(EPROTO)
}

/// One reply to GO; true: the last.
fn option_reply(fd: Fd, export: &mut Export, patience: &mut Patience) -> Result<bool> {
    let mut head = [0; 20];
    socket::receive(fd, &mut head, patience)?;
    let mut fields = Fields(&head);
    let (magic, option) = (fields.u64(), fields.u32());
    let (kind, len) = (fields.u32().unwrap_or(0), fields.u32().unwrap_or(u32::MAX) as usize);
    if (magic, option) != (Some(OPTION_REPLY_MAGIC), Some(OPT_GO)) || len > OPTION_REPLY_MOST_BYTES
    {
        return Err(EPROTO);
    }
    // The reply is taken in pieces, since only its first bytes matter.
    let mut info = [0; 64];
    let first = len.min(info.len());
    socket::receive(fd, &mut info[..first], patience)?;
    let mut left = len - first;
    while left > 0 {
        let mut rest = [0; 256];
        let n = left.min(rest.len());
        socket::receive(fd, &mut rest[..n], patience)?;
        left -= n;
    }
    let mut fields = Fields(&info[..first]);
    match kind {
        REP_ACK => return Ok(true),
        REP_INFO => match fields.u16() {
            Some(INFO_EXPORT) => {
                export.bytes = fields.u64().ok_or(EPROTO)?;
                export.flags = fields.u16().ok_or(EPROTO)?;
            }
            Some(INFO_BLOCK_SIZE) => export.block_bytes = fields.u32().ok_or(EPROTO)?,
            _ => {}
        },
        REP_ERR_UNKNOWN => return Err(Errno::ENOENT),
        REP_ERR_UNSUP => return Err(Errno::EOPNOTSUPP),
        REP_ERR_POLICY => return Err(Errno::EACCES),
        REP_ERR_TLS_REQD => return Err(ENOKEY),
        _ => return Err(EPROTO),
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::fd::IntoRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    const ECONNRESET: Errno = Errno(104);
    /// Nothing is waited for: all that the server says is there, or its end is.
    const PATIENCE: Patience = Patience::new(10_000_000_000);

    /// A connection whose server has said all of this already.
    fn connected(said: &[u8]) -> (Link, UnixStream) {
        let (ours, mut theirs) = UnixStream::pair().expect("descriptors");
        theirs.write_all(said).expect("there is room");
        (Link { fd: ours.into_raw_fd(), is_open: true, ..Link::new() }, theirs)
    }

    fn greeting(flags: u16) -> Vec<u8> {
        let magic = [INIT_MAGIC.to_be_bytes(), OPTION_MAGIC.to_be_bytes()].concat();
        [&magic[..], &flags.to_be_bytes()].concat()
    }

    fn told(kind: u32, payload: &[u8]) -> Vec<u8> {
        let head = [OPT_GO, kind, payload.len() as u32].map(u32::to_be_bytes).concat();
        [&OPTION_REPLY_MAGIC.to_be_bytes()[..], &head, payload].concat()
    }

    fn export() -> Vec<u8> {
        let (bytes, flags) = ((1u64 << 40).to_be_bytes(), HAS_FLAGS.to_be_bytes());
        told(REP_INFO, &[&INFO_EXPORT.to_be_bytes()[..], &bytes, &flags].concat())
    }

    /// The outcome of a handshake with a server that says this, and what it was sent.
    fn shake(name: &[u8], said: &[Vec<u8>]) -> (Result<Export>, Vec<u8>) {
        let (mut link, mut theirs) = connected(&said.concat());
        theirs.shutdown(Shutdown::Write).expect("it is connected");
        let result = shake_hands(link.fd, name, &mut PATIENCE.clone());
        link.close();
        let mut sent = Vec::new();
        // The server's words that we have not read make the end of ours an error.
        let _ = theirs.read_to_end(&mut sent);
        (result, sent)
    }

    #[test]
    fn a_write_that_is_given_up_is_not_sent_later() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let ours = TcpStream::connect(listener.local_addr().expect("it is bound")).expect("there");
        let (mut theirs, _) = listener.accept().expect("it is connected");
        let mut link = Link { fd: ours.into_raw_fd(), is_open: true, ..Link::new() };
        // More than the kernels take for somebody who does not read.
        let many = vec![7; 64 << 20];
        let sent = link.send(CMD_WRITE, 0, many.len(), &many, &mut Patience::new(20_000_000));
        assert_eq!((sent, link.is_open()), (Err(Failure::Broken(Errno::ETIMEDOUT)), false));
        let end = theirs.read_to_end(&mut Vec::new()).map_err(|e| e.kind());
        assert_eq!(end, Err(ErrorKind::ConnectionReset), "what was not sent is dropped");
        link.close();
    }

    #[test]
    fn the_longest_name_is_sent_whole_and_behind_its_lengths() {
        let hello = || [greeting(FLAG_FIXED_NEWSTYLE), export(), told(REP_ACK, &[])];
        for len in [0, 1, Server::NAME_BYTES] {
            let name = vec![b'n'; len];
            let (result, sent) = shake(&name, &hello());
            assert_eq!(result.map(|export| (export.bytes, export.block_bytes)), Ok((1 << 40, 1)));
            let mut fields = Fields(&sent[12..]);
            assert_eq!(fields.u32(), Some(OPT_GO));
            let mut asked = Fields(fields.counted().expect("as long as it says"));
            assert_eq!((asked.counted(), fields.0.len()), (Some(&name[..]), 0));
            assert_eq!(
                [asked.u16(), asked.u16(), asked.u16()],
                [Some(1), Some(INFO_BLOCK_SIZE), None]
            );
        }
    }

    #[test]
    fn a_server_that_says_too_little_or_too_much_is_no_server() {
        let (hello, ack) = (greeting(FLAG_FIXED_NEWSTYLE), told(REP_ACK, &[]));
        let outcome = |said: &[&[u8]]| {
            let said: Vec<_> = said.iter().map(|part| part.to_vec()).collect();
            shake(b"x", &said).0.map(drop)
        };
        let end = |reply: &[u8]| outcome(&[&hello, &export(), reply]);
        assert_eq!(outcome(&[&greeting(0), &export(), &ack]), Err(EPROTO), "of before 2012");
        assert_eq!(outcome(&[&hello, &ack]), Err(EPROTO), "nothing of the export");
        let cut = told(REP_INFO, &[0, 0, 1, 2]);
        assert_eq!(outcome(&[&hello, &cut, &ack]), Err(EPROTO), "a part of its size");
        let text = |len: usize| told(REP_INFO, &vec![INFO_DESCRIPTION as u8; len]);
        let most = OPTION_REPLY_MOST_BYTES;
        for len in [0, 1, 63, 64, 65, 64 + 256, most] {
            assert_eq!(end(&[text(len), ack.clone()].concat()), Ok(()), "{len} bytes");
        }
        assert_eq!(end(&[text(most + 1), ack.clone()].concat()), Err(EPROTO));
        let many = |n: usize| [text(3).repeat(n), ack.clone()].concat();
        assert_eq!(end(&many(OPTION_REPLIES_MOST - 2)), Ok(()));
        assert_eq!(end(&many(OPTION_REPLIES_MOST - 1)), Err(EPROTO), "without an end");
        assert_eq!(end(&told(REP_ERR_TLS_REQD, b"why")), Err(ENOKEY));
        assert_eq!(end(&told(REP_ERR_UNKNOWN, b"")), Err(Errno::ENOENT));
        assert_eq!(end(&ack[..19]), Err(ECONNRESET), "a part of a reply");
    }

    #[test]
    fn results_come_to_their_requests_once_and_none_after_the_connection() {
        let (mut link, mut theirs) = connected(&[]);
        let send = |link: &mut Link| {
            link.send(CMD_WRITE, 0, 4, b"abcd", &mut PATIENCE.clone()).expect("there is room")
        };
        let result = |link: &mut Link, of| link.result(of, false, &mut PATIENCE.clone());
        let [first, second, third] = [(); 3].map(|()| send(&mut link));
        assert_eq!(result(&mut link, first), None);
        let said = [simple_reply(28, second.cookie), simple_reply(0, first.cookie)].concat();
        theirs.write_all(&said).expect("there is room");
        assert_eq!(result(&mut link, first), Some(Ok(())));
        assert_eq!(result(&mut link, second), Some(Err(Failure::Refused(Errno::ENOSPC))));
        assert_eq!(result(&mut link, second), None, "it was taken");
        // A result that was there as the connection ended is of no use: the request is made again.
        theirs.write_all(&simple_reply(0, third.cookie)).expect("there is room");
        assert_eq!(result(&mut link, second), None);
        drop(theirs);
        let broken = Some(Err(Failure::Broken(ECONNRESET)));
        assert_eq!(result(&mut link, second), broken);
        assert_eq!((link.is_open(), link.results), (false, [None; RESULTS]));
        (link.is_open, link.results[0]) = (true, Some((third.cookie, Ok(()))));
        assert_eq!(result(&mut link, third), broken);
        link.close();
    }

    #[test]
    fn a_reply_that_has_come_in_part_is_not_waited_for() {
        let (mut link, mut theirs) = connected(&[]);
        let mut patience = PATIENCE;
        let sent = link.send(CMD_WRITE, 0, 4, b"abcd", &mut patience).expect("there is room");
        for byte in simple_reply(0, sent.cookie) {
            assert_eq!(link.result(sent, false, &mut patience), None);
            theirs.write_all(&[byte]).expect("there is room");
        }
        assert_eq!(link.result(sent, false, &mut patience), Some(Ok(())));
        assert_eq!(patience, PATIENCE);
        // Of a connection that ended in the middle nothing is left for the next one.
        let sent = link.send(CMD_WRITE, 0, 4, b"abcd", &mut patience).expect("there is room");
        theirs.write_all(&simple_reply(0, sent.cookie)[..9]).expect("there is room");
        assert_eq!(link.result(sent, false, &mut patience), None);
        drop(theirs);
        let ended = Some(Err(Failure::Broken(ECONNRESET)));
        assert_eq!((link.result(sent, false, &mut patience), link.head_len), (ended, 0));
        link.close();
    }

    #[test]
    fn results_that_nobody_has_asked_for_have_an_end() {
        let foreign = |n: u64| (0..n).flat_map(|i| simple_reply(0, 100 + i)).collect::<Vec<_>>();
        for (n, outcome) in
            [(RESULTS as u64 - 1, Ok(())), (RESULTS as u64, Err(Failure::Broken(EPROTO)))]
        {
            let said = [&foreign(n)[..], &simple_reply(0, 1)].concat();
            let (mut link, _theirs) = connected(&said);
            assert_eq!(link.ask(CMD_TRIM, 0, 4096, &[], &mut PATIENCE.clone()), outcome);
            assert_eq!(link.is_open(), outcome.is_ok());
            link.close();
        }
    }

    #[test]
    fn a_read_that_is_refused_leaves_the_connection_and_a_foreign_reply_ends_it() {
        let (refused, read) = (simple_reply(1, 1), simple_reply(0, 2));
        let said = [&refused[..], &read, b"bytes", &simple_reply(0, 2), b"other"].concat();
        let (mut link, _theirs) = connected(&said);
        let mut buf = [0; 5];
        let mut read = |link: &mut Link| link.read(0, &mut buf, &mut PATIENCE.clone());
        assert_eq!(read(&mut link), Err(Failure::Refused(Errno::EPERM)));
        assert_eq!(read(&mut link), Ok(()));
        assert_eq!(read(&mut link), Err(Failure::Broken(EPROTO)));
        assert_eq!(read(&mut link), Err(Failure::Broken(Errno(107))));
        assert_eq!((&buf, link.is_open()), (b"bytes", false));
        link.close();
    }
}
