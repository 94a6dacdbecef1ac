use super::*;

#[test]
fn pages_come_back_from_every_place() {
    let (cache, _) = in_memory(1 << 20);
    let pages: Vec<Page> = (0..3000u64)
        .map(|i| match i % 10 {
            0 => [i as u8; PAGE_SIZE],
            1 => noise(i),
            _ => page(i),
        })
        .collect();
    let out = |p| {
        cache.swap_out(p).unwrap_or_else(|_| panic!("{:?} {:?}", cache.store_failure(), cache.counters()))
    };
    let entries: Vec<SwapEntry> = pages.iter().map(out).collect();
    cache.check();
    for (e, p) in entries.iter().zip(&pages) {
        assert_eq!(&loaded(&cache, *e), p);
    }
    let c = cache.counters();
    assert!(c.pool_loads > 0 && c.store_loads > 0 && c.same_filled_loads > 0 && c.buffer_loads > 0, "{c:?}");
    assert!(
        c.written_back_pages > 0
            && c.pool_limit_hits > 0
            && c.reject_compress_poor > 0
            && c.read_ahead_hits > 0
    );
    cache.check();
    for e in entries {
        cache.free(e);
        assert_eq!(cache.swap_in(e, &mut [0; PAGE_SIZE]), Err(LoadError::NotFound));
    }
    cache.check();
    let c = cache.counters();
    assert_eq!((c.stored_pages, c.pool_pages, c.store_pages, c.compr_data_bytes), (0, 0, 0, 0));
}
