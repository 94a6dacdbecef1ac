//! Every interleaving of the users of a pinned object and of its owner, by loom:
//! `RUSTFLAGS="--cfg loom" cargo test -p uzswap --release --test loom_pin`.
#![cfg(loom)]
#![allow(unsafe_code)]

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex};
use loom::thread;
use uzswap::sys::pin::PinCount;

/// An object with its pins. Loom's cell reports a read beside a write.
struct Object {
    pins: PinCount,
    bytes: UnsafeCell<u32>,
    /// The owner's lock, and how often the object's place came free.
    ends: Mutex<u32>,
}

impl Object {
    fn new() -> Arc<Object> {
        Arc::new(Object {
            pins: PinCount::default(),
            bytes: UnsafeCell::new(7),
            ends: Mutex::new(0),
        })
    }

    /// The place is another object's from now on.
    fn reuse(&self, ends: &mut u32) {
        *ends += 1;
        // SAFETY: the test is about whether anybody has the bytes now; loom tells.
        self.bytes.with_mut(|bytes| unsafe { *bytes = 9 });
    }

    fn read(&self) {
        // SAFETY: as above.
        assert_eq!(self.bytes.with(|bytes| unsafe { *bytes }), 7);
    }

    /// The last user tells the owner.
    fn bury(&self) {
        let mut ends = self.ends.lock().unwrap();
        self.pins.clear();
        self.reuse(&mut ends);
    }

    fn free(&self) {
        let mut ends = self.ends.lock().unwrap();
        if self.pins.end() {
            self.reuse(&mut ends);
        }
    }
}

#[test]
fn the_place_of_an_object_is_used_again_once_and_after_its_last_user() {
    loom::model(|| {
        let object = Object::new();
        let users: Vec<_> = (0..2)
            .map(|_| {
                let object = object.clone();
                object.pins.pin();
                thread::spawn(move || {
                    object.read();
                    if object.pins.unpin() {
                        object.bury();
                    }
                })
            })
            .collect();
        object.free();
        users.into_iter().for_each(|user| user.join().unwrap());
        assert_eq!(*object.ends.lock().unwrap(), 1);
        assert!(!object.pins.is_pinned());
    });
}

#[test]
fn an_object_that_is_being_made_is_not_read_and_may_be_freed() {
    loom::model(|| {
        let object = Object::new();
        object.pins.pin_unfinished();
        let maker = {
            let object = object.clone();
            thread::spawn(move || {
                // SAFETY: loom tells whether anybody reads meanwhile.
                object.bytes.with_mut(|bytes| unsafe { *bytes = 7 });
                if object.pins.unpin_finished() {
                    object.bury();
                }
            })
        };
        if !object.pins.is_unfinished() {
            object.read();
        }
        object.free();
        maker.join().unwrap();
        assert_eq!(*object.ends.lock().unwrap(), 1);
    });
}
