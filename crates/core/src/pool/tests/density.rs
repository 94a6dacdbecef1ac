//! How densely objects lie, and that compaction gets there again after frees in any pattern.

use super::*;

/// How often lz4 made pages of real heaps (CPython, node, redis, g++; same-filled and
/// incompressible ones left out) so many bytes long: up to 64, up to 128, ...
const LENGTHS: [u32; 54] = [
    257, 278, 7621, 2762, 389, 1169, 3424, 2282, 1199, 1224, 2491, 1889, 3701, 4618, 4851, 4710,
    4211, 3178, 4215, 5229, 7194, 6142, 4364, 2194, 8195, 3743, 1663, 750, 940, 428, 615, 737,
    1611, 1064, 466, 160, 579, 491, 47, 47, 42, 22, 52, 133, 106, 55, 22, 13, 2, 1, 1, 2, 3, 2,
];

/// A length of the real mix.
fn real_length(rng: &mut Rng) -> usize {
    let mut at = rng.below(LENGTHS.iter().sum::<u32>() as usize) as u32;
    let bucket = LENGTHS.iter().position(|&count| {
        let here = at < count;
        at = at.wrapping_sub(if here { 0 } else { count });
        here
    });
    bucket.unwrap() * 64 + 1 + rng.below(64)
}

fn density(pool: &Pool) -> f64 {
    pool.object_bytes() as f64 / (pool.used_frames() * PAGE_SIZE) as f64
}

#[test]
fn a_real_mix_lies_densely() {
    let mut densities = Vec::new();
    for kind in PoolKind::ALL {
        let mut rng = Rng(11);
        let mut pool = Pool::new(kind);
        for _ in 0..30_000 {
            pool.store(&[0xa5; MAX_OBJECT_BYTES][..real_length(&mut rng)]).unwrap();
        }
        pool.check();
        let metadata = pool.metadata_bytes() as f64 / pool.object_bytes() as f64;
        println!("{}: density {:.4}, metadata {metadata:.4}", kind.name(), density(&pool));
        assert!(metadata < 0.015, "{} metadata {metadata}", kind.name());
        densities.push(density(&pool));
    }
    assert!(densities[0] >= 0.97, "zsmalloc: {}", densities[0]);
    // Two objects in a frame, whatever their sizes: this mix cannot do better than about half.
    assert!(densities[1] > 0.45 && densities[1] < densities[0], "zbud: {}", densities[1]);
}

#[test]
fn compaction_leaves_the_fewest_frames_after_any_pattern_of_frees() {
    type Length = fn(&mut Rng) -> usize;
    let lengths: [(&str, Length); 5] = [
        ("real", real_length),
        ("tiny", |rng| 1 + rng.below(200)),
        ("large", |rng| 2000 + rng.below(2097)),
        ("one class", |_| 1500),
        ("full slots", |rng| size_class::CLASSES[rng.below(size_class::CLASS_COUNT)].size),
    ];
    // Which objects stay, by their number: at random, every tenth, the first, the last, clusters.
    type Stays = fn(usize, &mut Rng) -> bool;
    let patterns: [(&str, Stays); 6] = [
        ("random tenth", |_, rng| rng.below(10) == 0),
        ("random half", |_, rng| rng.below(2) == 0),
        ("every tenth", |i, _| i % 10 == 0),
        ("the last", |i, _| i >= 5900),
        ("clusters", |i, _| i / 40 % 7 == 3),
        ("nearly all", |_, rng| rng.below(50) != 0),
    ];
    for (length_name, length) in lengths {
        for (pattern_name, stays) in patterns {
            let mut rng = Rng(5);
            let mut pool = Pool::new(PoolKind::Zsmalloc);
            let stored: Vec<_> = (0..6000u64)
                .map(|id| {
                    let bytes = contents(id, length(&mut rng));
                    (pool.store(&bytes).unwrap(), bytes)
                })
                .collect();
            let mut kept = Vec::new();
            for (i, (h, bytes)) in stored.into_iter().enumerate() {
                if stays(i, &mut rng) {
                    kept.push((h, bytes));
                } else {
                    pool.free(h);
                }
            }
            // In small steps, as a background thread does it, then to the end. The limit does not
            // hinder it.
            pool.set_max_frames(pool.used_frames());
            let before = pool.used_frames();
            for _ in 0..5 {
                pool.compact(3);
                pool.check();
            }
            pool.compact(usize::MAX);
            pool.check();
            pool.for_each_class(|class| {
                assert_eq!(
                    class.freeable,
                    0,
                    "{length_name}, {pattern_name}:\n{}\n{class}",
                    ClassStats::HEADER
                );
            });
            println!(
                "{length_name}, {pattern_name}: {before} -> {} frames, density {:.3}",
                pool.used_frames(),
                density(&pool)
            );
            let mut scratch = [0; MAX_OBJECT_BYTES];
            for (h, bytes) in &kept {
                assert_eq!(
                    pool.read(*h, &mut scratch),
                    bytes,
                    "{length_name}, {pattern_name}: {h:?}"
                );
            }
        }
    }
}

#[test]
fn bounded_compaction_gets_to_the_same_end() {
    let mut rng = Rng(9);
    let mut pool = Pool::new(PoolKind::Zsmalloc);
    let handles: Vec<_> =
        (0..8000).map(|_| pool.store(&[1; 4096][..real_length(&mut rng)]).unwrap()).collect();
    for h in handles {
        if rng.below(10) != 0 {
            pool.free(h);
        }
    }
    let mut calls = 0;
    loop {
        let mut freeable = 0;
        pool.for_each_class(|class| freeable += class.freeable);
        if freeable == 0 {
            break;
        }
        let before = pool.used_frames();
        let freed = pool.compact(1);
        // A step ends with whole zspages, so it may free a few more than it was asked for.
        assert!(freed <= size_class::MAX_CHAIN + 1, "one call freed {freed}");
        assert_eq!(freed, before.saturating_sub(pool.used_frames()));
        calls += 1;
        assert!(calls < 20_000, "compaction does not end");
    }
    pool.check();
    assert!(calls > 100);
}
