//! 842, the format of IBM POWER's compression engines, in safe Rust, written from its published
//! description (the table of templates and the rings that they index).
//!
//! ```text
//!  stream     operation*  END  crc32  padding to 8 bytes      all fields in bits, the highest first
//!  operation  5 bits      and its fields:
//!   0x00-18   8 bytes: two halves of 4 bytes, operation = 5 * first + second, each half one of
//!             0 data 4 | 1 data 2, index 2 | 2 index 2, data 2 | 3 index 2, index 2 | 4 index 4
//!   0x19      8 bytes: index 8
//!   0x1b      6 bits: the last 8 bytes again, that many times and once more
//!   0x1c      8 zero bytes
//!   0x1d      3 bits: that many bytes, the last of the stream
//!   0x1e      end
//! ```
//! An index says where the value stands in a ring of the last bytes before this 8-byte block, in
//! units of the value's length. A value of 2 bytes has an index of 8 bits and a ring of 512 bytes,
//! one of 4 bytes 9 bits and 2 KiB, one of 8 bytes 8 bits and 2 KiB.

use super::CompressError;

const INDEX_8: u32 = 0x19;
const REPEAT: u32 = 0x1b;
const ZEROS: u32 = 0x1c;
const SHORT: u32 = 0x1d;
const END: u32 = 0x1e;
const OPERATION_BITS: u32 = 5;
const REPEAT_BITS: u32 = 6;
const MOST_REPEATS: u32 = 1 << REPEAT_BITS;
const SHORT_BITS: u32 = 3;

/// The five forms of a half.
const DATA_4: u32 = 0;
const DATA_INDEX: u32 = 1;
const INDEX_DATA: u32 = 2;
const INDEX_INDEX: u32 = 3;
const INDEX_4: u32 = 4;

/// Values of one length, and the ring of the last ones.
struct Ring<const N: usize> {
    bytes: usize,
    bits: u32,
}

const RING_2: Ring<2> = Ring { bytes: 512, bits: 8 };
const RING_4: Ring<4> = Ring { bytes: 2048, bits: 9 };
const RING_8: Ring<8> = Ring { bytes: 2048, bits: 8 };

impl<const N: usize> Ring<N> {
    /// Where index `index` points to while the block at `block` is coded, if that is before the
    /// block.
    #[inline(always)]
    fn place(&self, index: u32, block: usize) -> Option<usize> {
        let offset = index as usize * N;
        let at = if block <= self.bytes {
            offset
        } else {
            // The ring's current round, or the one before for what it has not yet overwritten.
            let round = block - block % self.bytes;
            if offset < block - round { round + offset } else { round - self.bytes + offset }
        };
        (at + N <= block).then_some(at)
    }
}

/// The CRC of the stream's end: polynomial 0x04c11db7, highest bit first, from 0, eight bytes a
/// step.
const CRC: [[u32; 256]; 8] = {
    let mut tables = [[0u32; 256]; 8];
    let mut i = 0;
    while i < 256 {
        let mut crc = (i as u32) << 24;
        let mut bit = 0;
        while bit < 8 {
            crc = crc << 1 ^ if crc >> 31 == 1 { 0x04c1_1db7 } else { 0 };
            bit += 1;
        }
        tables[0][i] = crc;
        i += 1;
    }
    let mut t = 1;
    while t < 8 {
        let mut i = 0;
        while i < 256 {
            let before = tables[t - 1][i];
            tables[t][i] = before << 8 ^ tables[0][(before >> 24) as usize];
            i += 1;
        }
        t += 1;
    }
    tables
};

fn crc32(bytes: &[u8]) -> u32 {
    let (blocks, tail) = bytes.as_chunks::<8>();
    let crc = blocks.iter().fold(0u32, |crc, block| {
        let [a, b, c, d] = crc.to_be_bytes();
        CRC[7][(block[0] ^ a) as usize]
            ^ CRC[6][(block[1] ^ b) as usize]
            ^ CRC[5][(block[2] ^ c) as usize]
            ^ CRC[4][(block[3] ^ d) as usize]
            ^ CRC[3][block[4] as usize]
            ^ CRC[2][block[5] as usize]
            ^ CRC[1][block[6] as usize]
            ^ CRC[0][block[7] as usize]
    });
    tail.iter().fold(crc, |crc, byte| crc << 8 ^ CRC[0][(crc >> 24) as usize ^ *byte as usize])
}

/// Writes fields of bits.
struct Writer<'a> {
    dst: &'a mut [u8],
    len: usize,
    bits: u64,
    count: u32,
}

impl Writer<'_> {
    /// Appends the low `count` (32 at most) bits of `value`, which has no others.
    #[inline(always)]
    fn put(&mut self, value: u32, count: u32) -> Result<(), CompressError> {
        self.bits = self.bits << count | u64::from(value);
        self.count += count;
        if self.count >= 32 {
            self.count -= 32;
            let word = ((self.bits >> self.count) as u32).to_be_bytes();
            let end = self.len + 4;
            self.dst
                .get_mut(self.len..end)
                .ok_or(CompressError::Incompressible)?
                .copy_from_slice(&word);
            self.len = end;
        }
        Ok(())
    }
}

/// The last ring index of each value, by hash: candidates, checked against the bytes before they
/// are used.
struct Tables<'a> {
    of_2: &'a mut [[u8; 2]; 1 << 10],
    of_4: &'a mut [[u8; 2]; 1 << 11],
    of_8: &'a mut [[u8; 2]; 1 << 10],
}

/// Bytes of tables that [`compress`] needs.
pub const TABLE_BYTES: usize = 2 * ((1 << 10) + (1 << 11) + (1 << 10));

#[inline(always)]
fn hash(value: u64, log2: u32) -> usize {
    (value.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - log2)) as usize
}

impl<'a> Tables<'a> {
    fn new(memory: &'a mut [u8]) -> Option<Self> {
        let (slots, _) = memory.as_chunks_mut::<2>();
        slots.fill([0; 2]);
        let (of_2, rest) = slots.split_first_chunk_mut()?;
        let (of_4, rest) = rest.split_first_chunk_mut()?;
        let (of_8, _) = rest.split_first_chunk_mut()?;
        Some(Tables { of_2, of_4, of_8 })
    }

    /// Learns the block at `block`, which has been coded: its values can be pointed to.
    #[inline(always)]
    fn learn(&mut self, value: u64, block: usize) {
        let index =
            |ring_bytes: usize, at: usize, n: usize| ((at % ring_bytes / n) as u16).to_le_bytes();
        for i in 0..4 {
            let part = value >> (48 - 16 * i) & 0xffff;
            self.of_2[hash(part, 10)] = index(RING_2.bytes, block + 2 * i, 2);
        }
        for i in 0..2 {
            let part = value >> (32 - 32 * i) & 0xffff_ffff;
            self.of_4[hash(part, 11)] = index(RING_4.bytes, block + 4 * i, 4);
        }
        self.of_8[hash(value, 10)] = index(RING_8.bytes, block, 8);
    }
}

/// The index of `value`, whose bytes in the stream's order are `bytes`, if the candidate is one.
#[inline(always)]
fn find<const N: usize>(
    ring: Ring<N>,
    slot: [u8; 2],
    src: &[u8],
    block: usize,
    bytes: &[u8],
) -> Option<u32> {
    let index = u16::from_le_bytes(slot).into();
    let at = ring.place(index, block)?;
    (src[at..at + N] == bytes[..N]).then_some(index)
}

/// How a half is coded: its form, and one or two fields.
struct Half {
    form: u32,
    fields: [(u32, u32); 2],
}

#[inline(always)]
fn half(tables: &Tables<'_>, src: &[u8], block: usize, bytes: [u8; 4]) -> Half {
    let value = u32::from_be_bytes(bytes);
    if let Some(index) = find(RING_4, tables.of_4[hash(value.into(), 11)], src, block, &bytes) {
        return Half { form: INDEX_4, fields: [(index, RING_4.bits), (0, 0)] };
    }
    let (high, low) = (value >> 16, value & 0xffff);
    let index_of = |part: u32, bytes: &[u8]| {
        find(RING_2, tables.of_2[hash(part.into(), 10)], src, block, bytes)
            .map(|i| (i, RING_2.bits))
    };
    let data = |part: u32| (part, 16);
    match (index_of(high, &bytes[..2]), index_of(low, &bytes[2..])) {
        (None, None) => Half { form: DATA_4, fields: [(value, 32), (0, 0)] },
        (None, Some(i)) => Half { form: DATA_INDEX, fields: [data(high), i] },
        (Some(i), None) => Half { form: INDEX_DATA, fields: [i, data(low)] },
        (Some(i), Some(j)) => Half { form: INDEX_INDEX, fields: [i, j] },
    }
}

/// Compresses `src` to the start of `dst`; the number of bytes written.
pub fn compress(memory: &mut [u8], src: &[u8], dst: &mut [u8]) -> Result<usize, CompressError> {
    let mut tables = Tables::new(memory).ok_or(CompressError::Failed)?;
    let mut out = Writer { dst, len: 0, bits: 0, count: 0 };
    let (blocks, tail) = src.as_chunks::<8>();
    let mut number = 0;
    while let Some(bytes) = blocks.get(number) {
        let value = u64::from_be_bytes(*bytes);
        let block = number * 8;
        if number > 0 && *bytes == blocks[number - 1] {
            let run = blocks[number..]
                .iter()
                .take(MOST_REPEATS as usize)
                .take_while(|b| *b == bytes)
                .count();
            out.put(REPEAT, OPERATION_BITS)?;
            out.put(run as u32 - 1, REPEAT_BITS)?;
            // Nothing is learnt from them: candidates are looked up in the bytes themselves.
            number += run;
            continue;
        }
        if value == 0 {
            out.put(ZEROS, OPERATION_BITS)?;
        } else if let Some(index) = find(RING_8, tables.of_8[hash(value, 10)], src, block, bytes) {
            out.put(INDEX_8, OPERATION_BITS)?;
            out.put(index, RING_8.bits)?;
        } else {
            let [a, b, c, d, e, f, g, h] = *bytes;
            let (first, second) =
                (half(&tables, src, block, [a, b, c, d]), half(&tables, src, block, [e, f, g, h]));
            out.put(5 * first.form + second.form, OPERATION_BITS)?;
            for (field, bits) in first.fields.into_iter().chain(second.fields) {
                out.put(field, bits)?;
            }
        }
        tables.learn(value, block);
        number += 1;
    }
    if !tail.is_empty() {
        out.put(SHORT, OPERATION_BITS)?;
        out.put(tail.len() as u32, SHORT_BITS)?;
        for byte in tail {
            out.put((*byte).into(), 8)?;
        }
    }
    out.put(END, OPERATION_BITS)?;
    out.put(crc32(src), 32)?;
    let padding = (64 - (out.len as u32 * 8 + out.count) % 64) % 64;
    out.put(0, padding / 2)?;
    out.put(0, padding - padding / 2)?;
    Ok(out.len)
}

/// Reads fields of bits.
struct Reader<'a> {
    src: &'a [u8],
    at: usize,
    bits: u64,
    count: u32,
}

impl Reader<'_> {
    /// The next `count` (32 at most) bits.
    #[inline(always)]
    fn take(&mut self, count: u32) -> Option<u32> {
        if self.count < count {
            if let Some(word) = self.src.get(self.at..self.at + 4).and_then(|w| w.first_chunk()) {
                self.bits = self.bits << 32 | u64::from(u32::from_be_bytes(*word));
                (self.at, self.count) = (self.at + 4, self.count + 32);
            }
            while self.count < count {
                self.bits = self.bits << 8 | u64::from(*self.src.get(self.at)?);
                (self.at, self.count) = (self.at + 1, self.count + 8);
            }
        }
        self.count -= count;
        Some((self.bits >> self.count & ((1 << count) - 1)) as u32)
    }

    fn left_bits(&self) -> usize {
        (self.src.len() - self.at) * 8 + self.count as usize
    }
}

/// Copies the value at an index of a ring to `to`.
#[inline(always)]
fn copy<const N: usize>(
    ring: Ring<N>,
    from: &mut Reader<'_>,
    dst: &mut [u8],
    block: usize,
    to: usize,
) -> Option<()> {
    let at = ring.place(from.take(ring.bits)?, block)?;
    let value: [u8; N] = *dst.get(at..)?.first_chunk()?;
    *dst.get_mut(to..)?.first_chunk_mut()? = value;
    Some(())
}

#[inline(always)]
fn data(from: &mut Reader<'_>, dst: &mut [u8], to: usize, bytes: usize) -> Option<()> {
    let value = from.take(bytes as u32 * 8)? << (32 - bytes * 8);
    dst.get_mut(to..to + bytes)?.copy_from_slice(&value.to_be_bytes()[..bytes]);
    Some(())
}

/// Decompresses the stream `src` to the start of `dst`: the number of bytes written, or `None` if
/// `src` is not one stream, whole and alone, its content does not fit, or its checksum is not the
/// content's.
pub fn decompress(src: &[u8], dst: &mut [u8]) -> Option<usize> {
    let mut from = Reader { src, at: 0, bits: 0, count: 0 };
    let mut to = 0;
    loop {
        match from.take(OPERATION_BITS)? {
            operation @ 0..INDEX_8 => {
                for (at, form) in [(to, operation / 5), (to + 4, operation % 5)] {
                    match form {
                        DATA_4 => data(&mut from, dst, at, 4)?,
                        DATA_INDEX => {
                            data(&mut from, dst, at, 2)?;
                            copy(RING_2, &mut from, dst, to, at + 2)?;
                        }
                        INDEX_DATA => {
                            copy(RING_2, &mut from, dst, to, at)?;
                            data(&mut from, dst, at + 2, 2)?;
                        }
                        INDEX_INDEX => {
                            copy(RING_2, &mut from, dst, to, at)?;
                            copy(RING_2, &mut from, dst, to, at + 2)?;
                        }
                        _ => copy(RING_4, &mut from, dst, to, at)?,
                    }
                }
                to += 8;
            }
            INDEX_8 => {
                copy(RING_8, &mut from, dst, to, to)?;
                to += 8;
            }
            REPEAT => {
                let times = from.take(REPEAT_BITS)? as usize + 1;
                let last: [u8; 8] = *dst.get(to.checked_sub(8)?..)?.first_chunk()?;
                dst.get_mut(to..to + times * 8)?.as_chunks_mut().0.fill(last);
                to += times * 8;
            }
            ZEROS => {
                dst.get_mut(to..to + 8)?.fill(0);
                to += 8;
            }
            SHORT => {
                let count = from.take(SHORT_BITS)?;
                for _ in 0..count {
                    data(&mut from, dst, to, 1)?;
                    to += 1;
                }
                if from.take(OPERATION_BITS)? != END {
                    return None;
                }
                break;
            }
            END => break,
            _ => return None,
        }
    }
    let sum = from.take(32)?;
    (from.left_bits() < 64 && sum == crc32(&dst[..to])).then_some(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_one_of_the_format() {
        // CRC-32 with this polynomial, without reflection, from 0 and without a final change
        // ("CRC-32/CKSUM" before its complement and without the length).
        fn plain(bytes: &[u8]) -> u32 {
            let mut crc = 0u32;
            for byte in bytes {
                crc ^= u32::from(*byte) << 24;
                for _ in 0..8 {
                    crc = if crc >> 31 == 1 { crc << 1 ^ 0x04c1_1db7 } else { crc << 1 };
                }
            }
            crc
        }
        assert_eq!(plain(b"123456789"), 0x89a1_897f);
        let bytes: Vec<u8> = (0..100u32).map(|i| (i * 37) as u8).collect();
        for len in 0..100 {
            assert_eq!(crc32(&bytes[..len]), plain(&bytes[..len]), "{len} bytes");
        }
    }

    #[test]
    fn streams_are_as_described() {
        let mut memory = vec![0; TABLE_BYTES];
        let mut of = |src: &[u8]| {
            let mut dst = vec![0; 256];
            let n = compress(&mut memory, src, &mut dst).unwrap();
            assert_eq!(n % 8, 0);
            dst.iter().take(n).fold(String::new(), |s, b| s + &format!("{b:08b}"))
        };
        // Nothing: END, a checksum of 0.
        assert_eq!(of(b""), format!("11110{}", "0".repeat(59)));
        // 8 zeros, then twice the same again, then END.
        assert!(of(&[0; 24]).starts_with("11100 11011000001 11110".replace(' ', "").as_str()));
        // Data of 8 bytes, then a half that the ring has at index 1 and one that it has not.
        let expected =
            format!("00000{}{}{}{}", bits(b"abcdefgh"), "10100", "000000001", bits(b"1234"));
        assert!(of(b"abcdefghefgh1234").starts_with(&expected));
        // The last bytes.
        assert!(of(b"xyz").starts_with(&format!("11101011{}11110", bits(b"xyz"))));
    }

    fn bits(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:08b}")).collect()
    }
}
