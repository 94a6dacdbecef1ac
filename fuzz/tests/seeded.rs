//! Every target on seeded bytes, without a fuzzer: `cargo test`. `UZSWAP_FUZZ_SECONDS` sets how
//! long each takes (1).

use std::time::{Duration, Instant};

use uzswap::codec::{Codecs, Scratch};
use uzswap::testing::{Choices, Random, any_page};

/// Runs a target on what `make` makes until the time is over; how often that was.
fn drive(target: fn(&[u8]), mut make: impl FnMut(&mut Random) -> Vec<u8>) {
    let seconds =
        std::env::var("UZSWAP_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
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
            *codec =
                if random.below(8) == 0 { *codec } else { [1, 2, 3, 4, 5, 0x13][random.index(6)] };
        }
        data
    });
}

#[test]
fn decoders_on_damaged_forms() {
    let specs =
        ["lz4", "lzo", "lzo-rle", "842", "zstd:1", "deflate:6"].map(|text| text.parse().unwrap());
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

/// Requests that could be: the right beginning, and numbers that are mostly on the disk.
fn requests(random: &mut Random) -> Vec<u8> {
    let mut data = vec![2 + random.below(2) as u8];
    for _ in 0..random.below(20) {
        let command = random.below(9) as u16;
        let flags = if random.below(2) == 0 { 0 } else { 1 << random.below(6) as u16 };
        let offset = if random.below(8) == 0 { random.next() } else { random.below(310_000) };
        let len = [random.below(100), random.below(100_000), random.next()][random.index(3)] as u32;
        data.extend(0x2560_9513u32.to_be_bytes());
        data.extend(flags.to_be_bytes());
        data.extend(command.to_be_bytes());
        data.extend(random.next().to_be_bytes());
        data.extend(offset.to_be_bytes());
        data.extend(len.to_be_bytes());
        if command == 1 && random.below(8) != 0 {
            data.resize(data.len() + len.min(200_000) as usize, random.next() as u8);
        }
    }
    data
}

#[test]
fn clients_of_a_disk() {
    drive(uzswap_fuzz::disk, |random| noise(random, 3000));
    drive(uzswap_fuzz::disk, requests);
    // The model's.
    drive(uzswap_fuzz::disk, |random| [vec![4], noise(random, 2000)].concat());
}
