//! Fault traces: the file that `uzswap run --trace` writes and `uzswap simulate` reads.
//!
//! ```text
//!  file   = header, block, block, ... end block
//!  header = "uztrace\n"  version  bytes of the header  bytes of a record  bytes of a page
//!           limit (pages)  began (seconds since 1970)  0  0  checksum of all before it              64 bytes
//!  block  = kind ("rec\n" or "end\n")  records in it  checksum of what follows  what follows        16 bytes and those
//!  record = two words, see below                                                                    16 bytes
//!  end    = records written, records lost                                                           16 bytes
//! ```
//! All numbers are little-endian, of 4 bytes in front (version ... bytes of a page, kind, records
//! in it), of 8 elsewhere. Checksums are FNV-1a of 64 bits.
//!
//! A record, from the lowest bit: page number (36), kind (4), write (1), held (1), pages (22); time
//! in microseconds since the beginning (40), process id (24). The kinds, and what `page` and
//! `pages` are for each, are in `uzswap::control::trace::Kind`. Records of one process are in
//! order, those of several nearly.
//!
//! - A fault that brings several pages (fault-around) is one record of them all; the first is the
//!   one that was touched. Where page protection is the mechanism (`--mechanism protect`) a record
//!   is of a whole unit of pages, some of which may have been there.
//! - *Held* records are no faults of the program: pages that were brought in for a system call, or
//!   ahead of a thread that reads on.
//! - Dead pages are told by `Discarded`, moved ones (mremap) by `MovedFrom` and `MovedTo`. A child
//!   of fork has its parent's pages as they were; which of them it still shares with its parent at
//!   what moment is not recorded, and neither is a first write to one (a copy by the kernel).
//! - The end of a process that was killed by SIGKILL is not recorded.
//! - `InMemory` says every 50 ms how many pages were mapped or in limbo, while memory was short:
//!   what was touched among them left no record.
//!
//! A file that ends in the middle of a block, or without an end block, was cut short (`uzswap run`
//! was killed): what is whole counts, and readers say so. Anything else that does not fit is an
//! error.

pub mod recorder;

use std::io::{self, Read, Write};

use uzswap::control::trace::Record;

use crate::program::reason;

const MAGIC: [u8; 8] = *b"uztrace\n";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 64;
const RECORD_BYTES: usize = 16;
const PAGE_BYTES: u32 = uzswap::PAGE_BYTES as u32;
const BLOCK_HEADER_BYTES: usize = 16;
const RECORDS: [u8; 4] = *b"rec\n";
const END: [u8; 4] = *b"end\n";
/// Records of a block at most.
pub const BLOCK_RECORDS: usize = 4096;

fn checksum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, b| (sum ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
}

/// The header's contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The limit at the beginning (4 KiB pages).
    pub limit_pages: u64,
    /// Seconds since 1970.
    pub began: u64,
}

impl Header {
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend(MAGIC);
        for number in [VERSION, HEADER_BYTES as u32, RECORD_BYTES as u32, PAGE_BYTES] {
            bytes.extend(number.to_le_bytes());
        }
        for number in [self.limit_pages, self.began, 0, 0] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(checksum(&bytes).to_le_bytes());
        bytes.try_into().expect("the sizes above make 64 bytes")
    }

    fn parse(bytes: &[u8]) -> Result<Header, String> {
        let long =
            |at: usize| u64_at(bytes, at).ok_or("it ends within its first 64 bytes".to_string());
        if !bytes.starts_with(&MAGIC) {
            return Err("it is no trace of 'uzswap run --trace'".to_string());
        }
        let version = u32_at(bytes, 8).unwrap_or(0);
        if version != VERSION {
            return Err(format!(
                "it is of version {version}, and this uzswap reads version {VERSION}"
            ));
        }
        let sum = long(HEADER_BYTES - 8)?;
        let sizes = [12, 16, 20].map(|at| u32_at(bytes, at).unwrap_or(0));
        if sum != checksum(&bytes[..HEADER_BYTES - 8])
            || sizes != [HEADER_BYTES as u32, RECORD_BYTES as u32, PAGE_BYTES]
        {
            return Err("its header is damaged".to_string());
        }
        Ok(Header { limit_pages: long(24)?, began: long(32)? })
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// A block of records, ready to be written.
pub fn block(records: &[[u64; 2]]) -> Vec<u8> {
    framed(RECORDS, records)
}

/// The block that ends a trace.
pub fn end_block(written: u64, lost: u64) -> Vec<u8> {
    framed(END, &[[written, lost]])
}

fn framed(kind: [u8; 4], words: &[[u64; 2]]) -> Vec<u8> {
    debug_assert!(words.len() <= BLOCK_RECORDS);
    let payload: Vec<u8> =
        words.as_flattened().iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut bytes = Vec::with_capacity(BLOCK_HEADER_BYTES + payload.len());
    bytes.extend(kind);
    bytes.extend((words.len() as u32).to_le_bytes());
    bytes.extend(checksum(&payload).to_le_bytes());
    bytes.extend(payload);
    bytes
}

/// How a trace ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// As it should; so many records found no place in it.
    Whole { lost: u64 },
    /// In the middle: the run, or the writing of its trace, was cut short.
    Cut,
}

/// Reads a trace, block by block.
pub struct Reader<R> {
    from: R,
    pub header: Header,
    /// Bytes read so far, for messages.
    at: u64,
    records: u64,
    end: Option<End>,
}

impl<R: Read> Reader<R> {
    pub fn new(mut from: R) -> Result<Reader<R>, String> {
        let mut bytes = Vec::new();
        fill(&mut from, &mut bytes, HEADER_BYTES)?;
        let header = Header::parse(&bytes)?;
        Ok(Reader { from, header, at: HEADER_BYTES as u64, records: 0, end: None })
    }

    /// The records of the next block, or how the trace ends.
    pub fn next_block(&mut self) -> Result<Result<Vec<Record>, End>, String> {
        if let Some(end) = self.end {
            return Ok(Err(end));
        }
        let at = self.at;
        let damaged = |what: &str| format!("it is damaged at byte {at}: {what}");
        let (mut head, mut payload) = (Vec::new(), Vec::new());
        if fill(&mut self.from, &mut head, BLOCK_HEADER_BYTES)? < BLOCK_HEADER_BYTES {
            return Ok(Err(*self.end.insert(End::Cut)));
        }
        let (kind, count) = (&head[..4], u32_at(&head, 4).unwrap_or(0) as usize);
        let is_end = kind == END;
        if !is_end && kind != RECORDS || count > BLOCK_RECORDS || is_end && count != 1 {
            return Err(damaged("no block begins there"));
        }
        if fill(&mut self.from, &mut payload, count * RECORD_BYTES)? < count * RECORD_BYTES {
            return Ok(Err(*self.end.insert(End::Cut)));
        }
        if u64_at(&head, 8) != Some(checksum(&payload)) {
            return Err(damaged("its checksum is wrong"));
        }
        self.at += (BLOCK_HEADER_BYTES + payload.len()) as u64;
        let mut words =
            payload.chunks_exact(RECORD_BYTES).filter_map(|r| Some([u64_at(r, 0)?, u64_at(r, 8)?]));
        if is_end {
            let [written, lost] = words.next().unwrap_or_default();
            if written != self.records || self.from.read(&mut [0]).map_err(|e| reason(&e))? != 0 {
                return Err(damaged("its end does not fit what is before it"));
            }
            return Ok(Err(*self.end.insert(End::Whole { lost })));
        }
        let records: Option<Vec<Record>> = words.map(Record::unpack).collect();
        let records = records.ok_or_else(|| damaged("a record is none"))?;
        self.records += records.len() as u64;
        Ok(Ok(records))
    }
}

/// Reads `wanted` bytes, or what there is; returns how many.
fn fill(from: &mut impl Read, into: &mut Vec<u8>, wanted: usize) -> Result<usize, String> {
    from.take(wanted as u64).read_to_end(into).map_err(|e| reason(&e))
}

/// Writes a block whole, or says why not.
pub fn append(to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::pages::Random;
    use uzswap::control::trace::Kind;

    pub const HEADER: Header = Header { limit_pages: 10_000, began: 1_798_761_599 };

    pub fn record(kind: Kind, pid: u32, page: u64, pages: u32) -> Record {
        Record { kind, is_write: false, is_held: false, page, pages, pid, time_us: page }
    }

    /// A trace of `records`, in blocks of `each`.
    pub fn trace(records: &[Record], each: usize) -> Vec<u8> {
        let mut bytes = HEADER.to_bytes().to_vec();
        for chunk in records.chunks(each) {
            bytes.extend(block(&chunk.iter().map(Record::pack).collect::<Vec<_>>()));
        }
        bytes.extend(end_block(records.len() as u64, 5));
        bytes
    }

    fn read(bytes: &[u8]) -> Result<(Vec<Record>, End), String> {
        let mut reader = Reader::new(bytes)?;
        assert_eq!(reader.header, HEADER);
        let mut all = Vec::new();
        loop {
            match reader.next_block()? {
                Ok(records) => all.extend(records),
                Err(end) => return Ok((all, end)),
            }
        }
    }

    fn some(n: u64) -> Vec<Record> {
        (0..n)
            .map(|i| record(Kind::ALL[i as usize % 9], 1 + i as u32 % 3, i * i, 1 + i as u32 % 64))
            .collect()
    }

    #[test]
    fn a_trace_reads_as_it_was_written() {
        let records = some(10_000);
        assert_eq!(read(&trace(&records, BLOCK_RECORDS)), Ok((records, End::Whole { lost: 5 })));
        assert_eq!(read(&trace(&[], 1)), Ok((vec![], End::Whole { lost: 5 })));
    }

    #[test]
    fn what_is_cut_short_counts_as_far_as_it_is_whole() {
        let records = some(30);
        let bytes = trace(&records, 10);
        let (head, each) = (HEADER_BYTES, BLOCK_HEADER_BYTES + 10 * RECORD_BYTES);
        for cut in 0..bytes.len() {
            match read(&bytes[..cut]) {
                Ok((got, end)) => {
                    assert_eq!(end, End::Cut);
                    assert_eq!(got, records[..((cut - head) / each * 10).min(30)]);
                }
                Err(why) => assert!(cut < head && !why.is_empty(), "{cut}: {why}"),
            }
        }
    }

    #[test]
    fn what_is_no_trace_is_refused_with_a_reason() {
        let of = |change: fn(&mut Vec<u8>)| {
            let mut bytes = trace(&some(20), 10);
            change(&mut bytes);
            read(&bytes).unwrap_err()
        };
        assert!(read(b"hello").unwrap_err().contains("no trace"));
        assert!(of(|b| b[8] = 2).contains("version 2, and this uzswap reads version 1"));
        assert!(of(|b| b[24] ^= 1).contains("header is damaged"));
        assert!(of(|b| b[64] = 0).contains("byte 64: no block"));
        assert!(of(|b| b[100] ^= 1).contains("byte 64: its checksum"));
        assert!(of(|b| b.push(0)).contains("its end does not fit"));
    }

    #[test]
    fn damage_is_found_and_never_a_panic() {
        let records = some(500);
        let whole = trace(&records, 50);
        let mut random = Random(7);
        for _ in 0..3000 {
            let mut bytes = whole.clone();
            for _ in 0..1 + random.next() % 4 {
                let at = random.next() as usize % bytes.len();
                match random.next() % 4 {
                    0 => bytes.truncate(at),
                    1 => _ = bytes.remove(at),
                    _ => bytes[at] = random.next() as u8,
                }
                if bytes.is_empty() {
                    break;
                }
            }
            // The part that does read is a beginning of what was written.
            if let Ok((got, _)) = Reader::new(&bytes[..]).and_then(|_| read(&bytes)) {
                assert_eq!(got, records[..got.len()]);
            }
        }
        // Blocks that fit their checksums, with anything in them.
        for _ in 0..300 {
            let words: Vec<[u64; 2]> = (0..20).map(|_| [random.next(), random.next()]).collect();
            let mut bytes = HEADER.to_bytes().to_vec();
            bytes.extend(block(&words));
            let unpacked: Option<Vec<Record>> = words.into_iter().map(Record::unpack).collect();
            assert_eq!(read(&bytes).ok().map(|(records, _)| records), unpacked);
        }
    }
}
