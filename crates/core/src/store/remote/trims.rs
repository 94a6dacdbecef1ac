//! Requests to give space back (TRIM), whose answers nobody waits for: a thread that frees pages
//! may hold the pager's lock.
//!
//! A server may carry requests out in any order. So a write to a place is sent after the answer to
//! the TRIM of it. A TRIM whose connection has ended may be read by the server all the same, as
//! long as it is believed to be slow; after the time of a write it is forgotten.

use core::ops::Range;

use super::link::{Failure, Link, TRIMS_MOST, Ticket};
use crate::nbd::CMD_TRIM;
use crate::sys::Errno;
use crate::sys::socket::Patience;

/// How long whoever frees pages waits for room for another request, in all, until nothing is given
/// back for a time: a thousand times as long as a server needs.
const STALL_NS: u64 = 100_000_000;
/// The pause between two looks.
const LOOK_NS: u64 = 200_000;

#[derive(Clone, Copy)]
struct Trim {
    at: u64,
    end: u64,
    ticket: Ticket,
    sent_ns: u64,
}

/// The requests of one link that are under way.
pub(super) struct Trims {
    under_way: [Option<Trim>; TRIMS_MOST],
    /// The time before which nothing is given back, as the server is slow.
    not_before_ns: u64,
}

impl Trims {
    pub(super) const fn new() -> Trims {
        Trims { under_way: [None; TRIMS_MOST], not_before_ns: 0 }
    }

    /// Sends a request, if there is room for it soon; an error is that of the connection.
    /// `most_ns`: the time of a write.
    pub(super) fn send(
        &mut self,
        link: &mut Link,
        at: u64,
        len: usize,
        most_ns: u64,
    ) -> Result<(), Failure> {
        let mut patience = Patience::new(STALL_NS);
        loop {
            let now_ns = crate::sys::now_ns();
            self.look(link, most_ns);
            if now_ns < self.not_before_ns || !link.is_open() {
                return Ok(());
            }
            if let Some(free) = self.under_way.iter_mut().find(|trim| trim.is_none())
                && link.can_send()
            {
                let ticket = link.send(CMD_TRIM, at, len, &[], &mut Patience::new(most_ns))?;
                *free = Some(Trim { at, end: at + len as u64, ticket, sent_ns: now_ns });
                return Ok(());
            }
            if patience.is_over() {
                self.not_before_ns = now_ns + most_ns;
                return Ok(());
            }
            patience.sleep(LOOK_NS);
        }
    }

    /// Waits until no TRIM of a byte of that place can be carried out any more. An error: it may
    /// still be.
    pub(super) fn settle(
        &mut self,
        link: &mut Link,
        place: Range<u64>,
        most_ns: u64,
        patience: &mut Patience,
    ) -> Result<(), Failure> {
        loop {
            if self
                .under_way
                .iter()
                .flatten()
                .all(|trim| trim.end <= place.start || place.end <= trim.at)
            {
                return Ok(());
            }
            self.look(link, most_ns);
            if patience.is_over() {
                return Err(Failure::Broken(Errno::ETIMEDOUT));
            }
            patience.sleep(LOOK_NS);
        }
    }

    /// Forgets the requests that have been answered, and those that never will be.
    fn look(&mut self, link: &mut Link, most_ns: u64) {
        let now_ns = crate::sys::now_ns();
        let is_over = |trim: &Trim| now_ns.saturating_sub(trim.sent_ns) >= most_ns;
        for place in &mut self.under_way {
            let Some(trim) = *place else { continue };
            match link.result(trim.ticket, false, &mut Patience::new(0)) {
                Some(Ok(()) | Err(Failure::Refused(_))) => *place = None,
                Some(Err(Failure::Broken(_))) if is_over(&trim) => *place = None,
                None if is_over(&trim) => {
                    link.give_up();
                    *place = None;
                }
                Some(Err(Failure::Broken(_))) | None => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::Server;
    use super::super::hostile::{Hostile, Mode};
    use super::*;

    const LEN: usize = 4096;
    /// For what comes at once, and in tests that a busy machine slows down.
    const LONG_NS: u64 = 60_000_000_000;
    const SHORT_NS: u64 = 300_000_000;

    fn connected(name: &str) -> (Hostile, Server, Link) {
        let path: PathBuf =
            std::env::temp_dir().join(format!("uzswap-trims-{}-{name}", std::process::id()));
        let hostile = Hostile::start(&path, 1 << 20);
        let address = [&[1, 0], path.as_os_str().as_encoded_bytes(), &[0]].concat();
        let server = Server::new(&address, b"x").expect("a short path");
        let mut link = Link::new();
        link.open(&server, &mut Patience::new(LONG_NS)).expect("it is there");
        (hostile, server, link)
    }

    fn place(at: u64) -> Range<u64> {
        at..at + LEN as u64
    }

    fn under_way(trims: &Trims) -> usize {
        trims.under_way.iter().flatten().count()
    }

    #[test]
    fn whoever_frees_much_waits_once_for_a_server_that_is_silent() {
        let (server, _, mut link) = connected("silent");
        let mut trims = Trims::new();
        server.set(Mode::Silent);
        let mut send = |at: usize| trims.send(&mut link, (at * LEN) as u64, LEN, LONG_NS);
        assert!((0..TRIMS_MOST + 1).all(|at| send(at) == Ok(())));
        let not_before_ns = trims.not_before_ns;
        assert!(not_before_ns > 0 && link.is_open());
        // Not even where there would be room.
        trims.under_way[3] = None;
        assert_eq!(trims.send(&mut link, 0, LEN, LONG_NS), Ok(()));
        assert_eq!((under_way(&trims), trims.not_before_ns), (TRIMS_MOST - 1, not_before_ns));
        link.close();
    }

    #[test]
    fn more_than_can_be_under_way_are_carried_out_by_and_by() {
        let (server, _, mut link) = connected("many");
        server.put(0, &[7; 1 << 20]);
        let mut trims = Trims::new();
        // A busy machine may let the test wait longer than a server is waited for.
        for at in (0..1u64 << 20).step_by(LEN) {
            trims.not_before_ns = 0;
            trims.send(&mut link, at, LEN, LONG_NS).unwrap();
            trims
                .settle(&mut link, place(at & !0xffff), LONG_NS, &mut Patience::new(LONG_NS))
                .unwrap();
        }
        for at in (0..1u64 << 20).step_by(LEN) {
            trims.settle(&mut link, place(at), LONG_NS, &mut Patience::new(LONG_NS)).unwrap();
        }
        assert_eq!((under_way(&trims), server.contents()), (0, vec![0; 1 << 20]));
        link.close();
    }

    #[test]
    fn a_place_is_written_to_once_its_trim_is_answered_or_was_given_up() {
        let (server, address, mut link) = connected("place");
        let mut trims = Trims::new();
        let patience = || Patience::new(LONG_NS);
        server.set_delay(std::time::Duration::from_millis(50));
        trims.send(&mut link, 0, LEN, LONG_NS).unwrap();
        assert_eq!(
            trims.settle(&mut link, place(LEN as u64), LONG_NS, &mut Patience::new(0)),
            Ok(())
        );
        assert_eq!(trims.settle(&mut link, place(0), LONG_NS, &mut patience()), Ok(()));
        assert_eq!(server.trimmed(), LEN as u64);
        server.set(Mode::Silent);
        trims.send(&mut link, 0, LEN, LONG_NS).unwrap();
        let timed_out = Err(Failure::Broken(Errno::ETIMEDOUT));
        assert_eq!(
            trims.settle(&mut link, place(0), LONG_NS, &mut Patience::new(SHORT_NS)),
            timed_out
        );
        // The server may read it though the connection has ended, and a new one is no answer.
        server.hang_up();
        while link.is_open() {
            trims.look(&mut link, LONG_NS);
        }
        server.set(Mode::Honest);
        link.open(&address, &mut patience()).unwrap();
        assert_eq!(
            trims.settle(&mut link, place(0), LONG_NS, &mut Patience::new(SHORT_NS)),
            timed_out
        );
        assert_eq!(trims.settle(&mut link, place(0), SHORT_NS, &mut patience()), Ok(()));
        assert!(link.is_open());
        // One that is never answered ends the connection, after the time of a write.
        server.set(Mode::Silent);
        trims.send(&mut link, 0, LEN, LONG_NS).unwrap();
        assert_eq!(trims.settle(&mut link, place(0), SHORT_NS, &mut patience()), Ok(()));
        assert!(!link.is_open());
        link.close();
    }
}
