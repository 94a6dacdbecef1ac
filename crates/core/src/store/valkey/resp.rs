//! The protocol of Valkey and Redis (RESP 2) as bytes: commands that go out, replies that come.
//!
//! ```text
//!   +OK        -MOVED 7 10.0.0.1:6379        :1        $3 abc        *2 ...     each line ends by CR LF
//!   Status     Error                         Number    Bulk          Array
//! ```
//!
//! Nothing here needs memory. Lines are looked at in a buffer of fixed size; what a server says of
//! a length is a number that the caller compares with what it has asked for, before a byte of it is
//! taken. Whatever is not by the protocol is [`EPROTO`], and breaks the connection.

use core::net::{Ipv4Addr, Ipv6Addr};
use core::ops::Range;
use core::str::FromStr;

use crate::store::remote::EPROTO;
use crate::sys::{Errno, Result};

/// The longest line that is kept whole, in bytes: redirections and lengths are shorter. Of a longer
/// text the beginning is kept.
pub const LINE_BYTES: usize = 256;
/// What is kept of the beginning.
const KEPT_BYTES: usize = 128;
/// A line beyond this is no message of a server: error texts repeat a part of the command, not all.
const LINE_MOST_BYTES: usize = 64 << 10;
/// The most that a reply can announce: a string of 512 MiB is the protocol's own limit.
const LENGTH_MOST: i64 = 512 << 20;

/// From where replies come.
pub trait Stream {
    /// At least one byte, or an error; the end is one, too.
    fn some(&mut self, into: &mut [u8]) -> Result<usize>;
}

/// What a reply begins with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Head {
    Status,
    Error(Complaint),
    Number(i64),
    /// So many bytes follow, and the end of a line.
    Bulk(usize),
    /// So many replies follow.
    Array(usize),
    /// There is none (a bulk, or an array).
    Nothing,
}

/// Why a server did not do what was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Complaint {
    /// The slot is another node's for good. `None`: it is not named in a way that is understood.
    Moved(u16, Option<Address>),
    /// The key is at another node, this once.
    Ask(Option<Address>),
    /// TRYAGAIN, CLUSTERDOWN, LOADING, MASTERDOWN, READONLY, UNBLOCKED, BUSY: it will pass.
    Later,
    /// OOM: `maxmemory` is reached.
    Full,
    /// NOAUTH, WRONGPASS, NOPERM.
    NotAllowed,
    /// Everything else.
    Other,
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
    /// Of the text behind the minus.
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

/// `10.0.0.1:6379`, `::1:6379`: the port stands behind the last colon.
fn host_and_port(text: &[u8]) -> Option<Address> {
    let colon = text.iter().rposition(|b| *b == b':')?;
    let port = u16::try_from(number(&text[colon + 1..])?).ok()?;
    Address::of(&text[..colon], port)
}

/// What has come and is not taken yet.
pub struct Incoming {
    bytes: [u8; LINE_BYTES],
    start: usize,
    end: usize,
    line: usize,
}

impl Incoming {
    pub const fn new() -> Incoming {
        Incoming { bytes: [0; LINE_BYTES], start: 0, end: 0, line: 0 }
    }

    pub fn clear(&mut self) {
        (self.start, self.end, self.line) = (0, 0, 0);
    }

    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// The line of the last head, without its first byte: an error's text, for messages.
    pub fn text(&self) -> &[u8] {
        self.bytes.get(1..self.line).unwrap_or(&[])
    }

    /// The next reply, or what it begins with.
    pub fn head(&mut self, stream: &mut impl Stream) -> Result<Head> {
        let line = self.line(stream)?;
        self.line = line.end;
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
                (self.start, self.end, self.line) = (0, 0, 0);
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
                (self.start, self.end, self.line) = (0, 0, 0);
                self.fill(stream)?;
            }
            let n = left.min(self.end - self.start);
            let keep = n.min(into.len() - kept);
            into[kept..kept + keep]
                .copy_from_slice(&self.bytes[self.start..self.start + keep]);
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
        let mut digits = [0; 20];
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
        let mut digits = [0; 20];
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

    /// All of it. An error: it was too long.
    pub fn bytes(&self) -> Result<&[u8]> {
        if self.is_cut { Err(Errno::EINVAL) } else { Ok(&self.bytes[..self.len]) }
    }
}

impl Default for Outgoing {
    fn default() -> Self {
        Outgoing::new()
    }
}

fn decimal(mut n: u64, digits: &mut [u8; 20]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            return &digits[at..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Choices, Random};

    /// Bytes in pieces of given sizes, over and over.
    struct Pieces<'a> {
        bytes: &'a [u8],
        sizes: &'a [usize],
        turn: usize,
    }

    impl Stream for Pieces<'_> {
        fn some(&mut self, into: &mut [u8]) -> Result<usize> {
            if self.bytes.is_empty() {
                return Err(Errno(104));
            }
            let size = self.sizes[self.turn % self.sizes.len()];
            self.turn += 1;
            let n = size.min(into.len()).min(self.bytes.len());
            let (head, rest) = self.bytes.split_at(n);
            into[..n].copy_from_slice(head);
            self.bytes = rest;
            Ok(n)
        }
    }

    fn heads(bytes: &[u8], sizes: &[usize]) -> Vec<Result<Head>> {
        let mut incoming = Incoming::new();
        let mut stream = Pieces { bytes, sizes, turn: 0 };
        let mut all = Vec::new();
        loop {
            let head = incoming.head(&mut stream);
            let is_last = head.is_err();
            if head != Err(Errno(104)) {
                all.push(head);
            }
            if is_last {
                return all;
            }
        }
    }

    #[test]
    fn replies_are_known() {
        let node = Address::of(b"10.0.0.1", 6379);
        for (bytes, is) in [
            (&b"+OK\r\n"[..], Head::Status),
            (b":-12\r\n", Head::Number(-12)),
            (b"$-1\r\n", Head::Nothing),
            (b"*-1\r\n", Head::Nothing),
            (b"$70000\r\n", Head::Bulk(70000)),
            (b"*0\r\n", Head::Array(0)),
            (b"-MOVED 16383 10.0.0.1:6379\r\n", Head::Error(Complaint::Moved(16383, node))),
            (b"-MOVED 7 name.example:1\r\n", Head::Error(Complaint::Moved(7, None))),
            (b"-ASK 0 10.0.0.1:6379\r\n", Head::Error(Complaint::Ask(node))),
            (b"-ASK 0 ::1:6379\r\n", Head::Error(Complaint::Ask(Address::of(b"::1", 6379)))),
            (b"-CLUSTERDOWN Hash slot not served\r\n", Head::Error(Complaint::Later)),
            (b"-TRYAGAIN\r\n", Head::Error(Complaint::Later)),
            (b"-LOADING it\r\n", Head::Error(Complaint::Later)),
            (b"-OOM command not allowed\r\n", Head::Error(Complaint::Full)),
            (b"-NOAUTH Authentication required.\r\n", Head::Error(Complaint::NotAllowed)),
            (b"-ERR unknown\r\n", Head::Error(Complaint::Other)),
            (b"-MOVED 16384 10.0.0.1:6379\r\n", Head::Error(Complaint::Other)),
            (b"-MOVED -1 10.0.0.1:6379\r\n", Head::Error(Complaint::Other)),
            (b"-MOVED\r\n", Head::Error(Complaint::Other)),
        ] {
            assert_eq!(heads(bytes, &[1000]), [Ok(is)], "{:?}", String::from_utf8_lossy(bytes));
        }
        assert_eq!(
            node.and_then(|n| n.to_socket_address()).map(|a| a.to_string()),
            Some("10.0.0.1:6379".into())
        );
    }

    #[test]
    fn what_is_not_by_the_protocol_is_an_error() {
        for bytes in [
            &b"\r\n"[..],
            b"OK\r\n",
            b"$\r\n",
            b"$-2\r\n",
            b"$1x\r\n",
            b"$99999999999999999999999999\r\n",
            b"$9223372036854775807\r\n",
            b"*536870913\r\n",
            b":\r\n",
            b":-\r\n",
            b":+1\r\n",
            b"HTTP/1.1 400 Bad Request\r\n",
        ] {
            let said = String::from_utf8_lossy(bytes);
            assert_eq!(heads(bytes, &[1000]), [Err(EPROTO)], "{said:?}");
        }
        // Lines without an end: a length is refused when the buffer is full, a text much later.
        let endless = [&b"$1"[..], &[b'0'; 10_000]].concat();
        assert_eq!(heads(&endless, &[100]), [Err(EPROTO)]);
        let endless = [&b"-ERR "[..], &vec![b'x'; 1 << 20]].concat();
        assert_eq!(heads(&endless, &[100]), [Err(EPROTO)]);
        // A long text has its beginning kept, and what follows it is found.
        for extra in 0..2 * LINE_BYTES {
            let long = [&b"-OOM "[..], &vec![b'\r'; extra], b"\r\n:5\r\n"].concat();
            let is = [Ok(Head::Error(Complaint::Full)), Ok(Head::Number(5))];
            assert_eq!(heads(&long, &[7, 300]), is, "{extra}");
        }
    }

    #[test]
    fn a_body_is_as_long_as_was_said_or_an_error() {
        let body = |bytes: &[u8], len: usize| {
            let mut into = vec![0; len];
            let mut stream = Pieces { bytes, sizes: &[3], turn: 0 };
            Incoming::new().body(&mut stream, &mut into).map(|()| into)
        };
        assert_eq!(body(b"abc\r\n", 3), Ok(b"abc".to_vec()));
        assert_eq!(body(b"\r\n", 0), Ok(vec![]));
        assert_eq!(body(b"abcd\r\n", 3), Err(EPROTO));
        assert_eq!(body(b"abc\rx", 3), Err(EPROTO));
        assert_eq!(body(b"ab", 3), Err(Errno(104)));
    }

    #[test]
    fn commands_are_as_servers_take_them() {
        let set = Outgoing::new().command(3).word(b"SET").word(b"k").length(5);
        assert_eq!(set.bytes(), Ok(&b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\n"[..]));
        let end = Outgoing::new().after_bytes().word(b"PX").word_of_number(120_000);
        assert_eq!(end.bytes(), Ok(&b"\r\n$2\r\nPX\r\n$6\r\n120000\r\n"[..]));
        assert!(Outgoing::new().word(&[b'x'; 500]).bytes().is_err());
        assert_eq!(decimal(u64::MAX, &mut [0; 20]), b"18446744073709551615");
        assert_eq!(decimal(0, &mut [0; 20]), b"0");
    }

    /// A reply of a right server, as bytes.
    fn reply(r: &mut Random) -> Vec<u8> {
        let len = r.index(if r.index(2) == 0 { 30 } else { 700 });
        match r.index(5) {
            kind @ 0..2 => {
                // A carriage return alone ends no line.
                let text = (0..len).map(|_| b"ab \r-+$"[r.index(7)]);
                let text: Vec<u8> = text.chain(*b".\r\n").collect();
                [&[b"+-"[kind]][..], &text].concat()
            }
            2 => format!(":{}\r\n", r.index(1 << 40) as i64 - (1 << 39)).into_bytes(),
            3 => {
                let bytes: Vec<u8> = (0..len).map(|_| r.index(256) as u8).collect();
                [format!("${len}\r\n").as_bytes(), &bytes, b"\r\n"].concat()
            }
            _ => format!("*{}\r\n", r.index(20)).into_bytes(),
        }
    }

    /// All that is read from the bytes, in words.
    fn read_all(bytes: &[u8], sizes: &[usize]) -> Vec<String> {
        let mut incoming = Incoming::new();
        let mut stream = Pieces { bytes, sizes, turn: 0 };
        let mut all = Vec::new();
        loop {
            let head = incoming.head(&mut stream);
            all.push(format!("{head:?}"));
            match head {
                Ok(Head::Bulk(len)) if len <= 1000 => {
                    let mut into = vec![0; len];
                    let body = match len % 2 {
                        0 => incoming.body(&mut stream, &mut into),
                        _ => incoming.body_beginning(&mut stream, len, &mut into[..len / 2]).map(drop),
                    };
                    let is_err = body.is_err();
                    all.push(format!("{body:?} {:?}", (!is_err).then_some(into)));
                    if is_err {
                        return all;
                    }
                }
                Ok(_) => {}
                Err(_) => return all,
            }
        }
    }

    fn sizes(r: &mut Random) -> Vec<usize> {
        (0..1 + r.index(6)).map(|_| 1 + r.index(400)).collect()
    }

    #[test]
    fn replies_are_read_alike_however_they_are_cut() {
        for seed in 1..2000 {
            let r = &mut Random::new(seed);
            let bytes: Vec<u8> = (0..1 + r.index(8)).flat_map(|_| reply(r)).collect();
            let whole = read_all(&bytes, &[usize::MAX]);
            assert_eq!(read_all(&bytes, &sizes(r)), whole, "seed {seed}");
            assert_eq!(read_all(&bytes, &[1]), whole, "seed {seed}");
            assert_eq!(whole.last().unwrap(), "Err(Errno(104))", "seed {seed}");
        }
    }

    #[test]
    fn any_bytes_are_taken_or_refused_alike_however_they_are_cut() {
        for seed in 1..5000 {
            let r = &mut Random::new(seed);
            let mut bytes: Vec<u8> = (0..1 + r.index(4)).flat_map(|_| reply(r)).collect();
            for _ in 0..1 + r.index(10) {
                let at = r.index(bytes.len());
                match r.index(3) {
                    0 => bytes[at] = b"\r\n0123456789$*:-+"[r.index(17)],
                    1 => bytes[at] = r.index(256) as u8,
                    _ => bytes.truncate(at.max(1)),
                }
            }
            let whole = read_all(&bytes, &[usize::MAX]);
            assert_eq!(read_all(&bytes, &sizes(r)), whole, "seed {seed}");
            assert_eq!(read_all(&bytes, &[1]), whole, "seed {seed}");
        }
    }
}
