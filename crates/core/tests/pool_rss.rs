//! A zsmalloc pool gives memory back to the kernel, as seen from outside: the resident set of this
//! process. Alone in its file, so that no other test allocates in the same process meanwhile.

use uzswap::pool::{Handle, Pool, PoolKind};

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

fn random(seed: &mut u64) -> usize {
    *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    (*seed >> 33) as usize
}

/// Lengths such as compression makes; the bytes tell which object they belong to.
fn object(id: usize) -> Vec<u8> {
    let mut seed = id as u64;
    let len = 200 + random(&mut seed) % 1800;
    (0..len).map(|i| (id * 31 + i * 7 + i / 256) as u8).collect()
}

#[test]
fn resident_memory_falls_after_random_frees_and_compaction() {
    let mut pool = Pool::new(PoolKind::Zsmalloc);
    let mut objects: Vec<(usize, Handle)> = Vec::with_capacity(60_000);
    let empty = resident_bytes();
    for id in 0..60_000 {
        objects.push((id, pool.store(&object(id)).unwrap()));
    }
    let full = resident_bytes();
    let stored = pool.object_bytes();
    assert!(full - empty >= stored, "{stored} bytes take {}", full - empty);
    assert!(full - empty < stored * 11 / 10, "{stored} bytes take {}", full - empty);

    let mut seed = 42;
    objects.retain(|&(_, h)| {
        let keep = random(&mut seed).is_multiple_of(10);
        if !keep {
            pool.free(h);
        }
        keep
    });
    let freed = stored - pool.object_bytes();
    while pool.compact(64) > 0 {}
    pool.release();
    pool.check();
    let fallen = full.saturating_sub(resident_bytes());
    println!("freed {freed} bytes of {stored}, resident set fell by {fallen}");
    assert!(fallen * 100 >= freed * 80, "freed {freed}, resident set fell by {fallen}");

    let mut scratch = [0; 4096];
    for (id, h) in objects {
        assert_eq!(pool.read(h, &mut scratch), object(id));
        pool.free(h);
    }
    pool.release();
    let left = resident_bytes().saturating_sub(empty);
    // The reserve and the tables remain.
    assert!(left < 4 << 20, "an empty pool keeps {left} bytes");
}
