//! A signal that waits in our memory, as the kernel's would: the first one that came, with what the
//! sender has told.

use core::sync::atomic::{AtomicU64, Ordering};

/// Words of `struct siginfo`.
pub const INFO_WORDS: usize = 16;

/// `struct siginfo`, as words.
pub type Info = [u64; INFO_WORDS];

/// One signal, or none.
pub struct Sent {
    /// In the two lowest bits what is there; above them how often that has changed.
    state: AtomicU64,
    words: [AtomicU64; INFO_WORDS],
}

const NOTHING: u64 = 0;
const WRITING: u64 = 1;
const THERE: u64 = 2;
const KIND: u64 = 3;
const CHANGE: u64 = 4;

impl Sent {
    pub const fn new() -> Sent {
        Sent { state: AtomicU64::new(NOTHING), words: [const { AtomicU64::new(0) }; INFO_WORDS] }
    }

    /// Puts a signal there, unless there is one already. Called with all signals blocked.
    pub fn put(&self, info: &Info) {
        let state = self.state.load(Ordering::SeqCst);
        if state & KIND != NOTHING {
            return;
        }
        let writes =
            self.state.compare_exchange(state, state + WRITING, Ordering::SeqCst, Ordering::SeqCst);
        if writes.is_ok() {
            self.words.iter().zip(info).for_each(|(to, from)| to.store(*from, Ordering::Relaxed));
            self.state.store(state + THERE, Ordering::SeqCst);
        }
    }

    /// Takes the signal. One that another thread takes at the same time is that one's.
    pub fn take(&self) -> Option<Info> {
        let state = self.state.load(Ordering::SeqCst);
        if state & KIND != THERE {
            return None;
        }
        let info = core::array::from_fn(|i| self.words[i].load(Ordering::Acquire));
        let nothing = (state & !KIND) + CHANGE;
        self.state
            .compare_exchange(state, nothing, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
            .then_some(info)
    }

    pub fn is_there(&self) -> bool {
        self.state.load(Ordering::SeqCst) & KIND == THERE
    }

    /// Forgets the signal, and one that a thread was putting there which is gone.
    pub fn forget(&self) {
        self.state.store(NOTHING, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_two_signals_waits() {
        let sent = Sent::new();
        assert!(!sent.is_there() && sent.take().is_none());
        for info in [[7; INFO_WORDS], [8; INFO_WORDS]] {
            sent.put(&info);
        }
        assert!(sent.is_there());
        assert_eq!((sent.take(), sent.take()), (Some([7; INFO_WORDS]), None));
        sent.put(&[9; INFO_WORDS]);
        sent.forget();
        assert!(!sent.is_there());
        sent.put(&[10; INFO_WORDS]);
        assert_eq!(sent.take(), Some([10; INFO_WORDS]));
    }
}
