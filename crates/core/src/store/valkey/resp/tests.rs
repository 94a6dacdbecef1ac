//! Replies that are right, wrong, and cut anywhere.

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
    let address = Address::of(b"10.0.0.1", 6379);
    let node = address.map(Place::At);
    let named = Some(Place::Named(name_of(b"name.example", 1)));
    for (bytes, is) in [
        (&b"+OK\r\n"[..], Head::Status),
        (b":-12\r\n", Head::Number(-12)),
        (b"$-1\r\n", Head::Nothing),
        (b"*-1\r\n", Head::Nothing),
        (b"$70000\r\n", Head::Bulk(70000)),
        (b"*0\r\n", Head::Array(0)),
        (b"-MOVED 16383 10.0.0.1:6379\r\n", Head::Error(Complaint::Moved(16383, node))),
        (b"-MOVED 7 name.example:1\r\n", Head::Error(Complaint::Moved(7, named))),
        (b"-MOVED 7 name.example:0\r\n", Head::Error(Complaint::Moved(7, None))),
        (b"-MOVED 7 ?:1\r\n", Head::Error(Complaint::Moved(7, None))),
        (b"-MOVED 7\r\n", Head::Error(Complaint::Moved(7, None))),
        (b"-ASK 7 name.example:1\r\n", Head::Error(Complaint::Ask(named))),
        (b"-ASK 7 :6380\r\n", Head::Error(Complaint::Ask(Some(Place::Here(6380))))),
        (b"-ASK 0 10.0.0.1:6379\r\n", Head::Error(Complaint::Ask(node))),
        (
            b"-ASK 0 ::1:6379\r\n",
            Head::Error(Complaint::Ask(Address::of(b"::1", 6379).map(Place::At))),
        ),
        (b"-CLUSTERDOWN Hash slot not served\r\n", Head::Error(Complaint::Later)),
        (b"-TRYAGAIN\r\n", Head::Error(Complaint::Later)),
        (b"-LOADING it\r\n", Head::Error(Complaint::Later)),
        (
            b"-ERR WAIT cannot be used with replica instances. Please also note that\r\n",
            Head::Error(Complaint::Later),
        ),
        (b"-ERR WAIT cannot be helped\r\n", Head::Error(Complaint::Other)),
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
        address.and_then(|a| a.to_socket_address()).map(|a| a.to_string()),
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

#[test]
fn a_line_that_was_not_all_there_is_read_on() {
    // The end is only where it was sent, however much of the text is not kept.
    let mut long = [&b"-OOM "[..], &[b'x'; 3 * LINE_BYTES], b"\r\n"].concat();
    (long[KEPT_BYTES - 1], long[LINE_BYTES - 1]) = (b'\r', b'\n');
    for first in 1..long.len() {
        let mut incoming = Incoming::new();
        let (one, other) = long.split_at(first);
        let mut stream = Pieces { bytes: one, sizes: &[1000], turn: 0 };
        assert_eq!(incoming.head(&mut stream), Err(Errno(104)), "{first}");
        stream.bytes = other;
        assert_eq!(incoming.head(&mut stream), Ok(Head::Error(Complaint::Full)), "{first}");
        assert!(incoming.is_empty(), "{first}");
    }
}

/// A reply of a right server, as bytes.
fn reply(r: &mut Random) -> Vec<u8> {
    let most = if r.index(2) == 0 { 30 } else { 700 };
    let len = r.index(most);
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
        assert_eq!(whole.last().unwrap(), "Err(errno (104))", "seed {seed}");
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
