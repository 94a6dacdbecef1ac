//! The protocol of Valkey and Redis (RESP 2) as bytes: commands that go out, replies that come.
//!
//! ```text
//!   +OK        -MOVED 7 10.0.0.1:6379        :1        $3 abc        *2 ...     each line ends by CR LF
//!   Status     Error                         Number    Bulk          Array
//! ```
//!
//! Nothing here needs memory. Lines are looked at in a buffer of fixed size; a length that a server
//! states is a number that the caller compares with the length that it has asked for, before a byte
//! is taken. A reply that is not by the protocol is [`EPROTO`], and breaks the connection.

use core::net::{Ipv4Addr, Ipv6Addr};
use core::ops::Range;
use core::str::FromStr;

use crate::store::remote::EPROTO;
use crate::sys::text::{DIGITS_MOST, decimal};
use crate::sys::{Errno, Result};

/// The longest line that is kept whole, in bytes: redirections and lengths are shorter. Of a longer
/// text the beginning is kept.
pub const LINE_BYTES: usize = 256;
/// The length of that beginning, in bytes.
const KEPT_BYTES: usize = 128;
/// The longest line that is taken for a message of a server, in bytes: error texts repeat a part of
/// the command, not all of it.
const LINE_MOST_BYTES: usize = 64 << 10;
/// The most that a reply can announce: a string of 512 MiB is the protocol's own limit.
const LENGTH_MOST: i64 = 512 << 20;

/// The source of replies.
pub trait Stream {
    /// At least one byte, or an error; the end is one, too.
    fn some(&mut self, into: &mut [u8]) -> Result<usize>;
}

/// The beginning of a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Head {
    Status,
    Error(Complaint),
    Number(i64),
    /// So many bytes follow, and the end of a line.
    Bulk(usize),
    /// So many replies follow.
    Array(usize),
    /// No bulk, or no array: the server has nothing.
    Nothing,
}

/// The reason why a server did not do what was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Complaint {
    /// The slot is another node's for good. `None`: it is not named in a way that is understood.
    Moved(u16, Option<Place>),
    /// The key is at another node, this once.
    Ask(Option<Place>),
    /// TRYAGAIN, CLUSTERDOWN, LOADING, MASTERDOWN, READONLY, UNBLOCKED, BUSY, or a WAIT at a node
    /// that has become a replica: it will pass.
    Later,
    /// OOM: `maxmemory` is reached.
    Full,
    /// NOAUTH, WRONGPASS, NOPERM.
    NotAllowed,
    /// Everything else.
    Other,
}

/// A node, as a redirection names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    At(Address),
    /// Another port of the host that was asked: the Cluster does not tell where its nodes are.
    Here(u16),
    /// A host's name: see [`name_of`]. The map says whose it is.
    Named(u64),
}

/// The name of a host with a port, as a number: there is no room for the text. 0: it has none. Two
/// names of one number cost a redirection more.
pub fn name_of(host: &[u8], port: u16) -> u64 {
    // A question mark stands for a name that is not known.
    if matches!(host, b"" | b"?") || port == 0 {
        return 0;
    }
    // FNV-1a.
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    host.iter().chain(&port.to_be_bytes()).fold(0xcbf2_9ce4_8422_2325, step).max(1)
}

/// The address of a node, as the kernel takes it: `struct sockaddr_in` or `sockaddr_in6`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Address {
    len: u8,
    bytes: [u8; Address::BYTES],
}

impl Address {
    pub const BYTES: usize = 28;
    pub const NONE: Address = Address { len: 0, bytes: [0; Address::BYTES] };
    const AF_INET: u16 = 2;
    const AF_INET6: u16 = 10;

    /// `None`: too long.
    pub fn new(bytes: &[u8]) -> Option<Address> {
        let mut address = Address { len: bytes.len() as u8, ..Address::NONE };
        address.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(address)
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    pub fn is_none(&self) -> bool {
        self.len == 0
    }

    /// An address in digits. Names are not looked up: nothing of libc is called here.
    pub fn of(host: &[u8], port: u16) -> Option<Address> {
        let host = core::str::from_utf8(host).ok()?;
        let mut bytes = [0; Address::BYTES];
        bytes[2..4].copy_from_slice(&port.to_be_bytes());
        let len = if let Ok(v4) = Ipv4Addr::from_str(host) {
            bytes[..2].copy_from_slice(&Self::AF_INET.to_ne_bytes());
            bytes[4..8].copy_from_slice(&v4.octets());
            16
        } else {
            let v6 = Ipv6Addr::from_str(host).ok()?;
            bytes[..2].copy_from_slice(&Self::AF_INET6.to_ne_bytes());
            bytes[8..24].copy_from_slice(&v6.octets());
            28
        };
        (port != 0).then_some(Address { len, bytes })
    }

    /// The host of this one, with another port: of a node that says "where you asked me".
    pub fn with_port(mut self, port: u16) -> Option<Address> {
        self.bytes[2..4].copy_from_slice(&port.to_be_bytes());
        (port != 0 && self.len >= 16).then_some(self)
    }

    /// For messages.
    pub fn to_socket_address(&self) -> Option<core::net::SocketAddr> {
        let port = u16::from_be_bytes([self.bytes[2], self.bytes[3]]);
        match self.len {
            16 => {
                let v4: [u8; 4] = self.bytes[4..8].try_into().ok()?;
                Some((Ipv4Addr::from(v4), port).into())
            }
            28 => {
                let v6: [u8; 16] = self.bytes[8..24].try_into().ok()?;
                Some((Ipv6Addr::from(v6), port).into())
            }
            _ => None,
        }
    }
}

/// A decimal number, alone. No more digits than a `u64` has.
pub fn number(text: &[u8]) -> Option<i64> {
    let (sign, digits) = match text.split_first() {
        Some((b'-', digits)) => (-1, digits),
        _ => (1, text),
    };
    if digits.is_empty() || digits.len() > 19 {
        return None;
    }
    let mut value = 0i64;
    for digit in digits {
        let digit = digit.checked_sub(b'0').filter(|d| *d < 10)?;
        value = value.checked_mul(10)?.checked_add(i64::from(digit))?;
    }
    Some(sign * value)
}

impl Complaint {
    /// The complaint of the text behind the minus.
    fn of(text: &[u8]) -> Complaint {
        let mut words = text.split(|b| *b == b' ');
        let code = words.next().unwrap_or(&[]);
        let place = |mut words: core::slice::Split<'_, u8, _>| {
            let slot = words.next().and_then(number).filter(|s| (0..16384).contains(s))?;
            Some((slot as u16, words.next().and_then(host_and_port)))
        };
        match code {
            b"MOVED" => place(words).map_or(Complaint::Other, |(s, a)| Complaint::Moved(s, a)),
            b"ASK" => place(words).map_or(Complaint::Other, |(_, a)| Complaint::Ask(a)),
            b"TRYAGAIN" | b"CLUSTERDOWN" | b"LOADING" | b"MASTERDOWN" | b"READONLY"
            | b"UNBLOCKED" | b"BUSY" => Complaint::Later,
            // It was a primary when it took the command before.
            b"ERR" if text.starts_with(b"ERR WAIT cannot be used with replica") => Complaint::Later,
            b"OOM" => Complaint::Full,
            b"NOAUTH" | b"WRONGPASS" | b"NOPERM" => Complaint::NotAllowed,
            _ => Complaint::Other,
        }
    }

    pub fn errno(self) -> Errno {
        match self {
            Complaint::Full => Errno::ENOSPC,
            Complaint::NotAllowed => Errno::EACCES,
            Complaint::Moved(..) | Complaint::Ask(_) | Complaint::Later => Errno::EAGAIN,
            Complaint::Other => Errno::EIO,
        }
    }
}

/// `10.0.0.1:6379`, `::1:6379`, `name.example:6379`, `:6379`: the port stands behind the last
/// colon.
fn host_and_port(text: &[u8]) -> Option<Place> {
    let colon = text.iter().rposition(|b| *b == b':')?;
    let port = u16::try_from(number(&text[colon + 1..])?).ok().filter(|port| *port != 0)?;
    let host = &text[..colon];
    match Address::of(host, port) {
        Some(address) => Some(Place::At(address)),
        None if host.is_empty() => Some(Place::Here(port)),
        None => Some(Place::Named(name_of(host, port))).filter(|p| *p != Place::Named(0)),
    }
}

/// Bytes that have come and are not taken yet.
pub struct Incoming {
    bytes: [u8; LINE_BYTES],
    start: usize,
    end: usize,
}

impl Incoming {
    pub const fn new() -> Incoming {
        Incoming { bytes: [0; LINE_BYTES], start: 0, end: 0 }
    }

    pub fn clear(&mut self) {
        (self.start, self.end) = (0, 0);
    }

    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// The next reply, or the beginning of it.
    pub fn head(&mut self, stream: &mut impl Stream) -> Result<Head> {
        let line = self.line(stream)?;
        let (kind, rest) = self.bytes[line].split_first().ok_or(EPROTO)?;
        let length = |text: &[u8]| match number(text) {
            Some(-1) => Ok(None),
            Some(n @ 0..=LENGTH_MOST) => Ok(Some(n as usize)),
            _ => Err(EPROTO),
        };
        Ok(match kind {
            b'+' => Head::Status,
            b'-' => Head::Error(Complaint::of(rest)),
            b':' => Head::Number(number(rest).ok_or(EPROTO)?),
            b'$' => length(rest)?.map_or(Head::Nothing, Head::Bulk),
            b'*' => length(rest)?.map_or(Head::Nothing, Head::Array),
            _ => return Err(EPROTO),
        })
    }

    /// Takes a line: where it is in the buffer, until the next call.
    fn line(&mut self, stream: &mut impl Stream) -> Result<Range<usize>> {
        self.bytes.copy_within(self.start..self.end, 0);
        (self.end, self.start) = (self.end - self.start, 0);
        let (mut searched, mut dropped) = (0, 0);
        loop {
            let is_end = |pair: &[u8]| pair == b"\r\n";
            if let Some(at) = self.bytes[searched..self.end].windows(2).position(is_end) {
                let at = searched + at;
                self.start = at + 2;
                return Ok(0..at);
            }
            // The second half of the end may still be on its way.
            searched = self.end.saturating_sub(1);
            if self.end == LINE_BYTES {
                if !matches!(self.bytes[0], b'+' | b'-') {
                    return Err(EPROTO);
                }
                dropped += LINE_BYTES - KEPT_BYTES;
                if dropped > LINE_MOST_BYTES {
                    return Err(EPROTO);
                }
                self.bytes[KEPT_BYTES] = self.bytes[LINE_BYTES - 1];
                // No end is here, also for a search that begins anew after an error of the stream.
                if self.bytes[KEPT_BYTES - 1] == b'\r' {
                    self.bytes[KEPT_BYTES - 1] = b' ';
                }
                (searched, self.end) = (KEPT_BYTES, KEPT_BYTES + 1);
            }
            self.fill(stream)?;
        }
    }

    fn fill(&mut self, stream: &mut impl Stream) -> Result<()> {
        let room = &mut self.bytes[self.end..];
        let most = room.len();
        let n = stream.some(room)?;
        if n == 0 || n > most {
            return Err(EPROTO);
        }
        self.end += n;
        Ok(())
    }

    /// The bytes of a bulk, all of them, and the end of its line.
    pub fn body(&mut self, stream: &mut impl Stream, mut into: &mut [u8]) -> Result<()> {
        let here = into.len().min(self.end - self.start);
        into[..here].copy_from_slice(&self.bytes[self.start..self.start + here]);
        self.start += here;
        into = &mut into[here..];
        while !into.is_empty() {
            let n = stream.some(into)?;
            if n == 0 || n > into.len() {
                return Err(EPROTO);
            }
            into = &mut into[n..];
        }
        let mut end = [0; 2];
        self.take(stream, &mut end)?;
        if &end == b"\r\n" { Ok(()) } else { Err(EPROTO) }
    }

    fn take(&mut self, stream: &mut impl Stream, into: &mut [u8; 2]) -> Result<()> {
        for byte in into {
            if self.is_empty() {
                (self.start, self.end) = (0, 0);
                self.fill(stream)?;
            }
            *byte = self.bytes[self.start];
            self.start += 1;
        }
        Ok(())
    }

    /// Takes a bulk whose bytes are of no use, beyond the first ones: how many of those there are.
    pub fn body_beginning(
        &mut self,
        stream: &mut impl Stream,
        len: usize,
        into: &mut [u8],
    ) -> Result<usize> {
        let (mut left, mut kept) = (len, 0);
        while left > 0 {
            if self.is_empty() {
                (self.start, self.end) = (0, 0);
                self.fill(stream)?;
            }
            let n = left.min(self.end - self.start);
            let keep = n.min(into.len() - kept);
            into[kept..kept + keep].copy_from_slice(&self.bytes[self.start..self.start + keep]);
            (kept, left, self.start) = (kept + keep, left - n, self.start + n);
        }
        let mut end = [0; 2];
        self.take(stream, &mut end)?;
        if &end == b"\r\n" { Ok(kept) } else { Err(EPROTO) }
    }
}

impl Default for Incoming {
    fn default() -> Self {
        Incoming::new()
    }
}

/// Commands as they go out, but for the bytes of a value.
pub struct Outgoing {
    bytes: [u8; Outgoing::BYTES],
    len: usize,
    is_cut: bool,
}

impl Outgoing {
    /// AUTH with the longest name and password is the longest.
    const BYTES: usize = 384;

    pub const fn new() -> Outgoing {
        Outgoing { bytes: [0; Outgoing::BYTES], len: 0, is_cut: false }
    }

    fn put(mut self, bytes: &[u8]) -> Outgoing {
        match self.bytes.get_mut(self.len..self.len + bytes.len()) {
            Some(room) => {
                room.copy_from_slice(bytes);
                self.len += bytes.len();
            }
            None => self.is_cut = true,
        }
        self
    }

    fn put_number(self, kind: u8, n: u64) -> Outgoing {
        let mut digits = [0; DIGITS_MOST];
        let text = decimal(n, &mut digits);
        self.put(&[kind]).put(text).put(b"\r\n")
    }

    /// A command of so many words begins.
    pub fn command(self, words: usize) -> Outgoing {
        self.put_number(b'*', words as u64)
    }

    pub fn word(self, bytes: &[u8]) -> Outgoing {
        self.put_number(b'$', bytes.len() as u64).put(bytes).put(b"\r\n")
    }

    pub fn word_of_number(self, n: u64) -> Outgoing {
        let mut digits = [0; DIGITS_MOST];
        let text = decimal(n, &mut digits);
        self.put_number(b'$', text.len() as u64).put(text).put(b"\r\n")
    }

    /// A word whose bytes are sent by themselves, and the end of its line by `after_bytes`.
    pub fn length(self, bytes: usize) -> Outgoing {
        self.put_number(b'$', bytes as u64)
    }

    pub fn after_bytes(self) -> Outgoing {
        self.put(b"\r\n")
    }

    /// All bytes of the command. An error: it was too long.
    pub fn bytes(&self) -> Result<&[u8]> {
        if self.is_cut { Err(Errno::EINVAL) } else { Ok(&self.bytes[..self.len]) }
    }
}

impl Default for Outgoing {
    fn default() -> Self {
        Outgoing::new()
    }
}

#[cfg(test)]
mod tests;
