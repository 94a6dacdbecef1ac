//! Every target on seeded bytes, without a fuzzer: `cargo test`. `UZSWAP_FUZZ_SECONDS` sets how long each takes (1).

use std::time::{Duration, Instant};

use uzswap::codec::{Codecs, Scratch};
use uzswap::testing::{Choices, Random, any_page};

/// Runs a target on what `make` makes until the time is over; how often that was.
fn drive(target: fn(&[u8]), mut make: impl FnMut(&mut Random) -> Vec<u8>) {
    let seconds = std::env::var("UZSWAP_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut seed = 0;
    // A few at least, however slow the machine is.
    while seed < 20 || Instant::now() < end {
        let data = make(&mut Random::new(seed));
        let outcome = std::panic::catch_unwind(|| target(&data));
        if let Err(why) = outcome {
            eprintln!("failed with seed {seed}");
            std::panic::resume_unwind(why);
        }
        seed += 1;
    }
    println!("{seed} runs");
}

fn noise(random: &mut Random, most: usize) -> Vec<u8> {
    let len = random.index(most);
    (0..len).map(|_| random.next() as u8).collect()
}

#[test]
fn decoders_on_noise() {
    drive(uzswap_fuzz::decompress, |random| {
        let mut data = noise(random, 600);
        if let Some(codec) = data.first_mut() {
            // Mostly one that exists.
            *codec = if random.below(8) == 0 { *codec } else { [1, 2, 3, 4, 5, 0x13][random.index(6)] };
        }
        data
    });
}

#[test]
fn decoders_on_damaged_forms() {
    let specs = ["lz4", "lzo", "lzo-rle", "842", "zstd:1", "deflate:6"].map(|text| text.parse().unwrap());
    let (mut scratch, mut out) = (Scratch::new(), [0; 8192]);
    drive(uzswap_fuzz::decompress, |random| {
        let codecs = Codecs::new(specs[random.index(specs.len())]);
        let done = codecs.compress(&mut scratch, &any_page(random.next()), &mut out).unwrap();
        let mut data = vec![done.codec, 0, 16];
        data.extend_from_slice(&out[..done.len]);
        for _ in 0..1 + random.index(6) {
            let at = 3 + random.index(data.len() - 3);
            match random.below(4) {
                0 => data.truncate(at + 1),
                1 => data.insert(at, random.next() as u8),
                2 => data[at] ^= 1 << random.below(8),
                _ => data[at] = random.next() as u8,
            }
        }
        data
    });
}

#[test]
fn anything_comes_back() {
    drive(uzswap_fuzz::round_trip, |random| {
        let mut data = noise(random, 64);
        data.resize(2 + random.index(5000), 0);
        while random.below(4) != 0 {
            let (from, len) = (random.index(data.len()), random.index(300));
            data.extend_from_within(from..(from + len).min(data.len()));
            data.extend(noise(random, 80));
        }
        data
    });
}

#[test]
fn models() {
    drive(uzswap_fuzz::pool, |random| noise(random, 20_000));
    drive(uzswap_fuzz::clusters, |random| noise(random, 20_000));
    drive(uzswap_fuzz::cache, |random| noise(random, 20_000));
}
