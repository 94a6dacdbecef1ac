//! The thread that keeps a run's store on servers or a device. It counts in the claims of exports,
//! renews the leases of values, and empties the extents of processes that are gone, so that others
//! can lease them. At the end it gives all of them back.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use uzswap::control::{Settings, Tree};
use uzswap::store::extents::EXTENTS_MOST;

use super::claim::BEAT;
use crate::console;
use crate::control::Run;
use crate::os;

/// How long a process has been gone before another may lease its extents, in beats. A server may
/// still have to read writes that were sent before the process was killed, and they would overwrite
/// the other's pages.
const GRACE_BEATS: u8 = 3;
/// The part of a beat in which extents of processes that are gone are emptied. Extents that are
/// left over are emptied after the next beat: a process that had many must not keep the values of
/// others from being renewed.
const EMPTIES_WITHIN: Duration = Duration::from_millis(700);
/// How long processes that are ending are waited for, at the end.
const ENDS_WITHIN: Duration = Duration::from_millis(500);
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// The time between two tries to empty extents at the end.
const ONCE_MORE_AFTER: Duration = Duration::from_millis(3100);
/// The value in place of a lessee which says that nobody may lease the extent any more.
const CLOSED: u32 = u32::MAX;

/// A store that the keeper keeps: exports, a device, or the values of servers.
pub trait Kept: Send + std::fmt::Debug {
    /// Writes the store's place into the settings.
    fn put(&self, settings: &mut Settings);
    /// Takes the store, before the program starts.
    fn claim(&mut self) -> Result<(), String>;
    /// The program runs: nobody is to wait for a server for long.
    fn hurry(&mut self) {}
    /// Whether processes that the program leaves behind need somebody who keeps it.
    fn outlives_the_program(&self) -> bool {
        false
    }
    /// Does the work of a beat, once a second.
    fn beat(&mut self, run: &Run);
    /// Empties an extent. False: its server does not answer.
    fn give_back(&mut self, extent: usize) -> bool;
    /// Gives the store up. `is_used`: processes are left that use it.
    fn release(&mut self, is_used: bool) -> Result<(), String>;
    /// For messages.
    fn shown(&self) -> String;
}

/// The work of the thread; it returns the store that it was given.
type Keep = Box<dyn FnOnce() -> Box<dyn Kept> + Send>;

/// See the module.
pub struct Keeper {
    thread: JoinHandle<Box<dyn Kept>>,
    ends: Sender<()>,
    run: Arc<Run>,
    stays: Option<String>,
    /// No extent is leased out any more.
    is_closed: Arc<AtomicBool>,
}

impl Keeper {
    /// `None`: there is no thread for it. Then nobody counts, that is all.
    pub fn start(kept: Box<dyn Kept>, run: Arc<Run>) -> Option<Keeper> {
        let builder = thread::Builder::new().name("uzswap-leases".to_string());
        Self::start_by(kept, run, |keep| builder.spawn(keep))
    }

    /// `spawn`: begins a thread.
    fn start_by(
        kept: Box<dyn Kept>,
        run: Arc<Run>,
        spawn: impl FnOnce(Keep) -> io::Result<JoinHandle<Box<dyn Kept>>>,
    ) -> Option<Keeper> {
        let (ends, end) = mpsc::channel();
        let (gives, given) = mpsc::channel::<Box<dyn Kept>>();
        let keeps = run.clone();
        let stays = kept.outlives_the_program().then(|| kept.shown());
        let is_closed = Arc::new(AtomicBool::new(false));
        let closed = is_closed.clone();
        let keep = move || {
            let mut kept = given.recv().expect("whoever begins the thread gives it");
            kept.hurry();
            let mut gone = vec![0u8; EXTENTS_MOST];
            while end.recv_timeout(BEAT) == Err(RecvTimeoutError::Timeout) {
                // A server that is down is none of our business: the processes say it.
                kept.beat(&keeps);
                lease_again(&mut *kept, &keeps, &mut gone, &closed);
            }
            kept
        };
        let Ok(thread) = spawn(Box::new(keep)) else {
            // The program runs and may have pages there: a store that is dropped is given up, and
            // emptied at both ends.
            std::mem::forget(kept);
            return None;
        };
        let _ = gives.send(kept);
        Some(Keeper { thread, ends, run, stays, is_closed })
    }

    /// Ends the keeping once the program has ended. Processes left behind are waited for where they
    /// need that, until a signal asks us to end: the caller is the thread that takes signals.
    /// Returns a last message, if there is one.
    pub fn finish(self, is_quiet: bool) -> Option<String> {
        let mut is_used = !wait_for_end(&self.run);
        if let Some(shown) = &self.stays {
            // Nobody would renew extents that are leased from now on.
            self.is_closed.store(true, Ordering::Release);
            close(self.run.tree);
            // A signal that came before the message is no answer to it: a Ctrl-C that ended the
            // program.
            while os::is_asked_to_end_within(Duration::ZERO) {}
            if is_used && !is_quiet {
                console::say(&format!(
                    "waits for processes that the program left behind: their pages are on {shown}"
                ));
            }
            while is_used && !os::is_asked_to_end_within(BEAT) {
                is_used = owners(self.run.tree).any(|owner| is_wanted(&self.run, owner));
            }
            // The signal may have ended them, too.
            is_used = is_used && !wait_for_end(&self.run);
        }
        drop(self.ends);
        let mut kept = self.thread.join().ok()?;
        let is_left = |extent: &usize| {
            let owner = owner_of(self.run.tree, *extent);
            owner != 0 && !(is_used && is_wanted(&self.run, owner))
        };
        let left: Vec<usize> = (0..EXTENTS_MOST).filter(is_left).collect();
        let failed: Vec<usize> = left.into_iter().filter(|e| !kept.give_back(*e)).collect();
        if !failed.is_empty() && self.stays.is_some() {
            // Another node may have taken over by then.
            thread::sleep(ONCE_MORE_AFTER);
            failed.into_iter().for_each(|extent| _ = kept.give_back(extent));
        }
        let said = is_used.then(|| match &self.stays {
            Some(shown) => format!(
                "processes that the program left behind lose their pages on {shown}: nobody renews \
                 them any more"
            ),
            None => format!(
                "processes that the program left behind still use {}, until they end",
                kept.shown()
            ),
        });
        let released = kept.release(is_used).map_err(|why| {
            format!("what the program wrote to a server could not be taken away: {why}")
        });
        released.err().or(said)
    }
}

/// Waits a moment until no process uses extents any more. False: some still do.
fn wait_for_end(run: &Run) -> bool {
    let mut waited = Duration::ZERO;
    while owners(run.tree).any(|owner| is_wanted(run, owner)) {
        if waited >= ENDS_WITHIN {
            return false;
        }
        thread::sleep(LOOK_AGAIN);
        waited += LOOK_AGAIN;
    }
    true
}

/// The process that leases an extent; 0: none.
pub fn owner_of(tree: &Tree, extent: usize) -> u32 {
    match tree.leases[extent].load(Ordering::Acquire) {
        CLOSED => 0,
        owner => owner,
    }
}

/// The processes that lease extents, one for each extent that is leased.
fn owners(tree: &Tree) -> impl Iterator<Item = u32> {
    (0..EXTENTS_MOST).map(|extent| owner_of(tree, extent)).filter(|owner| *owner != 0)
}

/// No process leases an extent any more: those that have one go on.
fn close(tree: &Tree) {
    for lease in &tree.leases {
        let _ = lease.compare_exchange(0, CLOSED, Ordering::AcqRel, Ordering::Relaxed);
    }
}

fn is_wanted(run: &Run, owner: u32) -> bool {
    run.tree.is_lease_wanted(owner, |s| !run.tree.is_gone(s, run.control_fd))
}

/// Leases extents of processes that are gone for good out again; once that `is_closed`, only
/// empties them.
fn lease_again(kept: &mut dyn Kept, run: &Run, gone: &mut [u8], is_closed: &AtomicBool) {
    let began = Instant::now();
    // Extents of one process lie beside each other mostly.
    let mut last = (0, true);
    for (extent, beats) in gone.iter_mut().enumerate() {
        let lease = &run.tree.leases[extent];
        let owner = owner_of(run.tree, extent);
        if owner != 0 && owner != last.0 {
            last = (owner, is_wanted(run, owner));
        }
        if owner == 0 || last.1 {
            *beats = 0;
            continue;
        }
        *beats = beats.saturating_add(1);
        let is_due = *beats >= GRACE_BEATS && began.elapsed() < EMPTIES_WITHIN;
        if is_due && kept.give_back(extent) {
            *beats = 0;
            let next = if is_closed.load(Ordering::Acquire) { CLOSED } else { 0 };
            let _ = lease.compare_exchange(owner, next, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::ControlBlock;
    use std::sync::Mutex;

    /// A store that notes what is done with it, and whose server may be gone.
    #[derive(Debug, Default)]
    struct Noted {
        emptied: Arc<Mutex<Vec<usize>>>,
        released: Arc<Mutex<Option<bool>>>,
        is_gone: bool,
    }

    impl Kept for Noted {
        fn put(&self, _: &mut Settings) {}

        fn claim(&mut self) -> Result<(), String> {
            Ok(())
        }

        fn beat(&mut self, _: &Run) {}

        fn give_back(&mut self, extent: usize) -> bool {
            self.emptied.lock().unwrap().extend((!self.is_gone).then_some(extent));
            !self.is_gone
        }

        fn release(&mut self, is_used: bool) -> Result<(), String> {
            *self.released.lock().unwrap() = Some(is_used);
            Ok(())
        }

        fn shown(&self) -> String {
            "it".to_string()
        }
    }

    fn run() -> Run {
        // Kept for ever: its mapping is.
        let block: &'static ControlBlock =
            Box::leak(Box::new(ControlBlock::create(&Settings::new()).unwrap()));
        let (tree, control_fd) = (block.tree(), block.fd());
        Run { id: 1, tree, control_fd, command: Vec::new(), started: Instant::now() }
    }

    /// Leases an extent to somebody.
    fn lease(run: &Run, extent: usize, owner: u32) {
        run.tree.leases[extent].store(owner, Ordering::Release);
    }

    fn emptied(kept: &Noted) -> Vec<usize> {
        kept.emptied.lock().unwrap().clone()
    }

    fn lessee(run: &Run, extent: usize) -> u32 {
        run.tree.leases[extent].load(Ordering::Acquire)
    }

    #[test]
    fn extents_of_who_is_gone_are_leased_again_after_a_while_until_that_is_closed() {
        let (run, mut kept, mut gone) = (run(), Noted::default(), vec![0; EXTENTS_MOST]);
        let is_closed = AtomicBool::new(false);
        let here = run.tree.claim(std::process::id()).unwrap().lease_owner();
        let away = here + 1;
        lease(&run, 0, here);
        lease(&run, 1, away);
        for _ in 1..GRACE_BEATS {
            lease_again(&mut kept, &run, &mut gone, &is_closed);
        }
        assert_eq!((lessee(&run, 1), emptied(&kept).len()), (away, 0), "it may still write");
        lease_again(&mut kept, &run, &mut gone, &is_closed);
        assert_eq!((lessee(&run, 0), lessee(&run, 1)), (here, 0));
        // An extent that is leased again has its grace anew, and processes that are left behind
        // lease nothing.
        lease(&run, 1, away);
        is_closed.store(true, Ordering::Release);
        close(run.tree);
        for _ in 1..GRACE_BEATS {
            lease_again(&mut kept, &run, &mut gone, &is_closed);
        }
        assert_eq!(lessee(&run, 1), away);
        lease_again(&mut kept, &run, &mut gone, &is_closed);
        assert_eq!((lessee(&run, 0), lessee(&run, 1), lessee(&run, 2)), (here, CLOSED, CLOSED));
        assert_eq!((owner_of(run.tree, 1), emptied(&kept)), (0, vec![1, 1]));
    }

    #[test]
    fn a_store_that_no_thread_keeps_is_not_given_up_while_the_program_runs() {
        let kept = Noted::default();
        let emptied = kept.emptied.clone();
        let begun = Keeper::start_by(Box::new(kept), Arc::new(run()), |_| {
            Err(io::Error::from(io::ErrorKind::WouldBlock))
        });
        assert!(begun.is_none());
        assert_eq!(Arc::strong_count(&emptied), 2, "it is not dropped");
    }

    #[test]
    fn extents_whose_server_is_gone_stay_leased_until_it_is_back() {
        let (run, mut gone, is_closed) = (run(), vec![0; EXTENTS_MOST], AtomicBool::new(false));
        let mut kept = Noted { is_gone: true, ..Noted::default() };
        [3, 4, 9].into_iter().for_each(|extent| lease(&run, extent, 7));
        for _ in 0..300 {
            lease_again(&mut kept, &run, &mut gone, &is_closed);
        }
        assert!([3, 4, 9].into_iter().all(|extent| lessee(&run, extent) == 7));
        kept.is_gone = false;
        lease_again(&mut kept, &run, &mut gone, &is_closed);
        assert_eq!(emptied(&kept), [3, 4, 9]);
        assert_eq!(owners(run.tree).count(), 0);
    }

    #[test]
    fn at_the_end_extents_are_emptied_but_for_those_of_processes_that_go_on() {
        let (run, kept) = (Arc::new(run()), Noted::default());
        let (emptied, released) = (kept.emptied.clone(), kept.released.clone());
        let here = run.tree.claim(std::process::id()).unwrap().lease_owner();
        lease(&run, 0, here);
        lease(&run, 5, here + 1);
        lease(&run, EXTENTS_MOST - 1, here + 2);
        let said = Keeper::start(Box::new(kept), run.clone()).unwrap().finish(true);
        assert!(said.is_some_and(|said| said.contains("still use it")));
        assert_eq!(*emptied.lock().unwrap(), [5, EXTENTS_MOST - 1]);
        assert_eq!(*released.lock().unwrap(), Some(true));
    }
}
