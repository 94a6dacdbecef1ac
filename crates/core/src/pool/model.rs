//! The naive model: a map from handle to bytes, beside the pool, and random events on both.

use std::collections::HashMap;

use super::pin::{Pinned, Unfilled};
use super::{Handle, MAX_OBJECT_BYTES, Pool, PoolError, PoolKind};
use crate::testing::{Choices, object};

/// Objects of the model, in a vector too so that one can be drawn at random.
#[derive(Default)]
struct Model {
    bytes: HashMap<Handle, Vec<u8>>,
    order: Vec<Handle>,
    /// Handles that were freed, to be tried again.
    dead: Vec<Handle>,
    /// Objects in use without the pool's lock, with their bytes, whether they are freed or not.
    pinned: Vec<(Pinned<'static>, Vec<u8>)>,
    /// Objects whose bytes come later.
    unfilled: Vec<(Handle, Unfilled<'static>, Vec<u8>)>,
}

/// Pinned and unfilled objects at the same time: as many as a cache has streams.
const MOST_PINNED: usize = 32;

impl Model {
    fn insert(&mut self, h: Handle, bytes: Vec<u8>) {
        assert!(self.bytes.insert(h, bytes).is_none(), "{h:?} given out twice");
        self.order.push(h);
    }

    fn remove(&mut self, h: Handle) {
        self.bytes.remove(&h).expect("a live handle");
        let at = self.order.iter().position(|&o| o == h).unwrap();
        self.order.swap_remove(at);
        self.dead.push(h);
    }

    /// The bytes of all objects that are not freed.
    fn object_bytes(&self) -> usize {
        let unfilled = self.unfilled.iter().map(|(.., bytes)| bytes.len());
        self.bytes.values().map(Vec::len).chain(unfilled).sum()
    }

    fn draw(&self, choices: &mut impl Choices) -> Option<Handle> {
        (!self.order.is_empty()).then(|| self.order[choices.index(self.order.len())])
    }
}

/// Lengths as compression makes them: many of a few sizes, some tiny, some that hardly shrank.
fn length(choices: &mut impl Choices) -> usize {
    match choices.index(8) {
        0 => 1 + choices.index(MAX_OBJECT_BYTES),
        1 => 1 + choices.index(64),
        2 => MAX_OBJECT_BYTES - choices.index(16),
        3 => 2048 - 8 + choices.index(16),
        _ => 700 + choices.index(1200),
    }
}

/// An object is pinned, filled or unpinned, or freed while it has no bytes.
fn pin_event(pool: &mut Pool, model: &mut Model, choices: &mut impl Choices) {
    let mut scratch = [0xa5; MAX_OBJECT_BYTES];
    let has_room = model.pinned.len() + model.unfilled.len() < MOST_PINNED;
    match choices.index(5) {
        0 if has_room => {
            let Some(h) = model.draw(choices) else { return };
            // SAFETY: `run` unpins all objects before it lets the pool go.
            #[allow(unsafe_code)]
            let pinned = unsafe { pool.pin(h) };
            model.pinned.extend(pinned.map(|pinned| (pinned, model.bytes[&h].clone())));
        }
        1 if has_room => {
            let bytes = object(choices.next(), length(choices));
            // SAFETY: as above.
            #[allow(unsafe_code)]
            if let Some(Ok((h, unfilled))) = unsafe { pool.place(bytes.len()) } {
                assert!(pool.holds(h) && pool.is_unfilled(h));
                model.unfilled.push((h, unfilled, bytes));
            }
        }
        2 if !model.pinned.is_empty() => {
            let at = choices.index(model.pinned.len());
            let (pinned, bytes) = model.pinned.swap_remove(at);
            let (copy, was_freed) = pinned.copy_to(&mut scratch);
            assert_eq!(copy, bytes);
            was_freed.inspect(|h| pool.bury(*h));
        }
        3 if !model.unfilled.is_empty() => {
            let at = choices.index(model.unfilled.len());
            let (h, unfilled, bytes) = model.unfilled.swap_remove(at);
            match unfilled.fill(&bytes) {
                Some(freed) => panic!("{freed:?} was not freed"),
                None => model.insert(h, bytes),
            }
        }
        _ if !model.unfilled.is_empty() => {
            let (h, unfilled, bytes) = model.unfilled.swap_remove(0);
            pool.free(h);
            model.dead.push(h);
            assert_eq!(unfilled.fill(&bytes), Some(h), "freed meanwhile");
            pool.bury(h);
        }
        _ => {}
    }
}

/// Runs events until there are so many, or no choices any more.
pub fn run(kind: PoolKind, choices: &mut impl Choices, events: usize) {
    let mut pool = Pool::new(kind);
    let mut model = Model::default();
    let mut scratch = [0; MAX_OBJECT_BYTES];
    // Each phase prefers stores or frees, so that the pool swells and drains.
    let mut store_share = 60;
    for event in 0..events {
        if choices.is_over() {
            break;
        }
        if event % 2000 == 0 {
            store_share = [20, 40, 55, 75][choices.index(4)];
            pool.set_max_frames(if choices.index(4) == 0 {
                choices.index(400)
            } else {
                usize::MAX
            });
            pool.fail_growth_after((choices.index(3) == 0).then(|| choices.index(3) as u64));
        }
        match choices.index(200) {
            0 => {
                let before = pool.used_frames();
                let freed = pool.compact(choices.index(40));
                assert_eq!(before.saturating_sub(pool.used_frames()), freed);
            }
            1 => {
                let before = pool.resident_frames();
                let released = pool.release_some(choices.index(500));
                assert_eq!(before - pool.resident_frames(), released);
            }
            2 => {
                let before = pool.used_frames();
                let keep = choices.next();
                let came_free = pool.reclaim(|h, bytes| {
                    assert_eq!(model.bytes[&h], bytes, "reclaim offers {h:?}");
                    let give_up = keep >> (h.to_raw() % 64) & 1 == 1;
                    if give_up {
                        model.remove(h);
                    }
                    give_up
                });
                assert_eq!(before - pool.used_frames(), came_free as usize);
            }
            30..60 => pin_event(&mut pool, &mut model, choices),
            3 => {
                for &h in model.dead.iter().rev().take(50) {
                    assert!(!pool.holds(h) && !pool.try_free(h), "{h:?} is dead");
                }
            }
            4..30 => {
                if let Some(h) = model.draw(choices) {
                    scratch.fill(0xa5);
                    assert_eq!(pool.read(h, &mut scratch), model.bytes[&h]);
                }
            }
            _ if choices.index(100) < store_share => {
                let bytes = object(choices.next(), length(choices));
                let before = (pool.used_frames(), pool.objects(), pool.object_bytes());
                match pool.store(&bytes) {
                    Ok(h) => model.insert(h, bytes),
                    Err(e) => {
                        assert!(matches!(e, PoolError::Full | PoolError::NoMemory));
                        assert_eq!(
                            before,
                            (pool.used_frames(), pool.objects(), pool.object_bytes())
                        );
                    }
                }
            }
            _ => {
                if let Some(h) = model.draw(choices) {
                    pool.free(h);
                    model.remove(h);
                }
            }
        }
        assert_eq!(pool.objects(), model.order.len() + model.unfilled.len());
        if event % 500 == 0 {
            pool.check();
            assert_eq!(pool.object_bytes(), model.object_bytes());
        }
    }
    while !model.pinned.is_empty() || !model.unfilled.is_empty() {
        pin_event(&mut pool, &mut model, choices);
    }
    for (&h, bytes) in &model.bytes {
        assert_eq!(pool.read(h, &mut scratch), *bytes);
    }
    // After thorough compaction nothing is lost, and nothing more can be freed.
    pool.fail_growth_after(None);
    pool.compact(usize::MAX);
    pool.for_each_class(|class| assert_eq!(class.freeable, 0, "{class}"));
    assert_eq!(pool.compact(usize::MAX), 0);
    pool.check();
    for (&h, bytes) in &model.bytes {
        assert_eq!(pool.read(h, &mut scratch), *bytes);
        pool.free(h);
    }
    pool.release();
    pool.check();
    assert_eq!((pool.used_frames(), pool.object_bytes()), (0, 0));
}
