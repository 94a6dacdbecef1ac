//! Tests of both pools: single behaviours here, a naive model with random events in `model.rs`.

mod density;
mod model;

use super::*;

/// A small generator, so that a failing run is named by its seed.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e3779b97f4a7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d049bb133111eb);
        z ^ (z >> 31)
    }

    /// Less than `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// The bytes of an object that is named by a number.
pub fn contents(id: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng(id);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&rng.next().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

#[test]
fn handles_are_small_and_never_zero() {
    assert_eq!(size_of::<Option<Handle>>(), 8);
    let h = Handle::new(PoolTag(0x1f), 4096, u16::MAX, (1 << INDEX_BITS) - 1);
    assert_eq!((h.len(), h.generation(), h.index()), (4096, u16::MAX, (1 << INDEX_BITS) - 1));
    assert!(h.tag() == PoolTag(0x1f));
    assert_eq!(Handle::from_raw(h.to_raw()), Some(h));
    assert_eq!(Handle::from_raw(0), None);
    assert_eq!(Handle::new(PoolTag(0x10), 1, 0, 0).len(), 1);
}

#[test]
fn every_length_is_stored_and_read_back() {
    for kind in PoolKind::ALL {
        let mut pool = Pool::new(kind);
        let mut handles = Vec::new();
        for len in 1..=MAX_OBJECT_BYTES {
            handles.push(pool.store(&contents(len as u64, len)).unwrap());
        }
        pool.check();
        let mut scratch = [0; MAX_OBJECT_BYTES];
        for (i, &h) in handles.iter().enumerate() {
            assert_eq!(h.len(), i + 1);
            assert_eq!(
                pool.read(h, &mut scratch),
                contents(i as u64 + 1, i + 1),
                "{kind:?} {}",
                i + 1
            );
        }
        assert_eq!(pool.objects(), MAX_OBJECT_BYTES);
        assert_eq!(pool.object_bytes(), (1..=MAX_OBJECT_BYTES).sum());
        for h in handles {
            pool.free(h);
        }
        assert_eq!((pool.objects(), pool.object_bytes(), pool.used_frames()), (0, 0, 0));
        pool.check();
    }
}

#[test]
fn empty_and_too_large_objects_are_refused() {
    for kind in PoolKind::ALL {
        let mut pool = Pool::new(kind);
        assert_eq!(pool.store(&[]), Err(PoolError::Empty));
        assert_eq!(pool.store(&[0; MAX_OBJECT_BYTES + 1]), Err(PoolError::TooLarge));
        assert_eq!(pool.resident_frames(), 0);
    }
}

#[test]
fn stale_handles_are_told_from_live_ones() {
    for kind in PoolKind::ALL {
        let mut pool = Pool::new(kind);
        let mut other = Pool::new(kind);
        let a = pool.store(b"first").unwrap();
        let foreign = other.store(b"first").unwrap();
        assert!(!pool.holds(foreign) && !pool.try_free(foreign));
        pool.free(a);
        assert!(!pool.holds(a) && !pool.try_free(a));
        // The place is used again; the old name still does not fit.
        let b = pool.store(b"other").unwrap();
        assert_ne!(a, b);
        assert!(!pool.try_free(a) && pool.holds(b));
        assert_eq!(pool.read(b, &mut [0; 8]), b"other");
        pool.check();
    }
}

#[test]
fn a_stale_handle_stops_the_process() {
    for kind in PoolKind::ALL {
        for read in [false, true] {
            let outcome = std::panic::catch_unwind(|| {
                let mut pool = Pool::new(kind);
                let h = pool.store(&[7; 100]).unwrap();
                pool.free(h);
                if read {
                    pool.read(h, &mut [0; 100]);
                } else {
                    pool.free(h);
                }
            });
            let message = *outcome.unwrap_err().downcast::<String>().unwrap();
            assert!(message.contains("is freed already"), "{message}");
        }
    }
}

#[test]
fn the_frame_limit_is_an_error_and_changes_nothing() {
    for kind in PoolKind::ALL {
        let mut pool = Pool::new(kind);
        pool.set_max_frames(10);
        let mut handles = Vec::new();
        let error = loop {
            match pool.store(&contents(handles.len() as u64, 3000)) {
                Ok(h) => handles.push(h),
                Err(e) => break e,
            }
        };
        assert_eq!(error, PoolError::Full);
        assert_eq!((pool.used_frames(), pool.objects()), (10, handles.len()));
        pool.check();
        for (i, &h) in handles.iter().enumerate() {
            assert_eq!(pool.read(h, &mut [0; 4096]), contents(i as u64, 3000));
        }
        pool.free(handles.pop().unwrap());
        assert!(pool.store(&[1; 3000]).is_ok());
        pool.check();
    }
}

#[test]
fn every_mapping_may_fail() {
    for kind in PoolKind::ALL {
        // Fail the N-th mapping for N = 0, 1, 2... until the run passes untouched.
        let mut n = 0;
        loop {
            let mut pool = Pool::new(kind);
            pool.fail_growth_after(Some(n));
            let mut stored = Vec::new();
            let mut failures = 0;
            for id in 0..2000u64 {
                let bytes = contents(id, 1 + (id * 97 % 4096) as usize);
                match pool.store(&bytes) {
                    Ok(h) => stored.push((h, bytes)),
                    Err(e) => {
                        assert_eq!(e, PoolError::NoMemory);
                        failures += 1;
                        // Memory comes back after a while.
                        if failures == 3 {
                            pool.check();
                            pool.fail_growth_after(None);
                        }
                    }
                }
            }
            pool.check();
            let mut scratch = [0; MAX_OBJECT_BYTES];
            for (h, bytes) in &stored {
                assert_eq!(pool.read(*h, &mut scratch), bytes);
            }
            if failures == 0 {
                assert!(n > 5, "{kind:?} maps less than it must");
                break;
            }
            assert_eq!(stored.len() + failures, 2000);
            n += 1;
        }
    }
}

#[test]
fn an_empty_pool_maps_nothing_and_a_new_one_costs_little() {
    for kind in PoolKind::ALL {
        let pool = Pool::new(kind);
        assert_eq!((pool.resident_frames(), pool.objects()), (0, 0));
        assert!(pool.metadata_bytes() < 20_000);
        pool.check();
    }
}

#[test]
fn a_pool_may_move_between_threads() {
    fn send<T: Send>() {}
    send::<Pool>();
}
