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
/// Results of requests that another thread has received and nobody has taken. Two writes and a
/// discard are under way at most.
const RESULTS: usize = 4;

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
    results: [Option<(u64, core::result::Result<(), Errno>)>; RESULTS],
}

impl Link {
    pub const fn new() -> Link {
        let export = Export { bytes: 0, flags: 0, block_bytes: 0 };
        Link { fd: -1, is_open: false, export, cookie: 0, epoch: 0, results: [None; RESULTS] }
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
        (self.is_open, self.results) = (false, [None; RESULTS]);
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
        socket::shut_down(self.fd);
        self.forget();
    }

    fn broken(&mut self, why: Errno) -> Failure {
        self.break_up();
        Failure::Broken(why)
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

    /// The head of the next reply: the request that it is to, and the outcome.
    fn reply(&mut self, patience: &mut Patience) -> Answer<(u64, core::result::Result<(), Errno>)> {
        let mut head = [0; SIMPLE_REPLY_BYTES];
        socket::receive(self.fd, &mut head, patience).map_err(|e| self.broken(e))?;
        let mut fields = Fields(&head);
        let (magic, error, cookie) = (fields.u32(), fields.u32(), fields.u64().unwrap_or(0));
        if magic != Some(SIMPLE_REPLY_MAGIC) {
            return Err(self.broken(EPROTO));
        }
        Ok((cookie, error.map_or(Err(EPROTO), result_of)))
    }

    /// Reads, on a link that nobody writes by.
    pub fn read(&mut self, at: u64, buf: &mut [u8], patience: &mut Patience) -> Answer<()> {
        let ticket = self.send(CMD_READ, at, buf.len(), &[], patience)?;
        match self.reply(patience)? {
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
            let mine = |r: &Option<(u64, _)>| r.is_some_and(|(cookie, _)| cookie == of.cookie);
            if let Some(at) = self.results.iter().position(mine) {
                let (_, result) = self.results[at].take().expect("found");
                return Some(result.map_err(Failure::Refused));
            }
            if !waits && !socket::is_readable(self.fd) {
                return None;
            }
            match self.reply(patience) {
                Ok(reply) => match self.results.iter_mut().find(|r| r.is_none()) {
                    Some(free) => *free = Some(reply),
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
    // In pieces: only the first bytes say anything.
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
