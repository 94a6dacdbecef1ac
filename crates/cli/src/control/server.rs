//! The server of one run: threads of `uzswap run` beside the one that supervises the program.
//!
//! ```text
//!  accept ──> one thread per connection: is it the user? ─> a line, in time ─> Run does it ─> a line back
//! ```
//! Only the user and root get an answer, whatever the file permissions are worth (a file system may
//! have none). Connections are few at a time and short; one too many is turned away, so that the
//! run itself never suffers.
//!
//! The threads are made with all signals blocked, as the supervisor has them: signals are its
//! business.

use std::ffi::OsString;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::{MsgFlags, getsockopt, recv, sockopt::PeerCredentials};
use uzswap::control::Slot;
use uzswap::control::orders::ALL_PAGES;

use super::directory::{self, Named};
use super::protocol::{self, BroughtIn, Changed, REQUEST_BYTES, Reclaimed, Request, parse_amount};
use super::run::Run;
use super::state::{PAGE_BYTES, ProcessState};
use crate::options::Given;
use crate::private::Fault;
use crate::settings::compression::{self, Words};
use crate::{os, procfs, settings};

/// Connections at one time.
const CONNECTIONS_MAX: usize = 16;
/// The time within which a request must arrive, and a reply be taken.
const PATIENCE: Duration = Duration::from_secs(5);
const STACK_BYTES: usize = 256 << 10;
/// The time between two looks at the progress of a reclaim, and the time without progress after
/// which it is given up.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
const STUCK_AFTER: Duration = Duration::from_secs(60);
/// The pause after an error of accept, for instance too many open files.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// A reclaim that was asked of one process.
struct Asked<'a> {
    pid: u32,
    slot: &'a Slot,
    number: u32,
    before_bytes: u64,
    /// The reason why the process cannot do it, if there is one.
    fault: Option<&'static str>,
}

impl Run {
    /// Does what a request asks for. Returns the reply as a line.
    fn answer(&self, request: Request, stream: &UnixStream) -> String {
        let is_given_up = || has_gone(stream);
        match request {
            Request::List => protocol::reply_line(Ok(self.state())),
            Request::Set { memory, compression } => {
                protocol::reply_line(self.set(memory, &compression))
            }
            Request::Reclaim { pid, amount } => {
                protocol::reply_line(self.reclaim(pid, &amount, &is_given_up))
            }
            Request::BringIn { pid } => protocol::reply_line(self.bring_in(pid, &is_given_up)),
        }
    }

    /// Changes the limit, and how the run compresses; nothing, if any of it is wrong.
    fn set(&self, memory: Option<String>, words: &Words) -> Result<Changed, String> {
        let mut remarks = Vec::new();
        let before = self.tree.tuning.get().unwrap_or(compression::default());
        let now = words.change(before)?;
        let (before_pages, pages) = match memory {
            Some(memory) => self.set_limit(memory, &mut remarks)?,
            None if words.is_empty() => return Err("nothing is to be set".to_string()),
            None => [self.tree.limit_pages.load(Ordering::Acquire); 2].into(),
        };
        if now != before {
            self.tree.tuning.set(&now);
        }
        self.live().for_each(|(_, slot)| slot.orders.ring());
        let tuned = compression::said(&now).into_iter().zip(compression::said(&before));
        Ok(Changed {
            run: self.id,
            before_bytes: before_pages.max(0) as u64 * PAGE_BYTES,
            limit_bytes: pages.max(0) as u64 * PAGE_BYTES,
            remarks,
            tuned: tuned
                .filter(|(now, before)| now != before)
                .map(|((option, now), (_, before))| (option.to_string(), now, before))
                .collect(),
        })
    }

    /// Changes the limit; returns the one before and the new one, in pages. A process above it
    /// notices: an active one within a tick, a dormant one by the ring.
    fn set_limit(&self, memory: String, remarks: &mut Vec<String>) -> Result<(i64, i64), String> {
        let given = Given { value: memory, origin: "--memory".to_string() };
        let bytes =
            settings::memory(Some(given), remarks).map_err(|failure| failure.message)?.bytes;
        let pages = i64::try_from(bytes / PAGE_BYTES).unwrap_or(i64::MAX);
        // Ends what follows the memory group, also where the limit stays as it is.
        self.tree.lowest_limit_pages.store(-1, Ordering::Release);
        Ok((self.tree.limit_pages.swap(pages, Ordering::AcqRel), pages))
    }

    /// Has memory reclaimed from a process, or from all, and waits until that is done. An amount
    /// for all is spread by what they hold.
    fn reclaim(
        &self,
        pid: Option<u32>,
        amount: &str,
        is_given_up: &dyn Fn() -> bool,
    ) -> Result<Vec<Reclaimed>, String> {
        let targets = self.targets(pid)?;
        let whole_bytes: u64 = targets.iter().map(|(_, p)| p.used_bytes).sum();
        let bytes = parse_amount(amount)?.map(|size| size.of(whole_bytes));
        let asked: Vec<Asked> = targets
            .iter()
            .map(|(slot, p)| {
                let before_bytes = procfs::anonymous_bytes(p.pid).unwrap_or(0);
                let part =
                    |all| (all as u128 * p.used_bytes as u128 / whole_bytes.max(1) as u128) as u64;
                let pages = bytes.map_or(ALL_PAGES, |all| part(all).div_ceil(PAGE_BYTES));
                let fault = match () {
                    () if !slot.orders.has_listener() => Some("is too small to be paged"),
                    () if procfs::is_stopped(p.pid) => Some("is stopped"),
                    () => None,
                };
                let number = if fault.is_none() { slot.orders.ask_reclaim(pages) } else { 0 };
                Asked { pid: p.pid, slot, number, before_bytes, fault }
            })
            .collect();
        Ok(asked.into_iter().map(|a| wait(a, is_given_up)).collect())
    }

    /// Has a process, or all, bring in what is out as far as the limit has room, and waits until
    /// that is done.
    fn bring_in(
        &self,
        pid: Option<u32>,
        is_given_up: &dyn Fn() -> bool,
    ) -> Result<Vec<BroughtIn>, String> {
        let asked = self.targets(pid)?.into_iter().map(|(slot, p)| {
            let before_bytes = procfs::anonymous_bytes(p.pid).unwrap_or(0);
            let is_whole = slot.mechanism().is_none();
            let fault = match () {
                () if is_whole => None,
                () if !slot.orders.has_listener() => Some("has no thread to bring it in"),
                () if procfs::is_stopped(p.pid) => Some("is stopped"),
                () => None,
            };
            let number =
                if is_whole || fault.is_some() { None } else { Some(slot.orders.ask_bring_in()) };
            (number, Asked { pid: p.pid, slot, number: number.unwrap_or(0), before_bytes, fault })
        });
        let asked: Vec<_> = asked.collect();
        let results = asked.into_iter().map(|(number, asked)| {
            let Asked { pid, slot, before_bytes, fault, .. } = asked;
            let (after_bytes, fault) = match number {
                Some(_) => {
                    let done = wait(asked, is_given_up);
                    (done.after_bytes, done.fault)
                }
                None => (before_bytes, fault.map(str::to_string)),
            };
            let missing = if number.is_some() { slot.orders.missing_pages() } else { 0 };
            let missing_bytes = missing * PAGE_BYTES;
            BroughtIn { pid, before_bytes, after_bytes, missing_bytes, fault }
        });
        Ok(results.collect())
    }

    /// A process of the run, or all.
    fn targets(&self, pid: Option<u32>) -> Result<Vec<(&'static Slot, ProcessState)>, String> {
        let targets: Vec<_> = self
            .live()
            .filter(|(p, _)| pid.is_none_or(|pid| pid == *p))
            .filter_map(|(p, slot)| Some((slot, ProcessState::of(p, slot)?)))
            .collect();
        match pid.filter(|_| targets.is_empty()) {
            Some(pid) => Err(format!("process {pid} is not in run {}", self.id)),
            None => Ok(targets),
        }
    }
}

/// Waits until a process has done what was asked of it, as long as there is progress; the outcome
/// for the reply.
fn wait(asked: Asked, is_given_up: &dyn Fn() -> bool) -> Reclaimed {
    let Asked { pid, slot, number, before_bytes, mut fault } = asked;
    let now = || procfs::anonymous_bytes(pid).unwrap_or(0);
    let (mut last_bytes, mut moved) = (before_bytes, Instant::now());
    while fault.is_none() && !slot.orders.is_done(number) {
        if now() != last_bytes {
            (last_bytes, moved) = (now(), Instant::now());
        }
        if slot.process() != Some(pid) || procfs::anonymous_bytes(pid).is_none() {
            fault = Some("has ended, or become another program");
        }
        if moved.elapsed() > STUCK_AFTER {
            fault = Some("does not react");
        }
        if is_given_up() {
            fault = Some("was not waited for");
        }
        thread::sleep(LOOK_AGAIN);
    }
    if fault.is_none() && slot.process() == Some(pid) && slot.mechanism.load(Ordering::Relaxed) == 0
    {
        fault = Some("cannot be paged here (see 'uzswap doctor')");
    }
    Reclaimed { pid, before_bytes, after_bytes: now(), fault: fault.map(str::to_string) }
}

/// Whether the other side has closed the connection.
fn has_gone(stream: &UnixStream) -> bool {
    use std::os::fd::AsRawFd;
    let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
    matches!(recv(stream.as_raw_fd(), &mut [0], flags), Ok(0))
}

/// The thread that answers, until the process ends. The name of its socket goes when this does.
pub struct Server {
    named: Arc<Named>,
}

impl Server {
    /// Begins to serve a run. The error says why it cannot be reached.
    pub fn start(run: Arc<Run>, env: &dyn Fn(&str) -> Option<OsString>) -> Result<Server, Fault> {
        let named = Arc::new(directory::listen(env, run.id)?);
        let listening = named.clone();
        thread::Builder::new()
            .name("uzswap-control".to_string())
            .stack_size(STACK_BYTES)
            .spawn(move || accept(&run, &listening))
            .map_err(|e| {
                named.unlink();
                Fault { text: format!("no thread for it: {e}"), is_foreign: false }
            })?;
        Ok(Server { named })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The thread that accepts holds the other reference until the process ends, so the name
        // goes here.
        self.named.unlink();
    }
}

fn accept(run: &Arc<Run>, named: &Named) {
    static CONNECTIONS: AtomicUsize = AtomicUsize::new(0);
    /// Counts a connection as long as it lives.
    struct Place;
    impl Drop for Place {
        fn drop(&mut self) {
            CONNECTIONS.fetch_sub(1, Ordering::AcqRel);
        }
    }
    loop {
        let stream = match named.listener.accept() {
            Ok((stream, _)) => stream,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => {
                thread::sleep(ACCEPT_AGAIN);
                continue;
            }
        };
        CONNECTIONS.fetch_add(1, Ordering::AcqRel);
        let place = Place;
        // A client that is turned away is not even told why: nothing may wait here.
        if CONNECTIONS.load(Ordering::Acquire) > CONNECTIONS_MAX || !is_allowed(&stream) {
            continue;
        }
        let run = run.clone();
        let _ = thread::Builder::new().stack_size(STACK_BYTES).spawn(move || {
            let _place = place;
            serve(&run, &stream);
        });
    }
}

/// Whether the other side is the user, or root.
fn is_allowed(stream: &UnixStream) -> bool {
    getsockopt(stream, PeerCredentials)
        .is_ok_and(|peer| may_control(peer.uid(), os::identity().user))
}

fn may_control(peer: u32, user: u32) -> bool {
    peer == user || peer == 0
}

fn serve(run: &Run, stream: &UnixStream) {
    let line = protocol::read_line(stream, REQUEST_BYTES, Some(Instant::now() + PATIENCE));
    let refused = |why: String| protocol::reply_line::<()>(Err(why));
    let reply = match line {
        Ok(line) => {
            Request::parse(&line).map_or_else(refused, |request| run.answer(request, stream))
        }
        Err(e) if e.kind() == io::ErrorKind::InvalidData => refused(e.to_string()),
        // The client is too slow, or gone.
        Err(_) => return,
    };
    let _ = protocol::write_line(stream, &reply, Instant::now() + PATIENCE);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::ControlBlock;
    use serde_json::Value;
    use uzswap::control::Settings;

    fn run() -> Run {
        // Kept for ever: its mapping is.
        let block: &'static ControlBlock =
            Box::leak(Box::new(ControlBlock::create(&Settings::new()).unwrap()));
        let command = vec!["/bin/prog".to_string()];
        Run {
            id: std::process::id(),
            tree: block.tree(),
            control_fd: block.fd(),
            command,
            started: Instant::now(),
        }
    }

    fn never() -> bool {
        false
    }

    #[test]
    fn only_the_user_and_root_may() {
        assert!(may_control(1000, 1000) && may_control(0, 1000));
        assert!(!may_control(1001, 1000) && !may_control(1000, 0));
        let (a, _b) = UnixStream::pair().unwrap();
        assert!(is_allowed(&a));
    }

    #[test]
    fn a_limit_is_checked_and_set() {
        let run = run();
        run.tree.limit_pages.store(1 << 18, Ordering::Relaxed);
        let slot = run.tree.claim(std::process::id()).unwrap();
        let rung = slot.orders.rung();
        let done = run.set(Some("64M".into()), &Words::default()).unwrap();
        assert_eq!((done.before_bytes, done.limit_bytes), (1 << 30, 64 << 20));
        assert_eq!(run.state().limit_bytes, 64 << 20);
        assert_ne!(slot.orders.rung(), rung, "the dormant are woken");
        for (text, word) in
            [("15M", "16 MiB"), ("much", "no size"), ("", "empty"), ("-1G", "negative")]
        {
            let error = run.set(Some(text.into()), &Words::default()).unwrap_err();
            assert!(
                error.contains(word) && error.contains(text) && !error.contains('\n'),
                "{error}"
            );
        }
        assert!(run.set(None, &Words::default()).unwrap_err().contains("nothing"));
        assert_eq!(run.state().limit_bytes, 64 << 20);
    }

    #[test]
    fn a_set_that_is_wrong_in_part_changes_nothing() {
        let run = run();
        run.tree.limit_pages.store(1 << 18, Ordering::Relaxed);
        let zbud = || Words { pool: Some("zbud".into()), ..Words::default() };
        let wrong = Words { pool_percent: Some("91".into()), ..zbud() };
        assert!(run.set(Some("64M".into()), &wrong).unwrap_err().contains("'91'"));
        assert!(run.set(Some("15M".into()), &zbud()).unwrap_err().contains("16 MiB"));
        assert_eq!((run.state().limit_bytes, run.tree.tuning.changes()), (1 << 30, 0));
        let done = run.set(None, &zbud()).unwrap();
        assert_eq!((done.before_bytes, done.limit_bytes), (1 << 30, 1 << 30));
        assert_eq!(done.tuned, [("pool".to_string(), "zbud".to_string(), "zsmalloc".to_string())]);
        assert_eq!(run.set(None, &zbud()).unwrap().tuned, [], "it is so already");
        assert_eq!(run.tree.tuning.changes(), 1);
    }

    #[test]
    fn a_reclaim_is_asked_of_the_process_and_waited_for() {
        let run = run();
        let me = std::process::id();
        let slot = run.tree.claim(me).unwrap();
        let error = run.reclaim(Some(1), "all", &never).unwrap_err();
        assert!(error.contains("process 1 is not in run"), "{error}");
        assert!(run.reclaim(None, "some", &never).unwrap_err().contains("or all"));
        let reply = run.reclaim(Some(me), "all", &never).unwrap();
        assert!(reply[0].fault.as_ref().unwrap().contains("too small"), "nobody listens");
        slot.orders.set_listener(true);
        slot.mechanism.store(1, Ordering::Relaxed);
        for (amount, pages) in [("all", ALL_PAGES), ("1M", 256)] {
            thread::scope(|scope| {
                scope.spawn(|| {
                    let (number, wanted) = loop {
                        if let Some(order) = slot.orders.wanted() {
                            break order;
                        }
                        thread::yield_now();
                    };
                    slot.orders.finish(number);
                    assert_eq!(wanted, pages);
                });
                slot.used_pages.store(1 << 20, Ordering::Relaxed);
                let reply = run.reclaim(None, amount, &never).unwrap();
                assert_eq!((reply[0].pid, reply[0].fault.as_deref()), (me, None));
            });
        }
        let reply = run.reclaim(None, "50%", &|| true).unwrap();
        assert!(reply[0].fault.as_ref().unwrap().contains("not waited for"));
        assert_eq!(slot.orders.wanted().unwrap().1, 1 << 19);
    }

    /// One connection, answered by a thread as the server would.
    fn exchange(
        send: impl FnOnce(UnixStream) -> Option<UnixStream>,
    ) -> Option<Result<Value, String>> {
        let (a, b) = UnixStream::pair().unwrap();
        let server = thread::spawn(move || serve(&run(), &b));
        let answer = send(a).map(|a| {
            let line = protocol::read_line(
                &a,
                protocol::REPLY_BYTES,
                Some(Instant::now() + Duration::from_secs(30)),
            );
            protocol::parse_reply(&line.unwrap())
        });
        server.join().unwrap();
        answer
    }

    #[test]
    fn hostile_input_is_answered_or_dropped() {
        let soon = || Instant::now() + Duration::from_secs(30);
        let say = |text: String| {
            exchange(move |s| {
                let _ = protocol::write_line(&s, &text, soon());
                Some(s)
            })
            .unwrap()
        };
        assert!(say("garbage\0\x7f\n".into()).unwrap_err().contains("no JSON"));
        assert!(say("x".repeat(REQUEST_BYTES + 1)).unwrap_err().contains("too long"));
        assert_eq!(say(Request::List.to_line()).unwrap()["command"][0], "/bin/prog");
        assert_eq!(
            exchange(|s| {
                drop(s);
                None
            }),
            None
        );
        assert_eq!(
            exchange(|s| {
                let _ = protocol::write_line(&s, "{\"do\":", soon());
                None
            }),
            None
        );
    }
}
