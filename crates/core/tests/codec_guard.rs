//! Codecs stay inside what they are given: input and output lie between pages that may not be
//! touched, and a touch ends the test program. Good streams, damaged ones, and outputs too short
//! for what is in them.
#![allow(unsafe_code)]

use uzswap::codec::{CodecSpec, Codecs, Scratch};
use uzswap::sys::mem::{PROT_NONE, PROT_READ, PROT_WRITE, map_anonymous};
use uzswap::sys::{PAGE_SIZE, nr, syscall};

/// Some pages with a forbidden one before and after.
struct Guarded(usize);

const ROOM: usize = 3 * PAGE_SIZE;

impl Guarded {
    fn new() -> Self {
        let start = map_anonymous(ROOM + 2 * PAGE_SIZE, PROT_NONE).unwrap() + PAGE_SIZE;
        // SAFETY: makes pages of the mapping just made accessible.
        let done = unsafe { syscall(nr::MPROTECT, [start, ROOM, PROT_READ | PROT_WRITE, 0, 0, 0]) };
        assert_eq!(done, 0);
        Guarded(start)
    }

    /// `len` bytes that touch the guard after them, or the one before.
    fn bytes(&mut self, len: usize, at_end: bool) -> &mut [u8] {
        assert!(len <= ROOM);
        let start = if at_end { self.0 + ROOM - len } else { self.0 };
        // SAFETY: inside the accessible part, never unmapped, borrowed through `&mut self` only.
        unsafe { std::slice::from_raw_parts_mut(start as *mut u8, len) }
    }
}

#[test]
fn nothing_outside_is_touched() {
    let (mut input, mut output, mut packed) = (Guarded::new(), Guarded::new(), Guarded::new());
    let mut x = 0x1234_5678_9abc_def1u64;
    let mut random = move |n: usize| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 11) as usize % n
    };
    let specs = [
        "none",
        "words",
        "lz4",
        "lz4hc:2",
        "lz4hc:9",
        "lzo",
        "lzo-rle",
        "842",
        "zstd:-5",
        "zstd:1",
        "zstd:19",
        "deflate:1",
        "deflate:9",
    ];
    for text in specs {
        let codecs = Codecs::new(CodecSpec::parse(text).unwrap());
        let mut scratch = Scratch::new();
        for round in 0..400 {
            let at_end = round % 2 == 0;
            let len = if round % 3 == 0 { 4096 } else { random(4097) };
            let src = input.bytes(len, at_end);
            let (kind, mut at) = (random(3), 0);
            while at < len {
                let run = (1 + random(if kind == 0 { 2 } else { 90 })).min(len - at);
                match random(3) {
                    0 if at >= run => src.copy_within(at - run..at, at),
                    1 => src[at..at + run].fill(random(3) as u8),
                    _ => src[at..at + run].iter_mut().for_each(|b| *b = random(256) as u8),
                }
                at += run;
            }
            let room = if round % 4 == 3 { random(len + 1) } else { len + len / 8 + 64 };
            let Ok(done) = codecs.compress(&mut scratch, src, packed.bytes(room, at_end)) else {
                assert!(room < len + len / 8 + 64);
                continue;
            };
            let form = packed.bytes(room, at_end)[..done.len].to_vec();

            // Good, flush with the guards.
            let good = packed.bytes(form.len(), at_end);
            good.copy_from_slice(&form);
            let back = output.bytes(len, at_end);
            codecs.decompress(done.codec, &mut scratch, good, back).unwrap();
            assert!(back == src, "{text}");

            // Too short and too long an output, and damage.
            for _ in 0..20 {
                let bad = packed.bytes(form.len() - random(2).min(form.len()), at_end);
                bad.copy_from_slice(&form[..bad.len()]);
                for _ in 0..random(4) {
                    if !bad.is_empty() {
                        bad[random(bad.len())] = random(256) as u8;
                    }
                }
                let back = output.bytes(random(len + 200), at_end);
                let _ = codecs.decompress(done.codec, &mut scratch, bad, back);
            }
            for _ in 0..5 {
                let noise = packed.bytes(random(300), at_end);
                noise.iter_mut().for_each(|b| *b = random(256) as u8);
                let _ =
                    codecs.decompress(done.codec, &mut scratch, noise, output.bytes(len, at_end));
            }
        }
    }
}
