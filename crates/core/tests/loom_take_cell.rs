//! Every interleaving of taking and giving back a cell, by loom:
//! `RUSTFLAGS="--cfg loom" cargo test -p uzswap --release --test loom_take_cell`.
#![cfg(loom)]

use loom::sync::Arc;
use loom::thread;
use uzswap::sys::take_cell::TakeCell;

/// Takes the first free of two cells as `Streams::with` does, and changes the value in two steps:
/// loom's cell reports any access that is not exclusive.
fn use_one(cells: &[TakeCell<(u32, u32)>; 2], first: usize) -> bool {
    for index in [first, 1 - first] {
        if let Some(taken) = cells[index].try_take() {
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
        let cells = Arc::new([TakeCell::new((0, 0)), TakeCell::new((0, 0))]);
        let other = {
            let cells = cells.clone();
            thread::spawn(move || u32::from(use_one(&cells, 0)) + u32::from(use_one(&cells, 1)))
        };
        // This one may miss both, when the other changes from one to the other in between:
        // `Streams` tries again.
        let used = u32::from(use_one(&cells, 0)) + other.join().unwrap();
        assert!(used >= 2, "the other has a free one each time");
        let mut sum = 0;
        for cell in cells.iter() {
            cell.try_take().expect("given back").with(|value| sum += value.0);
        }
        assert_eq!(sum, used);
    });
}

#[test]
fn three_takers_of_one_slot() {
    loom::model(|| {
        let cell = Arc::new(TakeCell::new((0, 0)));
        let one = |cell: &TakeCell<(u32, u32)>| match cell.try_take() {
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
                let cell = cell.clone();
                thread::spawn(move || one(&cell))
            })
            .collect();
        let mine = one(&cell);
        let used = mine + others.into_iter().map(|t| t.join().unwrap()).sum::<u32>();
        assert!(used >= 1, "somebody is first");
        cell.try_take().expect("given back").with(|value| assert_eq!(*value, (used, used)));
    });
}
