//! lzo1x, in safe Rust, written from the published description of the stream (Linux
//! `Documentation/staging/lzo.rst`): the decoder of both versions, and a fast compressor of the
//! lzo1x-1 kind.
//!
//! The C library and minilzo are GPL, so they are not used. Streams are interchangeable with
//! theirs.
//!
//! ```text
//!  stream       [17, version]  instruction*  17 0 0          version 1 is "lzo-rle"
//!  instruction  0000LLLL                   literals, when the last instruction copied none
//!               0000DDSS H                 match of 2 (3 after a long literal run); not written by us
//!               0001HLLL DDDDDDDD DDDDDDSS match at 16..48 KiB; version 1: also a run of zeros
//!               001LLLLL DDDDDDDD DDDDDDSS match within 16 KiB
//!               01LDDDSS H, 1LLDDDSS H     match of 3..8 within 2 KiB
//! ```
//! L: length, continued in bytes of 0 (255 each) and a last one when all zero. D, H: distance. S: 0
//! to 3 literals that follow. A first byte above 17 is a literal run of its own kind.

use super::CompressError;

/// Which version of the stream is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// lzo1x.
    V0,
    /// lzo-rle: has runs of zeros.
    V1,
}

const TABLE_LOG2: u32 = 13;
/// Bytes of hash table that [`compress`] needs.
pub const TABLE_BYTES: usize = 2 << TABLE_LOG2;

/// Positions in the table have 16 bits and matches reach back 48 KiB: the input is cut there, as
/// the original does.
const BLOCK_BYTES: usize = 48 << 10;
/// Distances up to which a match has the 2-byte, the 3-byte and the long form.
const NEAR: usize = 1 << 11;
const MIDDLE: usize = 1 << 14;
/// The longest run of zeros of one instruction: 11 bits, counted from 4.
const MAX_ZEROS: usize = 2047 + 4;
/// Shorter runs take fewer bytes as matches.
const LEAST_ZEROS: usize = 16;
/// The original does not start a match before; streams of version 1 cannot start with a run of
/// zeros.
const FIRST_MATCH_AT: usize = 4;

#[inline(always)]
fn word_at(bytes: &[u8], at: usize) -> u32 {
    match bytes.get(at..at + 4) {
        Some(&[a, b, c, d]) => u32::from_le_bytes([a, b, c, d]),
        _ => 0,
    }
}

#[inline(always)]
fn long_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8).and_then(|b| b.first_chunk()).map(|b| u64::from_le_bytes(*b))
}

/// How many bytes from `a` and `b` on are the same, `a < b`, up to `end`.
#[inline]
fn common(bytes: &[u8], a: usize, b: usize, end: usize) -> usize {
    let mut n = 0;
    while b + n + 8 <= end {
        match (long_at(bytes, a + n), long_at(bytes, b + n)) {
            (Some(x), Some(y)) if x == y => n += 8,
            (Some(x), Some(y)) => return n + ((x ^ y).trailing_zeros() / 8) as usize,
            _ => break,
        }
    }
    while b + n < end && bytes[a + n] == bytes[b + n] {
        n += 1;
    }
    n
}

/// The stream being written.
struct Writer<'a> {
    dst: &'a mut [u8],
    len: usize,
    /// The byte whose two low bits count the literals after the last match; `None` before the
    /// first.
    state_at: Option<usize>,
}

impl Writer<'_> {
    #[inline(always)]
    fn push<const N: usize>(&mut self, bytes: [u8; N]) -> Result<(), CompressError> {
        let end = self.len + N;
        *self
            .dst
            .get_mut(self.len..end)
            .and_then(|d| d.first_chunk_mut())
            .ok_or(CompressError::Incompressible)? = bytes;
        self.len = end;
        Ok(())
    }

    /// The continuation of a length; `rest` is at least 1.
    fn push_length(&mut self, mut rest: usize) -> Result<(), CompressError> {
        while rest > 255 {
            self.push([0])?;
            rest -= 255;
        }
        self.push([rest as u8])
    }

    /// The literals `src[from..to]`, in the form that their number and place ask for.
    #[inline]
    fn literals(&mut self, src: &[u8], from: usize, to: usize) -> Result<(), CompressError> {
        let count = to - from;
        match (count, self.state_at) {
            (0, _) => return Ok(()),
            (1..=238, None) => self.push([17 + count as u8])?,
            (1..=3, Some(at)) => self.dst[at] |= count as u8,
            (4..=18, _) => self.push([count as u8 - 3])?,
            _ => {
                self.push([0])?;
                self.push_length(count - 18)?;
            }
        }
        let end = self.len + count;
        // Most runs are short: one copy of fixed length, where both sides have the room.
        if count <= 16
            && let (Some(from), Some(to)) = (
                src.get(from..from + 16).and_then(|s| s.first_chunk::<16>()),
                self.dst.get_mut(self.len..self.len + 16).and_then(|d| d.first_chunk_mut::<16>()),
            )
        {
            *to = *from;
        } else {
            let room = self.dst.get_mut(self.len..end).ok_or(CompressError::Incompressible)?;
            room.copy_from_slice(&src[from..to]);
        }
        self.len = end;
        Ok(())
    }

    #[inline]
    fn matched(&mut self, distance: usize, len: usize) -> Result<(), CompressError> {
        if len <= 8 && distance <= NEAR {
            let d = distance - 1;
            self.push([((len - 1) << 5 | (d & 7) << 2) as u8, (d >> 3) as u8])?;
            // Here the bits are in the first byte, elsewhere in the one before the last.
            self.state_at = Some(self.len - 2);
            return Ok(());
        }
        let (head, short, d) = if distance <= MIDDLE {
            (32, 33, distance - 1)
        } else {
            let d = distance - MIDDLE;
            (16 | (d >> 11 & 8), 9, d)
        };
        if len <= short {
            self.push([(head | (len - 2)) as u8])?;
        } else {
            self.push([head as u8])?;
            self.push_length(len - short)?;
        }
        self.push(((d << 2) as u16).to_le_bytes())?;
        self.state_at = Some(self.len - 2);
        Ok(())
    }

    /// A run of 4 to [`MAX_ZEROS`] zeros (version 1): the far match whose distance bits are all
    /// ones.
    fn zeros(&mut self, run: usize) -> Result<(), CompressError> {
        let run = run - 4;
        self.push([0x18 | (run & 7) as u8, 0xfc, 0xff, (run >> 3) as u8])?;
        self.state_at = Some(self.len - 3);
        Ok(())
    }
}

/// Compresses `src` to the start of `dst`; the number of bytes written.
pub fn compress(
    table: &mut [u8],
    src: &[u8],
    dst: &mut [u8],
    version: Stream,
) -> Result<usize, CompressError> {
    let (table, _) = table.as_chunks_mut::<2>();
    let table: &mut [[u8; 2]; 1 << TABLE_LOG2] =
        table.first_chunk_mut().ok_or(CompressError::Failed)?;
    let mut out = Writer { dst, len: 0, state_at: None };
    if version == Stream::V1 {
        out.push([17, 1])?;
    }
    // Literals not yet written start here; they may reach back over a block's beginning.
    let mut anchor = 0;
    let mut block = 0;
    while block < src.len() {
        let end = src.len().min(block + BLOCK_BYTES);
        anchor = compress_block(table, &mut out, src, block..end, anchor, version)?;
        block = end;
    }
    out.literals(src, anchor, src.len())?;
    out.push([17, 0, 0])?;
    Ok(out.len)
}

/// Compresses one block; where the literals start that are left to write.
fn compress_block(
    table: &mut [[u8; 2]; 1 << TABLE_LOG2],
    out: &mut Writer<'_>,
    src: &[u8],
    block: core::ops::Range<usize>,
    mut anchor: usize,
    version: Stream,
) -> Result<usize, CompressError> {
    table.fill([0; 2]);
    let mut at = if block.start == 0 { FIRST_MATCH_AT } else { block.start + 1 };
    // The last bytes are left to the literals, so that reading 4 is always possible.
    while at + 4 < block.end {
        let word = word_at(src, at);
        if word == 0
            && version == Stream::V1
            && at + LEAST_ZEROS <= block.end
            && src[at..at + LEAST_ZEROS] == [0; LEAST_ZEROS]
        {
            let limit = block.end.min(at + MAX_ZEROS);
            let run = src[at..limit].iter().position(|&b| b != 0).unwrap_or(limit - at);
            out.literals(src, anchor, at)?;
            out.zeros(run)?;
            at += run;
            anchor = at;
            continue;
        }
        let slot = &mut table[(word.wrapping_mul(0x9e37_79b1) >> (32 - TABLE_LOG2)) as usize];
        let candidate = block.start + u16::from_le_bytes(*slot) as usize;
        *slot = ((at - block.start) as u16).to_le_bytes();
        if word_at(src, candidate) != word || candidate >= at {
            // The longer nothing is found, the larger the steps.
            at += 1 + ((at - anchor) >> 5);
            continue;
        }
        let (mut candidate, mut len) =
            (candidate, 4 + common(src, candidate + 4, at + 4, block.end));
        // Bytes in front may match too.
        while at > anchor && candidate > block.start && src[at - 1] == src[candidate - 1] {
            (at, candidate, len) = (at - 1, candidate - 1, len + 1);
        }
        let distance = at - candidate;
        if version == Stream::V1 && (261..=264).contains(&len) && distance & 0x803f == 0x803f {
            // Its bytes could be read as a run of zeros.
            len = 260;
        }
        out.literals(src, anchor, at)?;
        out.matched(distance, len)?;
        at += len;
        anchor = at;
    }
    Ok(anchor)
}

/// Where the decoder is in its input.
struct Reader<'a> {
    src: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    #[inline(always)]
    fn byte(&mut self) -> Option<usize> {
        let byte = *self.src.get(self.at)?;
        self.at += 1;
        Some(byte as usize)
    }

    #[inline(always)]
    fn word(&mut self) -> Option<usize> {
        let word = self.src.get(self.at..self.at + 2)?;
        self.at += 2;
        Some(word[0] as usize | (word[1] as usize) << 8)
    }

    /// A length: `bits` if not zero, else `base` and what follows.
    #[inline(always)]
    fn length(&mut self, bits: usize, base: usize) -> Option<usize> {
        if bits != 0 {
            return Some(bits);
        }
        let mut len = base;
        loop {
            match self.byte()? {
                0 => len += 255,
                last => return Some(len + last),
            }
        }
    }
}

/// Decompresses the stream `src` to the start of `dst`: the number of bytes written, or `None` if
/// `src` is not one stream, whole and alone, or its content does not fit.
pub fn decompress(src: &[u8], dst: &mut [u8]) -> Option<usize> {
    let mut from = Reader { src, at: 0 };
    let mut to = 0;
    let mut runs_of_zeros = false;
    if src.len() >= 5 && src[0] == 17 {
        if src[1] > 1 {
            return None;
        }
        runs_of_zeros = src[1] == 1;
        from.at = 2;
    }
    // Literals copied by the last instruction: 0 to 3, or 4 for more.
    let mut state = 0;
    let first = *src.get(from.at)? as usize;
    if first > 17 {
        from.at += 1;
        copy_literals(&mut from, dst, &mut to, first - 17)?;
        state = (first - 17).min(4);
    }
    loop {
        let t = from.byte()?;
        let (len, distance);
        match t {
            64.. => {
                len = (t >> 5) + 1;
                distance = (from.byte()? << 3) + (t >> 2 & 7) + 1;
                state = t & 3;
            }
            32..=63 => {
                len = from.length(t & 31, 31)? + 2;
                let word = from.word()?;
                distance = (word >> 2) + 1;
                state = word & 3;
            }
            16..=31 => {
                if runs_of_zeros && t & 0xf8 == 0x18 {
                    // The run has its mark where the continued length or the distance would be.
                    let at = from.at;
                    let word = from.word()?;
                    if word & 0xfffc == 0xfffc {
                        let run = (from.byte()? << 3 | t & 7) + 4;
                        dst.get_mut(to..to + run)?.fill(0);
                        to += run;
                        state = word & 3;
                        copy_literals(&mut from, dst, &mut to, state)?;
                        continue;
                    }
                    from.at = at;
                }
                len = from.length(t & 7, 7)? + 2;
                let word = from.word()?;
                distance = MIDDLE + ((t & 8) << 11) + (word >> 2);
                state = word & 3;
                if distance == MIDDLE {
                    return (len == 3 && state == 0 && from.at == src.len()).then_some(to);
                }
            }
            _ if state == 0 => {
                let count = from.length(t, 15)? + 3;
                copy_literals(&mut from, dst, &mut to, count)?;
                state = 4;
                continue;
            }
            _ => {
                let far = state == 4;
                len = if far { 3 } else { 2 };
                distance = (from.byte()? << 2) + (t >> 2) + if far { NEAR + 1 } else { 1 };
                state = t & 3;
            }
        }
        copy_match(dst, &mut to, distance, len)?;
        copy_literals(&mut from, dst, &mut to, state)?;
    }
}

#[inline(always)]
fn copy_literals(
    from: &mut Reader<'_>,
    dst: &mut [u8],
    to: &mut usize,
    count: usize,
) -> Option<()> {
    // Most runs are short: one copy of fixed length, where both sides have the room.
    if count <= 16
        && let (Some(s), Some(d)) = (
            from.src.get(from.at..from.at + 16).and_then(|s| s.first_chunk::<16>()),
            dst.get_mut(*to..*to + 16).and_then(|d| d.first_chunk_mut::<16>()),
        )
    {
        *d = *s;
    } else {
        dst.get_mut(*to..*to + count)?.copy_from_slice(from.src.get(from.at..from.at + count)?);
    }
    from.at += count;
    *to += count;
    Some(())
}

#[inline(always)]
fn copy_match(dst: &mut [u8], to: &mut usize, distance: usize, len: usize) -> Option<()> {
    let start = to.checked_sub(distance)?;
    let end = *to + len;
    if end > dst.len() {
        return None;
    }
    if distance >= 16 && end + 16 <= dst.len() {
        // In steps of 16, beyond the end if need be: what is written there is overwritten later.
        let mut done = 0;
        while done < len {
            let chunk: [u8; 16] = *dst[start + done..].first_chunk()?;
            *dst[*to + done..].first_chunk_mut()? = chunk;
            done += 16;
        }
    } else {
        // The source may run into the copy: copy what there is, which doubles it each time.
        let mut done = 0;
        while done < len {
            let step = (distance + done).min(len - done);
            dst.copy_within(start..start + step, *to + done);
            done += step;
        }
    }
    *to = end;
    Some(())
}
