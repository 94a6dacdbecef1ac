//! Every interleaving of taking and giving back a slot, by loom:
//! `RUSTFLAGS="--cfg loom" cargo test -p uzswap --release --test loom_slot`.
#![cfg(loom)]

use loom::sync::Arc;
use loom::thread;
use uzswap::sys::slot::Slot;

/// Takes the first free of two slots as `Streams::with` does, and changes the value in two steps:
/// loom's cell reports any access that is not exclusive.
fn use_one(slots: &[Slot<(u32, u32)>; 2], first: usize) -> bool {
    for index in [first, 1 - first] {
        if let Some(taken) = slots[index].try_take() {
            taken.with(|value| {
                assert_eq!(value.0, value.1, "taken in the middle of a change");
                value.0 += 1;
                thread::yield_now();
                value.1 += 1;
            });
            return true;
        }
    }
    false
}

#[test]
fn a_slot_has_one_taker_and_the_next_one_sees_its_work() {
    loom::model(|| {
        let slots = Arc::new([Slot::new((0, 0)), Slot::new((0, 0))]);
        let other = {
            let slots = slots.clone();
            thread::spawn(move || u32::from(use_one(&slots, 0)) + u32::from(use_one(&slots, 1)))
        };
        // This one may miss both, when the other changes from one to the other in between:
        // `Streams` tries again.
        let used = u32::from(use_one(&slots, 0)) + other.join().unwrap();
        assert!(used >= 2, "the other has a free one each time");
        let mut sum = 0;
        for slot in slots.iter() {
            slot.try_take().expect("given back").with(|value| sum += value.0);
        }
        assert_eq!(sum, used);
    });
}

#[test]
fn three_takers_of_one_slot() {
    loom::model(|| {
        let slot = Arc::new(Slot::new((0, 0)));
        let one = |slot: &Slot<(u32, u32)>| match slot.try_take() {
            Some(taken) => taken.with(|value| {
                assert_eq!(value.0, value.1);
                value.0 += 1;
                value.1 += 1;
                1
            }),
            None => 0,
        };
        let others: Vec<_> = (0..2)
            .map(|_| {
                let slot = slot.clone();
                thread::spawn(move || one(&slot))
            })
            .collect();
        let mine = one(&slot);
        let used = mine + others.into_iter().map(|t| t.join().unwrap()).sum::<u32>();
        assert!(used >= 1, "somebody is first");
        slot.try_take().expect("given back").with(|value| assert_eq!(*value, (used, used)));
    });
}
