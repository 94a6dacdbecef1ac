//! A client that knows what the disk must answer: random requests, a naive model of the bytes, and
//! the session between them. For tests, and for a fuzzer that chooses the requests.
//!
//! All requests are made before any is answered, which is how a client with many in flight sees it,
//! and the replies are read one by one: each must have its request's cookie, and exactly its bytes.

use std::io::Read;

use uzswap::codec::CodecSpec;
use uzswap::store::seal::Encryption;

use crate::channel::Channel;
use crate::disk::{Disk, DiskConfig, PAGE_BYTES};
use crate::handshake::{self, Agreement, Export};
use crate::protocol::*;
use crate::session::Session;

/// A number below another.
pub type Below<'a> = dyn FnMut(u64) -> u64 + 'a;

pub fn config(bytes: u64, memory_bytes: u64) -> DiskConfig {
    DiskConfig {
        bytes,
        memory_bytes,
        compressor: CodecSpec::default(),
        recompressor: CodecSpec::parse("zstd:level=1").ok(),
        store: None,
        encryption: Encryption::On,
        read_only: false,
    }
}

pub fn export(disk: &Disk) -> Export {
    Export {
        name: "x".to_string(),
        description: "a test's".to_string(),
        bytes: disk.bytes(),
        read_only: disk.is_read_only(),
    }
}

/// The reply that a request must get.
enum Expected {
    Done,
    Fails(Error),
    Bytes {
        at: u64,
        bytes: Vec<u8>,
        whole: bool,
    },
    /// Which bytes are zero, of those that were asked for.
    Status {
        zeros: Vec<bool>,
        one: bool,
    },
}

pub fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = OPTION_MAGIC.to_be_bytes().to_vec();
    bytes.extend(number.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

pub fn request(flags: u16, command: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let mut bytes = REQUEST_MAGIC.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(command.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(len.to_be_bytes());
    bytes
}

/// Content that compresses, or does not, or is all zero.
fn content(below: &mut Below, len: usize) -> Vec<u8> {
    let (kind, mut x) = (below(4), below(1 << 20) | 1);
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 11) as u8
    };
    match kind {
        0 => vec![0; len],
        1 => vec![next(); len],
        2 => (0..len).map(|_| next()).collect(),
        _ => (0..len).map(|i| if i % 64 < 8 { next() } else { (i / 64) as u8 }).collect(),
    }
}

/// A range: pages, parts of pages, around the ends of both; now and then not on the disk.
fn range(below: &mut Below, bytes: u64) -> (u64, u64) {
    let most = bytes.min(40 * PAGE_BYTES);
    let (mut at, mut len) = (below(bytes), 1 + below(most));
    match below(4) {
        0 => {
            at -= at % PAGE_BYTES;
            len = len.next_multiple_of(PAGE_BYTES);
        }
        1 => len = 1 + below(600),
        2 => at -= at % 512,
        _ => {}
    }
    // Beyond the end, by a little or by as much as there are numbers.
    match below(40) {
        0 => (at, len),
        1 => (u64::MAX - below(2 * len), len),
        _ => (at, len.min(bytes - at).max(1)),
    }
}

/// The model, and the requests made so far.
struct Client<'a> {
    model: &'a mut Vec<u8>,
    agreement: Agreement,
    stream: Vec<u8>,
    expected: Vec<Expected>,
}

impl Client<'_> {
    fn send(&mut self, flags: u16, command: u16, at: u64, len: u64, expected: Expected) {
        let cookie = self.expected.len() as u64;
        self.stream.extend(request(flags, command, cookie, at, len as u32));
        self.expected.push(expected);
    }

    fn add(&mut self, below: &mut Below) {
        let (at, len) = range(below, self.model.len() as u64);
        let end = at.checked_add(len).filter(|end| *end <= self.model.len() as u64);
        let inside = end.map(|end| at as usize..end as usize);
        let fua = CMD_FLAG_FUA * below(2) as u16;
        match (below(16), inside) {
            (0..6, None) => self.send(0, CMD_READ, at, len, Expected::Fails(Error::Invalid)),
            (0..6, Some(inside)) => {
                let whole = self.agreement.structured && below(4) == 0;
                let bytes = self.model[inside].to_vec();
                let flags = if whole { CMD_FLAG_DF } else { 0 };
                self.send(flags, CMD_READ, at, len, Expected::Bytes { at, bytes, whole });
            }
            (6..12, inside) => {
                let bytes = content(below, len as usize);
                match inside {
                    Some(inside) => {
                        self.model[inside].copy_from_slice(&bytes);
                        self.send(fua, CMD_WRITE, at, len, Expected::Done);
                    }
                    None => self.send(fua, CMD_WRITE, at, len, Expected::Fails(Error::NoSpace)),
                }
                self.stream.extend(bytes);
            }
            (12 | 13, None) => {
                self.send(fua, CMD_WRITE_ZEROES, at, len, Expected::Fails(Error::NoSpace))
            }
            (12, Some(inside)) => {
                self.model[inside].fill(0);
                let flags = [0, CMD_FLAG_NO_HOLE, CMD_FLAG_FAST_ZERO][below(3) as usize] | fua;
                self.send(flags, CMD_WRITE_ZEROES, at, len, Expected::Done);
            }
            (13, Some(inside)) => {
                // The disk leaves parts of pages alone when it trims, and so does the model.
                let page = PAGE_BYTES as usize;
                let end = if inside.end == self.model.len() {
                    inside.end
                } else {
                    inside.end / page * page
                };
                let first = inside.start.next_multiple_of(page);
                if first < end {
                    self.model[first..end].fill(0);
                }
                self.send(fua, CMD_TRIM, at, len, Expected::Done);
            }
            (14, Some(inside)) if self.agreement.allocation => {
                let one = below(2) == 0;
                let zeros = self.model[inside].iter().map(|b| *b == 0).collect();
                let flags = if one { CMD_FLAG_REQ_ONE } else { 0 };
                self.send(flags, CMD_BLOCK_STATUS, at, len, Expected::Status { zeros, one });
            }
            (14, _) => self.send(0, CMD_BLOCK_STATUS, at, len, Expected::Fails(Error::Invalid)),
            _ => self.add_odd(below),
        }
    }

    fn add_odd(&mut self, below: &mut Below) {
        match below(6) {
            0 => self.send(0, CMD_FLUSH, 0, 0, Expected::Done),
            1 => self.send(0, CMD_FLUSH, 0, 1, Expected::Fails(Error::Invalid)),
            2 => self.send(0, CMD_READ, 0, 0, Expected::Fails(Error::Invalid)),
            3 => self.send(1 << 9, CMD_READ, 0, 1, Expected::Fails(Error::Invalid)),
            4 => self.send(0, 77, 0, 1, Expected::Fails(Error::Invalid)),
            _ => self.send(0, CMD_CACHE, 0, 1, Expected::Done),
        }
    }
}

fn number<const N: usize>(from: &mut &[u8]) -> [u8; N] {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes).expect("a reply is whole");
    bytes
}

fn take<'a>(from: &mut &'a [u8], n: usize) -> &'a [u8] {
    let (head, rest) = from.split_at_checked(n).expect("a reply is whole");
    *from = rest;
    head
}

/// One chunk of a structured reply: flags, kind, payload.
fn chunk<'a>(from: &mut &'a [u8], cookie: u64) -> (u16, u16, &'a [u8]) {
    let flags = u16::from_be_bytes(number(from));
    let kind = u16::from_be_bytes(number(from));
    assert_eq!(u64::from_be_bytes(number(from)), cookie);
    let len = u32::from_be_bytes(number(from));
    (flags, kind, take(from, len as usize))
}

fn check_status(payload: &[u8], zeros: &[bool], one: bool) {
    let mut fields = Fields(payload);
    assert_eq!(fields.u32(), Some(BASE_ALLOCATION_ID));
    let (mut at, mut extents) = (0, 0);
    while let (Some(len), Some(state)) = (fields.u32(), fields.u32()) {
        let end = at + len as usize;
        assert!(len > 0 && end <= zeros.len(), "an extent is of what was asked for");
        assert!(state & STATE_ZERO == 0 || zeros[at..end].iter().all(|z| *z), "zeros are zeros");
        assert!(state & STATE_HOLE == 0 || state & STATE_ZERO != 0, "a hole reads as zeros");
        (at, extents) = (end, extents + 1);
    }
    assert!(at > 0 && (!one || extents == 1) && (one || at == zeros.len()));
}

/// Reads the data of a read that is answered by chunks; the first chunk's magic is read already.
fn check_chunks(from: &mut &[u8], cookie: u64, at: u64, bytes: &[u8], whole: bool) {
    let mut seen = vec![false; bytes.len()];
    let mut chunks = 0;
    loop {
        let (flags, kind, payload) = chunk(from, cookie);
        let mut fields = Fields(payload);
        let offset = (fields.u64().expect("an offset") - at) as usize;
        let len = match kind {
            REPLY_OFFSET_DATA => {
                let data = fields.0;
                assert!(
                    !data.is_empty() && data == &bytes[offset..offset + data.len()],
                    "other bytes"
                );
                data.len()
            }
            REPLY_OFFSET_HOLE => {
                let len = fields.u32().expect("a length") as usize;
                assert!(len > 0 && bytes[offset..offset + len].iter().all(|b| *b == 0), "no hole");
                len
            }
            other => panic!("a chunk of kind {other}"),
        };
        assert!(seen[offset..offset + len].iter().all(|s| !s), "a byte comes once");
        seen[offset..offset + len].fill(true);
        chunks += 1;
        if flags & REPLY_FLAG_DONE != 0 {
            break;
        }
        assert_eq!(u32::from_be_bytes(number(from)), STRUCTURED_REPLY_MAGIC);
    }
    assert!(seen.iter().all(|s| *s), "every byte comes");
    assert!(!whole || chunks == 1, "it must not be fragmented");
}

fn check(from: &mut &[u8], cookie: u64, expected: &Expected) {
    let magic = u32::from_be_bytes(number(from));
    if magic == SIMPLE_REPLY_MAGIC {
        let error = u32::from_be_bytes(number(from));
        assert_eq!(u64::from_be_bytes(number(from)), cookie);
        match expected {
            Expected::Done => assert_eq!(error, 0),
            Expected::Fails(why) => assert_eq!(error, *why as u32),
            Expected::Bytes { bytes, .. } => {
                assert_eq!(error, 0);
                assert!(take(from, bytes.len()) == bytes, "other bytes");
            }
            Expected::Status { .. } => panic!("no simple reply says that"),
        }
        return;
    }
    assert_eq!(magic, STRUCTURED_REPLY_MAGIC);
    match expected {
        Expected::Bytes { at, bytes, whole } => check_chunks(from, cookie, *at, bytes, *whole),
        Expected::Status { zeros, one } => {
            let (flags, kind, payload) = chunk(from, cookie);
            assert_eq!((flags, kind), (REPLY_FLAG_DONE, REPLY_BLOCK_STATUS));
            check_status(payload, zeros, *one);
        }
        Expected::Fails(why) => {
            let (flags, kind, payload) = chunk(from, cookie);
            assert_eq!((flags, kind), (REPLY_FLAG_DONE, REPLY_ERROR));
            let mut fields = Fields(payload);
            assert_eq!(fields.u32(), Some(*why as u32));
            assert_eq!(fields.u16().map(usize::from), Some(fields.0.len()));
        }
        Expected::Done => panic!("a simple reply says that"),
    }
}

/// Sends `requests` random ones in one session, and checks every reply. `model` is what the disk
/// has.
pub fn requests(
    disk: &Disk,
    model: &mut Vec<u8>,
    agreement: Agreement,
    requests: usize,
    below: &mut Below,
) {
    let mut client = Client { model, agreement, stream: Vec::new(), expected: Vec::new() };
    (0..requests).for_each(|_| client.add(below));
    let Client { mut stream, expected, .. } = client;
    stream.extend(request(0, CMD_DISC, 0, 0, 0));
    let mut replies = Vec::new();
    let mut channel = Channel::new(&stream[..], &mut replies).expect("memory");
    Session { channel: &mut channel, disk, agreement }
        .serve()
        .expect("all of it is by the protocol");
    drop(channel);
    let mut from = &replies[..];
    for (cookie, expected) in expected.iter().enumerate() {
        check(&mut from, cookie as u64, expected);
    }
    assert!(from.is_empty(), "nothing else is said");
}

/// Serves a connection that sends these bytes. It ends, whatever they are.
pub fn connection(disk: &Disk, bytes: &[u8]) -> Vec<u8> {
    let mut said = Vec::new();
    let mut channel = Channel::new(bytes, &mut said).expect("memory");
    let later = std::time::Instant::now() + std::time::Duration::from_secs(3600);
    if let Ok(Some(agreement)) = handshake::shake(&mut channel, &export(disk), later) {
        let _ = Session { channel: &mut channel, disk, agreement }.serve();
    }
    let _ = channel.flush();
    drop(channel);
    said
}
