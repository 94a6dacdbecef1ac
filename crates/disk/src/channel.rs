//! Two buffers of fixed size beside a stream: bytes that have come and are not used yet, and bytes
//! that are to go.
//!
//! ```text
//!   stream ──read──> [ used | there | free ] ──take──> request, payload by pieces
//!   stream <─write── [ to go       | free ] <──────── replies, pages decompressed in place
//! ```
//! A session that must wait for more bytes first sends its replies. So a client that sends several
//! requests gets their replies in few writes, and a client that waits for a reply gets it before
//! the session waits for the client.

use std::io::{self, ErrorKind, Read, Write};

use uzswap::sys::mem::Mapping;

/// Holds a request and the largest common payload (64 KiB) twice.
pub const IN_BYTES: usize = 132 << 10;
/// Holds the reply to a read of 128 KiB, and heads.
pub const OUT_BYTES: usize = 132 << 10;

pub struct Channel<R, W> {
    input: R,
    output: W,
    there: Mapping,
    start: usize,
    end: usize,
    to_go: Mapping,
    filled: usize,
}

impl<R: Read, W: Write> Channel<R, W> {
    /// Makes the buffers. The error: there is no memory for them.
    pub fn new(input: R, output: W) -> io::Result<Channel<R, W>> {
        // Mappings take what was touched of them, and nothing once the connection has ended.
        let buffer = |bytes| Mapping::new(bytes).map_err(|e| io::Error::from_raw_os_error(e.0));
        let (there, to_go) = (buffer(IN_BYTES)?, buffer(OUT_BYTES)?);
        Ok(Channel { input, output, there, start: 0, end: 0, to_go, filled: 0 })
    }

    /// Bytes that have come.
    pub fn available(&self) -> usize {
        self.end - self.start
    }

    /// Waits until `n` bytes are there, side by side; at most [`IN_BYTES`].
    pub fn fill(&mut self, n: usize) -> io::Result<()> {
        assert!(n <= IN_BYTES, "nobody waits for more than fits");
        while self.available() < n {
            self.flush()?;
            if self.start > 0 && (self.available() == 0 || IN_BYTES - self.start < n) {
                self.there.as_mut_slice().copy_within(self.start..self.end, 0);
                (self.start, self.end) = (0, self.available());
            }
            match self.input.read(&mut self.there.as_mut_slice()[self.end..IN_BYTES]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => self.end += read,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// The next `n` bytes, which are there.
    pub fn take(&mut self, n: usize) -> &[u8] {
        assert!(n <= self.available(), "filled before");
        let at = self.start;
        self.start += n;
        &self.there.as_slice()[at..at + n]
    }

    /// The next bytes, waited for.
    pub fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        self.fill(N)?;
        Ok(self.take(N).try_into().expect("as many"))
    }

    /// Passes bytes by that nobody wants.
    pub fn skip(&mut self, mut n: u64) -> io::Result<()> {
        while n > 0 {
            self.fill(1)?;
            let some = n.min(self.available() as u64);
            self.take(some as usize);
            n -= some;
        }
        Ok(())
    }

    /// Room that is left for what is to go.
    pub fn room(&self) -> usize {
        OUT_BYTES - self.filled
    }

    /// Makes room for `n` bytes, at most [`OUT_BYTES`].
    pub fn reserve(&mut self, n: usize) -> io::Result<()> {
        assert!(n <= OUT_BYTES, "nobody puts in more than fits");
        if self.room() < n { self.flush() } else { Ok(()) }
    }

    /// Puts bytes in, for which there is room.
    pub fn put(&mut self, bytes: &[u8]) {
        self.slot(bytes.len()).copy_from_slice(bytes);
    }

    /// Puts in `n` bytes that the caller writes, for which there is room.
    pub fn slot(&mut self, n: usize) -> &mut [u8] {
        let at = self.filled;
        self.filled += n;
        &mut self.to_go.as_mut_slice()[at..at + n]
    }

    /// Bytes that are to go, for a caller that comes back to them before they went.
    pub fn position(&self) -> usize {
        self.filled
    }

    pub fn at(&mut self, position: usize) -> &mut [u8] {
        &mut self.to_go.as_mut_slice()[position..self.filled]
    }

    /// Takes out again what was put in after `position`.
    pub fn truncate(&mut self, position: usize) {
        assert!(position <= self.filled, "it is to go");
        self.filled = position;
    }

    pub fn flush(&mut self) -> io::Result<()> {
        let filled = std::mem::take(&mut self.filled);
        if filled > 0 {
            self.output.write_all(&self.to_go.as_slice()[..filled])?;
        }
        Ok(())
    }

    #[cfg(test)]
    pub fn into_output(self) -> W {
        self.output
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives a few bytes at a time.
    struct Drip<'a>(&'a [u8], usize);

    impl Read for Drip<'_> {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            let n = self.1.min(to.len()).min(self.0.len());
            to[..n].copy_from_slice(&self.0[..n]);
            self.0 = &self.0[n..];
            Ok(n)
        }
    }

    #[test]
    fn what_comes_by_drops_is_put_together() {
        let bytes: Vec<u8> = (0..IN_BYTES * 3).map(|i| (i / 7) as u8).collect();
        for drop in [1, 7, 4096, IN_BYTES * 2] {
            let mut channel = Channel::new(Drip(&bytes, drop), Vec::new()).unwrap();
            let mut at = 0;
            for (i, n) in [28, 4096, 100, IN_BYTES, 1, IN_BYTES / 2, 9].into_iter().enumerate() {
                if i == 3 {
                    channel.skip(5).unwrap();
                    at += 5;
                }
                channel.fill(n).unwrap();
                assert_eq!(channel.take(n), &bytes[at..at + n]);
                at += n;
            }
            assert!(channel.skip(bytes.len() as u64).is_err(), "there are no more");
        }
    }

    #[test]
    fn replies_go_before_more_is_waited_for() {
        let mut channel = Channel::new(Drip(&[1, 2, 3, 4], 2), Vec::new()).unwrap();
        channel.put(b"one");
        channel.fill(2).unwrap();
        assert_eq!(channel.position(), 0);
        channel.put(b"two");
        channel.fill(2).unwrap();
        assert_eq!(channel.position(), 3, "both are there");
        let position = channel.position();
        channel.put(b"not sent");
        channel.truncate(position);
        channel.flush().unwrap();
        assert_eq!(channel.into_output(), b"onetwo");
    }
}
