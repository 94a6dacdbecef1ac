//! Round trips of every codec, and what decoders do with bytes that no compressor wrote.

use super::*;

/// Small, seeded, good enough (splitmix64).
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// Bytes of one of several kinds: random, runs, words of a small vocabulary, pointers and
    /// counters, zeros.
    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let kind = self.below(6);
        let mut v = Vec::with_capacity(len + 64);
        while v.len() < len {
            match kind {
                0 => v.push(self.next() as u8),
                1 => {
                    let n = 1 + self.below(700);
                    v.resize(v.len() + n, self.below(3) as u8);
                }
                2 => v.extend_from_slice(
                    &b"the quick brown fox jumps over the lazy dog "[self.below(40)..],
                ),
                3 => {
                    v.extend_from_slice(
                        &(0x7f12_3456_0000 + self.below(1 << 14) as u64 * 16).to_le_bytes(),
                    );
                    v.extend_from_slice(&(self.below(3) as u64).to_le_bytes());
                }
                4 => v.push((v.len() / 3) as u8),
                _ => match self.below(3) {
                    0 => v.resize(v.len() + 1 + self.below(5000), 0),
                    1 => v.push(self.next() as u8),
                    _ if v.is_empty() => v.push(1),
                    _ => {
                        // An earlier piece again, near or far.
                        let from = self.below(v.len());
                        let to = (from + 1 + self.below(400)).min(v.len());
                        v.extend_from_within(from..to);
                    }
                },
            }
        }
        v.truncate(len);
        v
    }
}

const SPECS: [&str; 16] = [
    "none",
    "words",
    "lz4",
    "lz4hc:2",
    "lz4hc:9",
    "lzo",
    "lzo-rle",
    "zstd:-50",
    "zstd:-5",
    "zstd:1",
    "zstd:3",
    "zstd:19",
    "deflate:1",
    "deflate:6",
    "deflate:12",
    "842",
];

fn codecs(text: &str) -> Codecs {
    Codecs::new(CodecSpec::parse(text).unwrap())
}

fn round_trip(codecs: &Codecs, scratch: &mut Scratch, src: &[u8]) -> Compressed {
    let mut dst = vec![0xee; src.len() + src.len() / 8 + 64];
    let done = codecs.compress(scratch, src, &mut dst).unwrap();
    let mut back = vec![0xdd; src.len()];
    codecs.decompress(done.codec, scratch, &dst[..done.len], &mut back).unwrap();
    assert!(back == src, "{}: {} bytes came back wrong", codecs.spec(), src.len());
    done
}

#[test]
fn every_length_of_a_page_comes_back() {
    for text in SPECS {
        let (codecs, mut scratch, mut rng) = (codecs(text), Scratch::new(), Rng(1));
        // All lengths would take the slow codecs too long: all small ones, then every 61st.
        for len in (0..300).chain((300..4096).step_by(61)).chain(4090..=4096) {
            let src = rng.bytes(len);
            round_trip(&codecs, &mut scratch, &src);
        }
    }
}

#[test]
fn larger_units_come_back_and_sizes_may_alternate() {
    for text in SPECS {
        let (codecs, mut scratch, mut rng) = (codecs(text), Scratch::new(), Rng(2));
        for len in [65536, 4096, 65536, 49152, 49153, 100_001, 4096, 131_072, 2 << 20] {
            for _ in 0..if len > 1 << 20 { 1 } else { 4 } {
                let src = rng.bytes(len);
                round_trip(&codecs, &mut scratch, &src);
            }
        }
    }
}

#[test]
fn zeros_and_random_bytes_take_about_what_they_must() {
    for text in SPECS {
        let (codecs, mut scratch, mut rng) = (codecs(text), Scratch::new(), Rng(3));
        let zeros = round_trip(&codecs, &mut scratch, &[0; 4096]).len;
        let noise: Vec<u8> = (0..4096).map(|_| rng.next() as u8).collect();
        let noise = round_trip(&codecs, &mut scratch, &noise).len;
        assert!(zeros <= if text == "none" { 4096 } else { 80 }, "{text}: zeros take {zeros}");
        // 842 has 5 bits for every 8 bytes, words 4.
        let most =
            if matches!(text, "842" | "words") { 4096 + 4096 * 5 / 64 + 16 } else { 4096 + 64 };
        assert!((4096..most).contains(&noise), "{text}: noise takes {noise}");
    }
}

#[test]
fn the_limit_of_the_output_is_exact() {
    for text in SPECS {
        let (codecs, mut scratch, mut rng) = (codecs(text), Scratch::new(), Rng(4));
        for _ in 0..30 {
            let src = rng.bytes(4096);
            let need = round_trip(&codecs, &mut scratch, &src).len;
            for room in [0, 1, 5, need / 2, need.saturating_sub(64)] {
                let mut dst = vec![0xee; room + 32];
                let done = codecs.compress(&mut scratch, &src, &mut dst[..room]);
                assert!(dst[room..].iter().all(|&b| b == 0xee), "{text}: wrote past its room");
                match done {
                    Err(why) => assert_eq!(why, CompressError::Incompressible, "{text}"),
                    // A little smaller than the first time can happen: zstd searches with the
                    // tables it has.
                    Ok(done) => {
                        let mut back = vec![0; 4096];
                        codecs
                            .decompress(done.codec, &mut scratch, &dst[..done.len], &mut back)
                            .unwrap();
                        assert!(back == src);
                    }
                }
            }
            // After a refusal the scratch still works.
            round_trip(&codecs, &mut scratch, &src);
        }
    }
}

#[test]
fn another_length_than_the_original_is_corrupt() {
    for text in SPECS {
        let (codecs, mut scratch, mut rng) = (codecs(text), Scratch::new(), Rng(5));
        for _ in 0..20 {
            let src = rng.bytes(4096);
            let mut dst = vec![0; 8192];
            let done = codecs.compress(&mut scratch, &src, &mut dst).unwrap();
            for len in [0, 1, 4095, 4097, 5000] {
                let mut back = vec![0; len];
                assert_eq!(
                    codecs.decompress(done.codec, &mut scratch, &dst[..done.len], &mut back),
                    Err(Corrupt),
                    "{text}: {len} bytes"
                );
            }
        }
    }
}

/// A decoder returns, whatever it is given, and leaves the bytes around its output alone. (That it
/// stays inside its input is for the sanitizer and for the guard page that follows a mapping.)
#[test]
fn damaged_bytes_never_harm() {
    for text in SPECS {
        let (codecs, mut scratch, mut rng) = (codecs(text), Scratch::new(), Rng(6));
        let (mut corrupt, mut total) = (0, 0);
        for _ in 0..60 {
            let len = 1 + rng.below(4096);
            let src = rng.bytes(len);
            let mut dst = vec![0; 8192];
            let done = codecs.compress(&mut scratch, &src, &mut dst).unwrap();
            for _ in 0..60 {
                let mut bad = dst[..done.len].to_vec();
                match rng.below(5) {
                    0 => bad.truncate(rng.below(bad.len())),
                    1 => bad.extend_from_slice(&[0; 3]),
                    2 => bad.iter_mut().for_each(|b| *b = rng.next() as u8),
                    _ => {
                        for _ in 0..1 + rng.below(4) {
                            let at = rng.below(bad.len());
                            bad[at] ^= 1 << rng.below(8);
                        }
                    }
                }
                let mut back = vec![0xdd; len + 64];
                let result = codecs.decompress(done.codec, &mut scratch, &bad, &mut back[..len]);
                assert!(back[len..].iter().all(|&b| b == 0xdd), "{text}: wrote past its output");
                total += 1;
                corrupt += usize::from(result.is_err());
            }
            // The damage does not outlive the call.
            round_trip(&codecs, &mut scratch, &src);
        }
        assert!(corrupt * 5 > total || text == "none", "{text}: {corrupt} of {total} noticed");
    }
}

#[test]
fn bytes_of_no_codec_are_corrupt() {
    let (codecs, mut scratch, mut rng) = (codecs("lz4"), Scratch::new(), Rng(7));
    for codec in 0..=255 {
        for len in [0, 1, 2, 3, 17, 400] {
            let src: Vec<u8> = (0..len).map(|_| rng.next() as u8).collect();
            let mut dst = [0; 4096];
            assert_eq!(
                codecs.decompress(codec, &mut scratch, &src, &mut dst),
                Err(Corrupt),
                "{codec} {len}"
            );
        }
    }
}

#[test]
fn old_entries_survive_a_change_of_codec() {
    let (codecs, mut scratch, mut rng) = (codecs("lz4"), Scratch::new(), Rng(8));
    let mut kept = Vec::new();
    for round in 0..200 {
        codecs.select(CodecSpec::parse(SPECS[rng.below(SPECS.len())]).unwrap());
        let src = rng.bytes(4096);
        let mut dst = vec![0; 8192];
        let done = codecs.compress(&mut scratch, &src, &mut dst).unwrap();
        dst.truncate(done.len);
        kept.push((src, done.codec, dst));
        let (src, codec, bytes) = &kept[rng.below(round + 1)];
        let mut back = vec![0; 4096];
        codecs.decompress(*codec, &mut scratch, bytes, &mut back).unwrap();
        assert!(back == *src);
    }
}

/// zstd's static contexts refuse to work after 128 inputs that are far smaller than they were made
/// for.
#[test]
fn many_small_inputs_after_a_large_one() {
    for text in ["zstd:1", "zstd:19", "zstd:-5"] {
        let (codecs, mut scratch, mut rng) = (codecs(text), Scratch::new(), Rng(9));
        for round in 0..1000 {
            let small = rng.below(40);
            let src = rng.bytes(if round % 300 == 0 { 4096 } else { small });
            round_trip(&codecs, &mut scratch, &src);
        }
    }
}

#[test]
fn too_large_an_input_fails() {
    let src = vec![0; MAX_INPUT_BYTES + 1];
    let mut dst = vec![0; 1 << 16];
    for text in SPECS {
        assert_eq!(
            codecs(text).compress(&mut Scratch::new(), &src, &mut dst),
            Err(CompressError::Failed)
        );
    }
}

#[test]
fn streams_are_bounded_and_exclusive() {
    let streams = Streams::with_cells(2, 4096).unwrap();
    let codecs = codecs("lz4");
    assert_eq!(streams.cells(), 2);
    let before = streams.mapped_bytes();
    std::thread::scope(|s| {
        for seed in 0..16 {
            let (streams, codecs) = (&streams, &codecs);
            s.spawn(move || {
                let mut rng = Rng(seed);
                for _ in 0..300 {
                    let src = rng.bytes(4096);
                    let kept = streams.with(|stream| {
                        let Stream { scratch, out } = stream;
                        codecs
                            .compress(scratch, &src, out.as_mut_slice())
                            .map(|done| (done.codec, out.as_slice()[..done.len].to_vec()))
                    });
                    let Ok((codec, bytes)) = kept else { continue };
                    let mut back = vec![0; 4096];
                    streams
                        .with(|s| codecs.decompress(codec, &mut s.scratch, &bytes, &mut back))
                        .unwrap();
                    assert!(back == src);
                }
            });
        }
        // A fork's worth of holding them all in between.
        for _ in 0..20 {
            drop(streams.hold_all());
            std::thread::yield_now();
        }
    });
    // Two lz4 states of 16 KiB and a bit, whatever the number of threads was.
    assert!(
        streams.mapped_bytes() - before <= 2 * (20 << 10),
        "{}",
        streams.mapped_bytes() - before
    );
}

/// Pages of records that resemble the ones of other pages more than each other.
fn record_page(rng: &mut Rng, kinds: &[Vec<u8>]) -> Vec<u8> {
    let mut page = Vec::new();
    while page.len() < 4096 {
        page.extend_from_slice(&kinds[rng.below(kinds.len())]);
        page.extend_from_slice(&rng.next().to_le_bytes());
    }
    page.truncate(4096);
    page
}

fn record_kinds(rng: &mut Rng) -> Vec<Vec<u8>> {
    (0..40).map(|_| (0..300).map(|_| rng.next() as u8).collect()).collect()
}

/// Stores by `store` until a training is due; how many times that took.
fn until_training_is_due(codecs: &Codecs, mut store: impl FnMut()) -> usize {
    let mut stored = 0;
    while !codecs.training_due() {
        store();
        stored += 1;
        assert!(stored < 1 << 17, "no sample is taken any more");
    }
    stored
}

#[test]
fn a_dictionary_is_trained_kept_and_used() {
    let (codecs, mut scratch, mut rng) =
        (codecs("zstd:level=1,dict=auto"), Scratch::new(), Rng(10));
    let mut kept = Vec::new();
    let mut store = |codecs: &Codecs, scratch: &mut Scratch, rng: &mut Rng, kinds: &[Vec<u8>]| {
        let src = record_page(rng, kinds);
        let mut dst = vec![0; 8192];
        let done = codecs.compress(scratch, &src, &mut dst).unwrap();
        dst.truncate(done.len);
        kept.push((src, done.codec, dst));
        done
    };
    let kinds = record_kinds(&mut rng);
    let mut before = 0;
    assert_eq!(codecs.train(), Training::NotDue);
    until_training_is_due(&codecs, || {
        let done = store(&codecs, &mut scratch, &mut rng, &kinds);
        assert_eq!(done.codec, FORMAT_ZSTD);
        before = done.len;
    });
    let Training::Kept { bytes_before, bytes_after } = codecs.train() else {
        panic!("these pages gain")
    };
    assert!(bytes_after < bytes_before / 2, "{bytes_before} -> {bytes_after}");
    assert!(!codecs.training_due());
    let done = store(&codecs, &mut scratch, &mut rng, &kinds);
    assert_eq!(done.codec, FORMAT_ZSTD | 1 << DICTIONARY_SHIFT);
    assert!(done.len < before / 2, "{before} -> {}", done.len);

    // The program turns to other data: another dictionary follows, and a third when it turns back.
    let others = record_kinds(&mut rng);
    let stored = until_training_is_due(&codecs, || {
        store(&codecs, &mut scratch, &mut rng, &others);
    });
    assert!(stored >= 16 << 10, "not at once again");
    assert!(matches!(codecs.train(), Training::Kept { .. }));
    let done = store(&codecs, &mut scratch, &mut rng, &others);
    assert_eq!(done.codec, FORMAT_ZSTD | 2 << DICTIONARY_SHIFT);

    // Another level has no use for it, and no dictionary at all is the level's own codec again.
    for text in ["zstd:level=3,dict=auto", "zstd:level=1"] {
        codecs.select(CodecSpec::parse(text).unwrap());
        assert_eq!(store(&codecs, &mut scratch, &mut rng, &others).codec, FORMAT_ZSTD);
    }
    codecs.select(CodecSpec::parse("zstd:level=1,dict=auto").unwrap());
    assert_eq!(
        store(&codecs, &mut scratch, &mut rng, &others).codec,
        FORMAT_ZSTD | 2 << DICTIONARY_SHIFT
    );

    // Entries of all times, with one scratch and with a fresh one.
    let mut fresh = Scratch::new();
    for (index, (src, codec, bytes)) in kept.iter().enumerate().rev() {
        let mut back = vec![0; 4096];
        let scratch = if index % 2 == 0 { &mut scratch } else { &mut fresh };
        codecs.decompress(*codec, scratch, bytes, &mut back).unwrap();
        assert!(back == *src);
    }
    assert!(codecs.dictionary_bytes() < 2 * (256 << 10));

    // Bytes that were damaged, and dictionaries that do not exist or are not the one.
    let (src, codec, bytes) = &kept[kept.len() - 1];
    for _ in 0..3000 {
        let mut bad = bytes.clone();
        let at = rng.below(bad.len());
        bad[at] ^= 1 << rng.below(8);
        let mut back = vec![0xdd; 4096 + 64];
        let _ = codecs.decompress(*codec, &mut scratch, &bad, &mut back[..4096]);
        assert!(back[4096..].iter().all(|&b| b == 0xdd));
    }
    let mut back = vec![0; 4096];
    for number in 3..16 {
        let codec = FORMAT_ZSTD | number << DICTIONARY_SHIFT;
        assert_eq!(codecs.decompress(codec, &mut scratch, bytes, &mut back), Err(Corrupt));
    }
    let wrong =
        codecs.decompress(FORMAT_ZSTD | 1 << DICTIONARY_SHIFT, &mut scratch, bytes, &mut back);
    assert!(wrong.is_err() || back != *src);
    codecs.decompress(*codec, &mut scratch, bytes, &mut back).unwrap();
    assert!(back == *src);
}

#[test]
fn a_dictionary_that_gains_nothing_is_dropped() {
    let (codecs, mut scratch, mut rng) = (codecs("zstd:dict=auto"), Scratch::new(), Rng(11));
    let mut dst = vec![0; 8192];
    until_training_is_due(&codecs, || {
        let src: Vec<u8> = (0..4096).map(|_| rng.next() as u8).collect();
        codecs.compress(&mut scratch, &src, &mut dst).unwrap();
    });
    assert_eq!(codecs.train(), Training::Rejected);
    assert!(!codecs.training_due());
    assert_eq!(codecs.train(), Training::NotDue);
    assert_eq!(codecs.dictionary_bytes(), 0);
    let done = codecs.compress(&mut scratch, &[1; 4096], &mut dst).unwrap();
    assert_eq!(done.codec, FORMAT_ZSTD);
}

#[test]
fn two_sets_of_dictionaries_share_a_scratch() {
    let (mut scratch, mut rng) = (Scratch::new(), Rng(12));
    let sets: Vec<_> = (0..2)
        .map(|_| {
            let codecs = codecs("zstd:level=1,dict=auto");
            let kinds = record_kinds(&mut rng);
            let mut dst = vec![0; 8192];
            until_training_is_due(&codecs, || {
                codecs.compress(&mut scratch, &record_page(&mut rng, &kinds), &mut dst).unwrap();
            });
            assert!(matches!(codecs.train(), Training::Kept { .. }));
            (codecs, kinds)
        })
        .collect();
    for _ in 0..100 {
        for (codecs, kinds) in &sets {
            let done = round_trip(codecs, &mut scratch, &record_page(&mut rng, kinds));
            assert_eq!(done.codec >> DICTIONARY_SHIFT, 1);
            assert!(done.len < 2000, "the dictionary of this set, not of the other: {}", done.len);
        }
    }
}

#[test]
fn lzo_reads_what_the_c_library_wrote() {
    // Written by lzo1x_1_compress of liblzo2 2.10.
    let cases: [(&[u8], Vec<u8>); 3] = [
        (&[0x11, 0, 0], Vec::new()),
        (b"\x16hello\x11\0\0", b"hello".to_vec()),
        (b"\x05abcdabcd \0\0\xe5\x1c\0\0\x02abcdabcdabcdabcdabcd\x11\0\0", b"abcd".repeat(200)),
    ];
    for (stream, plain) in cases {
        let mut back = vec![0; plain.len()];
        assert_eq!(lzo::decompress(stream, &mut back), Some(plain.len()));
        assert_eq!(back, plain);
    }
}
