//! The second half of a connection: requests, in their order, until the client disconnects.
//!
//! ```text
//!   READ 20 KiB, structured      [data: 2 pages][hole: 2 pages][data: 1 page, done]
//!   READ 20 KiB, simple          [head][........ 5 pages ........]
//!   WRITE                        payload ──by pieces──> disk          [head]
//! ```
//! Nothing is allocated for a request: a payload of any length goes through the channel's buffers
//! by pieces. A client that wants more done at one time connects more often: all connections see
//! one disk.
//!
//! FLUSH and FUA have nothing to do. Bytes are where they will be, in the keeping of this process,
//! when the reply to their write goes out. No flush would keep them longer than the process lives.

use std::io::{self, ErrorKind, Read, Write};

use uzswap::cache::Page;

use crate::channel::{Channel, OUT_BYTES};
use crate::disk::{Disk, DiskError, Extent, PAGE_BYTES, count};
use crate::handshake::Agreement;
use crate::protocol::*;

const PAGE: usize = PAGE_BYTES as usize;
/// Extents in one reply to BLOCK_STATUS: the client asks again for the rest.
const EXTENTS_MOST: usize = 2048;
/// Payload is taken in pieces of this many bytes at most, of whole pages.
const PIECE_BYTES: usize = 64 << 10;

impl From<DiskError> for Error {
    fn from(error: DiskError) -> Error {
        match error {
            DiskError::Full => Error::NoSpace,
            DiskError::Store => Error::Io,
        }
    }
}

/// Why a request got no good reply.
enum Failure {
    /// An error that the client is told.
    Answer(Error),
    /// Nothing that could be told: the connection ends.
    Connection(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Connection(error)
    }
}

impl From<DiskError> for Failure {
    fn from(error: DiskError) -> Failure {
        Failure::Answer(error.into())
    }
}

type Done = Result<(), Failure>;

/// One connection after the handshake.
pub struct Session<'a, R, W> {
    pub channel: &'a mut Channel<R, W>,
    pub disk: &'a Disk,
    pub agreement: Agreement,
}

impl<R: Read, W: Write> Session<'_, R, W> {
    /// Serves requests until the client disconnects.
    pub fn serve(&mut self) -> io::Result<()> {
        loop {
            let request = match self.channel.array() {
                Ok(bytes) => Request::parse(&bytes)
                    .ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "not a request"))?,
                // Clients may also leave like this between two requests.
                Err(e) if e.kind() == ErrorKind::UnexpectedEof && self.channel.available() == 0 => {
                    return Ok(());
                }
                Err(e) => return Err(e),
            };
            if request.command == CMD_DISC {
                return self.channel.flush();
            }
            self.answer(&request)?;
        }
    }

    fn answer(&mut self, request: &Request) -> io::Result<()> {
        let traffic = &self.disk.traffic;
        if let Err(error) = self.check(request) {
            count(&traffic.invalid, 1);
            // The payload is on its way in any case.
            if request.command == CMD_WRITE {
                self.channel.skip(u64::from(request.len))?;
            }
            return self.refuse(request.cookie, error);
        }
        match self.run(request) {
            Ok(()) => Ok(()),
            Err(Failure::Connection(e)) => Err(e),
            Err(Failure::Answer(error)) => {
                let is_read = request.command == CMD_READ;
                count(if is_read { &traffic.failed_reads } else { &traffic.failed_writes }, 1);
                self.refuse(request.cookie, error)
            }
        }
    }

    /// Whether a request may be what it is.
    fn check(&self, request: &Request) -> Result<(), Error> {
        let allowed = CMD_FLAG_FUA
            | match request.command {
                CMD_READ if self.agreement.structured => CMD_FLAG_DF,
                CMD_WRITE_ZEROES => CMD_FLAG_NO_HOLE | CMD_FLAG_FAST_ZERO,
                CMD_BLOCK_STATUS => CMD_FLAG_REQ_ONE,
                _ => 0,
            };
        let writes = matches!(request.command, CMD_WRITE | CMD_TRIM | CMD_WRITE_ZEROES);
        let is_known = writes || matches!(request.command, CMD_READ | CMD_CACHE | CMD_BLOCK_STATUS);
        if request.flags & !allowed != 0 {
            return Err(Error::Invalid);
        }
        if request.command == CMD_FLUSH {
            return if request.offset == 0 && request.len == 0 {
                Ok(())
            } else {
                Err(Error::Invalid)
            };
        }
        let has_status = self.agreement.allocation || request.command != CMD_BLOCK_STATUS;
        if !is_known || !has_status || request.len == 0 {
            return Err(Error::Invalid);
        }
        if writes && self.disk.is_read_only() {
            return Err(Error::NotPermitted);
        }
        let has_payload = matches!(request.command, CMD_READ | CMD_WRITE);
        if has_payload && request.len > PAYLOAD_MOST_BYTES {
            return Err(Error::Invalid);
        }
        match request.end_within(self.disk.bytes()) {
            Some(_) => Ok(()),
            // Beyond the end of the disk the protocol has an error of its own for writes.
            None if matches!(request.command, CMD_WRITE | CMD_WRITE_ZEROES) => Err(Error::NoSpace),
            None => Err(Error::Invalid),
        }
    }

    fn run(&mut self, request: &Request) -> Done {
        let (at, len) = (request.offset, u64::from(request.len));
        match request.command {
            CMD_READ => {
                count(&self.disk.traffic.reads, 1);
                count(&self.disk.traffic.read_bytes, len);
                return match self.agreement.structured {
                    true if request.flags & CMD_FLAG_DF == 0 => self.read_structured(request),
                    structured => self.read_whole(request, structured),
                };
            }
            CMD_WRITE => {
                count(&self.disk.traffic.writes, 1);
                count(&self.disk.traffic.written_bytes, len);
                self.write(at, len)?;
            }
            CMD_TRIM => self.disk.trim(at, len)?,
            CMD_WRITE_ZEROES => self.disk.zero(at, len, request.flags & CMD_FLAG_NO_HOLE != 0)?,
            CMD_BLOCK_STATUS => return self.status(request),
            // FLUSH has nothing to do: what was written is in the keeping of this process already.
            _ => {}
        }
        self.channel.reserve(16)?;
        self.channel.put(&simple_reply(0, request.cookie));
        Ok(())
    }

    /// Stores a payload as it comes. After an error the rest of it is passed by.
    fn write(&mut self, at: u64, len: u64) -> Done {
        let (mut done, mut outcome) = (0, Ok(()));
        while done < len && outcome.is_ok() {
            // To the end of a page, so that what follows is whole pages.
            let here = at + done;
            let to_page = (PAGE_BYTES - here % PAGE_BYTES).min(len - done) as usize;
            self.channel.fill(to_page)?;
            let more = (self.channel.available() - to_page).min(PIECE_BYTES) / PAGE * PAGE;
            let most = (len - done) as usize;
            let some = (to_page + more).min(most);
            outcome = self.disk.write(here, self.channel.take(some));
            done += some as u64;
        }
        self.channel.skip(len - done)?;
        Ok(outcome?)
    }

    // ---- READ

    /// As one piece: a simple reply, or a structured one that must not be fragmented.
    fn read_whole(&mut self, request: &Request, structured: bool) -> Done {
        let (at, len) = (request.offset, request.len as usize);
        let simple = simple_reply(0, request.cookie);
        let mut chunk = [0; CHUNK_HEAD_BYTES + 8];
        let head_len = request.len + 8;
        chunk[..CHUNK_HEAD_BYTES].copy_from_slice(&chunk_head(
            REPLY_FLAG_DONE,
            REPLY_OFFSET_DATA,
            request.cookie,
            head_len,
        ));
        chunk[CHUNK_HEAD_BYTES..].copy_from_slice(&at.to_be_bytes());
        let head = if structured { &chunk[..] } else { &simple[..] };
        self.channel.reserve((head.len() + len).min(OUT_BYTES))?;
        let begin = self.channel.position();
        self.channel.put(head);
        let mut done = 0;
        while done < len {
            if self.channel.room() == 0 {
                self.channel.flush()?;
            }
            let is_recallable = head.len() + len <= OUT_BYTES;
            let some = (len - done).min(self.channel.room());
            let slot = self.channel.slot(some);
            if let Err(error) = self.disk.read(at + done as u64, slot) {
                // The reply's head has gone, or may have: it cannot be taken back.
                if !is_recallable {
                    count(&self.disk.traffic.failed_reads, 1);
                    return Err(Failure::Connection(io::Error::other("a page cannot be read")));
                }
                self.channel.truncate(begin);
                return Err(error.into());
            }
            done += some;
        }
        Ok(())
    }

    /// By chunks: pages that are there as data, others as holes.
    fn read_structured(&mut self, request: &Request) -> Done {
        let end = request.offset + u64::from(request.len);
        let mut at = request.offset;
        while at < end {
            // The extent may have changed by the time that it is read: data is right in any case.
            let hole = self.hole(at, end);
            if hole > 0 {
                self.put_hole(request.cookie, at, hole, at + hole == end)?;
                at += hole;
            } else {
                at = self.put_data(request.cookie, at, end)?;
            }
        }
        Ok(())
    }

    /// How many bytes from `at` on are a hole, at a look that finds no more than one.
    fn hole(&self, at: u64, end: u64) -> u64 {
        let Extent { bytes, is_hole, .. } = self.disk.extent(at, end);
        if is_hole { bytes } else { 0 }
    }

    fn put_hole(&mut self, cookie: u64, at: u64, bytes: u64, is_last: bool) -> io::Result<()> {
        self.channel.reserve(CHUNK_HEAD_BYTES + 12)?;
        let flags = if is_last { REPLY_FLAG_DONE } else { 0 };
        self.channel.put(&chunk_head(flags, REPLY_OFFSET_HOLE, cookie, 12));
        self.channel.put(&at.to_be_bytes());
        self.channel.put(&(bytes as u32).to_be_bytes());
        Ok(())
    }

    /// One chunk of data, until the buffer is full or a page is not there; says where it ends.
    fn put_data(&mut self, cookie: u64, at: u64, end: u64) -> Result<u64, Failure> {
        const HEAD: usize = CHUNK_HEAD_BYTES + 8;
        let wanted = HEAD + (end - at) as usize;
        // A new buffer rather than a small rest of this one; so the first piece has room.
        self.channel.reserve(wanted.min(OUT_BYTES))?;
        let begin = self.channel.position();
        self.channel.slot(HEAD);
        let mut here = at;
        while here < end {
            let some = (PAGE_BYTES - here % PAGE_BYTES).min(end - here) as usize;
            if self.channel.room() < some {
                break;
            }
            let position = self.channel.position();
            let slot = self.channel.slot(some);
            let (disk, page) = (self.disk, (here / PAGE_BYTES) as u32);
            let read = match <&mut Page>::try_from(&mut *slot) {
                Ok(whole) => disk.read_page(page, whole),
                Err(_) => disk.read(here, slot).map(|()| true),
            };
            let is_there = match read {
                Ok(is_there) => is_there,
                Err(error) => {
                    self.channel.truncate(position);
                    if here > at {
                        self.put_data_head(cookie, begin, at, here, false);
                    } else {
                        self.channel.truncate(begin);
                    }
                    return Err(error.into());
                }
            };
            if !is_there {
                if here > at {
                    // The hole begins a chunk of its own.
                    self.channel.truncate(position);
                    break;
                }
                // The page went after it was looked at: it reads as zeros.
                self.channel.at(position).fill(0);
            }
            here += some as u64;
        }
        self.put_data_head(cookie, begin, at, here, here == end);
        Ok(here)
    }

    fn put_data_head(&mut self, cookie: u64, begin: usize, at: u64, end: u64, is_last: bool) {
        let flags = if is_last { REPLY_FLAG_DONE } else { 0 };
        let len = 8 + (end - at) as u32;
        let head = self.channel.at(begin);
        head[..CHUNK_HEAD_BYTES].copy_from_slice(&chunk_head(
            flags,
            REPLY_OFFSET_DATA,
            cookie,
            len,
        ));
        head[CHUNK_HEAD_BYTES..CHUNK_HEAD_BYTES + 8].copy_from_slice(&at.to_be_bytes());
    }

    // ---- BLOCK_STATUS and errors

    fn status(&mut self, request: &Request) -> Done {
        let most = if request.flags & CMD_FLAG_REQ_ONE != 0 { 1 } else { EXTENTS_MOST };
        let end = request.offset + u64::from(request.len);
        self.channel.reserve(CHUNK_HEAD_BYTES + 4 + most * 8)?;
        let begin = self.channel.position();
        self.channel.slot(CHUNK_HEAD_BYTES);
        self.channel.put(&BASE_ALLOCATION_ID.to_be_bytes());
        let (mut at, mut extents) = (request.offset, 0);
        let mut next = None;
        while at < end && extents < most {
            let first: Extent = next.take().unwrap_or_else(|| self.disk.extent(at, end));
            let mut bytes = first.bytes;
            // One look may have seen only a part of an extent.
            while at + bytes < end {
                let more = self.disk.extent(at + bytes, end);
                if (more.is_hole, more.is_zero) != (first.is_hole, first.is_zero) {
                    next = Some(more);
                    break;
                }
                bytes += more.bytes;
            }
            let hole = if first.is_hole { STATE_HOLE } else { 0 };
            let zero = if first.is_zero { STATE_ZERO } else { 0 };
            self.channel.put(&(bytes as u32).to_be_bytes());
            self.channel.put(&(hole | zero).to_be_bytes());
            at += bytes;
            extents += 1;
        }
        let len = (4 + extents * 8) as u32;
        let head = chunk_head(REPLY_FLAG_DONE, REPLY_BLOCK_STATUS, request.cookie, len);
        self.channel.at(begin)[..CHUNK_HEAD_BYTES].copy_from_slice(&head);
        Ok(())
    }

    fn refuse(&mut self, cookie: u64, error: Error) -> io::Result<()> {
        if !self.agreement.structured {
            self.channel.reserve(16)?;
            self.channel.put(&simple_reply(error as u32, cookie));
            return Ok(());
        }
        let text = error.text().as_bytes();
        self.channel.reserve(CHUNK_HEAD_BYTES + 6 + text.len())?;
        self.channel.put(&chunk_head(REPLY_FLAG_DONE, REPLY_ERROR, cookie, 6 + text.len() as u32));
        self.channel.put(&(error as u32).to_be_bytes());
        self.channel.put(&(text.len() as u16).to_be_bytes());
        self.channel.put(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::testing::request;
    use crate::tests::{disk, disk_over, lose_the_store, random};

    const PLAIN: Agreement = Agreement { structured: false, allocation: false };
    const STRUCTURED: Agreement = Agreement { structured: true, allocation: true };

    fn noise(len: usize) -> Vec<u8> {
        let mut next = random(7);
        (0..len).map(|_| next(255) as u8 + 1).collect()
    }

    /// The end of a session in which all this was sent, and what it answered.
    fn said(disk: &Disk, agreement: Agreement, sent: &[u8]) -> (io::Result<()>, Vec<u8>) {
        let mut channel = Channel::new(sent, Vec::new()).unwrap();
        let end = Session { channel: &mut channel, disk, agreement }.serve();
        (end, channel.into_output())
    }

    /// The first page that cannot be read.
    const LOST: u64 = 40;

    /// Pages of zeros, and then some that cannot be read.
    fn with_lost_pages() -> Disk {
        let disk = disk_over(true, 1 << 20, 1 << 20);
        disk.write(LOST * PAGE_BYTES, &noise(64 * PAGE)).unwrap();
        lose_the_store(&disk);
        disk
    }

    fn failed(disk: &Disk) -> (u64, u64) {
        let t = &disk.traffic;
        (t.failed_reads.load(Ordering::Relaxed), t.failed_writes.load(Ordering::Relaxed))
    }

    #[test]
    fn a_long_read_of_a_lost_page_ends_the_connection_and_counts_as_failed() {
        let disk = with_lost_pages();
        let (short, long) = (PAGE_BYTES as u32, (LOST + 1) as u32 * PAGE_BYTES as u32);
        assert!(long as usize > OUT_BYTES);
        let sent = [
            request(0, CMD_READ, 1, LOST * PAGE_BYTES, short),
            request(0, CMD_READ, 2, 0, long),
            request(0, CMD_FLUSH, 3, 0, 0),
        ];
        let (end, said) = said(&disk, PLAIN, &sent.concat());
        assert!(end.is_err(), "the reply has begun, and says that all is well");
        assert_eq!(said[..16], simple_reply(Error::Io as u32, 1));
        assert_eq!(said[16..32], simple_reply(0, 2));
        assert!(said.len() < 32 + long as usize);
        assert_eq!(failed(&disk), (2, 0));
    }

    #[test]
    fn a_read_by_chunks_that_meets_a_lost_page_has_what_was_before_it_and_an_error() {
        let disk = with_lost_pages();
        disk.write((LOST - 1) * PAGE_BYTES, &[9; PAGE]).unwrap();
        let at = (LOST - 2) * PAGE_BYTES;
        let sent = [request(0, CMD_READ, 1, at, 3 << 12), request(0, CMD_FLUSH, 2, 0, 0)];
        let (end, said) = said(&disk, STRUCTURED, &sent.concat());
        end.unwrap();
        let hole =
            [&chunk_head(0, REPLY_OFFSET_HOLE, 1, 12)[..], &at.to_be_bytes(), &[0, 0, 16, 0]];
        let data = [
            &chunk_head(0, REPLY_OFFSET_DATA, 1, 8 + 4096)[..],
            &(at + PAGE_BYTES).to_be_bytes(),
            &[9; PAGE],
        ];
        let text = Error::Io.text().as_bytes();
        let error = [
            &chunk_head(REPLY_FLAG_DONE, REPLY_ERROR, 1, 6 + text.len() as u32)[..],
            &(Error::Io as u32).to_be_bytes(),
            &(text.len() as u16).to_be_bytes(),
            text,
        ];
        let all =
            [hole.concat(), data.concat(), error.concat(), simple_reply(0, 2).to_vec()].concat();
        assert!(said == all, "{} bytes instead of {}", said.len(), all.len());
        assert_eq!(failed(&disk), (1, 0));
    }

    #[test]
    fn the_rest_of_a_write_without_room_is_passed_by_and_the_next_request_understood() {
        // Without any memory no page has room but those of zeros.
        let disk = disk(1 << 20, 0);
        let len = 5 * (64 << 10) + 100;
        let sent = [
            request(0, CMD_WRITE, 1, 50, len as u32),
            noise(len),
            request(0, CMD_WRITE, 2, 8192, 4096),
            vec![0; 4096],
        ];
        let (end, said) = said(&disk, PLAIN, &sent.concat());
        end.unwrap();
        assert_eq!(said, [simple_reply(Error::NoSpace as u32, 1), simple_reply(0, 2)].concat());
        assert_eq!(failed(&disk), (0, 1));
    }

    #[test]
    fn a_status_of_more_extents_than_are_told_says_where_they_end() {
        let disk = disk(64 << 20, 64 << 20);
        let pages = EXTENTS_MOST as u64 + 10;
        (0..pages).step_by(2).for_each(|n| disk.write(n * PAGE_BYTES, &[5; PAGE]).unwrap());
        let len = pages as u32 * PAGE_BYTES as u32;
        let sent =
            [request(0, CMD_BLOCK_STATUS, 1, 0, len), request(0, CMD_BLOCK_STATUS, 2, 100, 200)];
        let (end, said) = said(&disk, STRUCTURED, &sent.concat());
        end.unwrap();
        let mut fields = Fields(&said[16..]);
        let told = fields.counted().unwrap();
        let extents = told[4..].as_chunks::<8>().0;
        assert_eq!(extents.len(), EXTENTS_MOST);
        for (n, extent) in extents.iter().enumerate() {
            let state = if n % 2 == 0 { 0 } else { STATE_HOLE | STATE_ZERO };
            assert_eq!(*extent, [4096, state].map(u32::to_be_bytes).as_flattened(), "extent {n}");
        }
        assert_eq!(fields.0[20 + 4..], [200, 0].map(u32::to_be_bytes).concat());
    }
}
