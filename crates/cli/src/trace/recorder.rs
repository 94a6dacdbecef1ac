//! Takes the faults of a run out of the ring and writes them into the file of `--trace`, in a
//! thread of its own.
//!
//! The program waits for room in the ring, so this looks often. When the file cannot be written to
//! any more, later records are counted as lost, and a message says so; the program goes on.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use uzswap::control::trace::{Kind, Next, Record, Ring, SLOTS};
use uzswap::control::{Counter, Tree};

use super::{BLOCK_RECORDS, HEADER_BYTES, Header, append, block, end_block};
use crate::console;
use crate::program::reason;
use crate::size::grouped;

const LOOK_EVERY: Duration = Duration::from_millis(2);
const MEASURE_EVERY: Duration = Duration::from_millis(50);
/// How long the reader waits for a record whose place was taken and that was not written: its
/// writer was killed, or has no processor. Half of the time for which others wait for room, so that
/// nothing but that record is lost.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long the reader waits, for all such records together, when the program has ended.
const LAST_PATIENCE: Duration = Duration::from_secs(2);

/// The file of `--trace`, opened and begun before the program starts.
#[derive(Debug)]
pub struct TraceFile {
    pub path: PathBuf,
    pub file: File,
}

impl TraceFile {
    /// Writes the header, in place of all that the file has.
    pub fn begin(&mut self, header: Header) -> io::Result<()> {
        // Of a pipe or a device there is nothing to empty.
        let _ = self.file.set_len(0);
        append(&mut self.file, &header.to_bytes())
    }
}

/// The recording, under way.
pub struct Recorder {
    end: Sender<()>,
    thread: JoinHandle<()>,
}

impl Recorder {
    /// Begins to record. If the thread cannot be had, a message says so, and nothing is recorded:
    /// the program runs already.
    pub fn start(file: TraceFile, ring: &'static Ring, tree: &'static Tree) -> Option<Recorder> {
        let (end, stop) = mpsc::channel::<()>();
        let work = move || {
            let mut output = Output::new(file);
            let mut watch = Watch::new(tree, ring);
            let mut unfinished_since = None;
            while stop.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                drain(ring, &mut unfinished_since, |words| output.put(words));
                watch.look(&mut output);
                output.flush();
            }
            drain_rest(ring, |words| output.put(words));
            output.finish(ring.lost());
        };
        match thread::Builder::new().name("uzswap-trace".to_string()).spawn(work) {
            Ok(thread) => Some(Recorder { end, thread }),
            Err(e) => {
                ring.close();
                console::say(&format!("no trace: cannot make a thread: {e}"));
                None
            }
        }
    }

    /// The program has ended: writes what is left.
    pub fn finish(self) {
        drop(self.end);
        self.thread.join().expect("a panic ends the process");
    }
}

/// Takes records out until there are none (true), or one is not finished. A record that stays
/// unfinished for too long is given up.
pub fn drain(
    ring: &Ring,
    unfinished_since: &mut Option<Instant>,
    mut put: impl FnMut([u64; 2]),
) -> bool {
    loop {
        match ring.next() {
            Next::Record(words) => put(words),
            Next::Empty => return true,
            Next::Unfinished => {
                if unfinished_since.get_or_insert_with(Instant::now).elapsed() < PATIENCE {
                    return false;
                }
                ring.skip();
            }
        }
        *unfinished_since = None;
    }
}

/// The program has ended: takes out what is left, and waits for a bounded time for records that are
/// not finished. A process that outlives the run is not recorded any more.
pub fn drain_rest(ring: &Ring, mut put: impl FnMut([u64; 2])) {
    ring.close();
    let (closed, mut unfinished_since) = (Instant::now(), None);
    while !drain(ring, &mut unfinished_since, &mut put) && closed.elapsed() < LAST_PATIENCE {
        thread::sleep(LOOK_EVERY);
    }
    // No more than a ring holds: one that a process has overwritten may seem to have no end.
    for _ in 0..SLOTS {
        match ring.next() {
            Next::Record(words) => put(words),
            Next::Unfinished => ring.skip(),
            Next::Empty => break,
        }
    }
}

/// The trace of a program in which nothing can be recorded.
pub fn record_nothing(file: TraceFile) {
    Output::new(file).finish(0);
}

/// Says now and then how much the recording hides: the pages that are there, while memory is short.
struct Watch {
    tree: &'static Tree,
    ring: &'static Ring,
    looked: Instant,
    evictions: u64,
}

impl Watch {
    fn new(tree: &'static Tree, ring: &'static Ring) -> Watch {
        Watch { tree, ring, looked: Instant::now(), evictions: 0 }
    }

    fn look(&mut self, output: &mut Output) {
        if self.looked.elapsed() < MEASURE_EVERY {
            return;
        }
        self.looked = Instant::now();
        let evictions = self.tree.total(Counter::Evictions);
        // The first time the counts may be older than the shortness.
        let is_short = evictions > self.evictions && self.evictions > 0;
        self.evictions = evictions;
        if is_short {
            let page =
                self.tree.total(Counter::ResidentPages) + self.tree.total(Counter::LimboPages);
            let began = self.ring.began_ns.load(std::sync::atomic::Ordering::Relaxed);
            let time_us = uzswap::sys::now_ns().saturating_sub(began) / 1000;
            let held = Record {
                kind: Kind::InMemory,
                is_write: false,
                is_held: false,
                page,
                pages: 0,
                pid: 0,
                time_us,
            };
            output.put(held.pack());
        }
    }
}

/// The file behind its header, as far as it can be written.
struct Output {
    to: TraceFile,
    records: Vec<[u64; 2]>,
    /// Bytes and records of whole blocks in the file.
    bytes: u64,
    written: u64,
    /// Records that the file did not take, and why.
    refused: u64,
    error: Option<io::Error>,
}

impl Output {
    fn new(to: TraceFile) -> Output {
        let bytes = HEADER_BYTES as u64;
        Output { to, records: Vec::new(), bytes, written: 0, refused: 0, error: None }
    }

    fn put(&mut self, words: [u64; 2]) {
        self.records.push(words);
        if self.records.len() == BLOCK_RECORDS {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let records = std::mem::take(&mut self.records);
        if records.is_empty() {
            return;
        }
        if self.error.is_none() {
            self.append(&block(&records));
        }
        match self.error {
            None => self.written += records.len() as u64,
            Some(_) => self.refused += records.len() as u64,
        }
        self.records = records;
        self.records.clear();
    }

    /// After an error the file ends where it last was whole.
    fn append(&mut self, bytes: &[u8]) {
        match append(&mut self.to.file, bytes) {
            Ok(()) => self.bytes += bytes.len() as u64,
            Err(e) => {
                let _ = self.to.file.set_len(self.bytes);
                let _ = self.to.file.seek(SeekFrom::Start(self.bytes));
                self.error = Some(e);
            }
        }
    }

    /// Ends the trace, and says what is missing in it.
    fn finish(mut self, lost: u64) {
        self.flush();
        let lost = lost + self.refused;
        let failed = self.error.take();
        self.append(&end_block(self.written, lost));
        let path = self.to.path.display();
        match failed.or(self.error) {
            Some(e) => console::say(&format!(
                "--trace: {path}: {}; {} records are missing",
                reason(&e),
                grouped(lost)
            )),
            None if lost > 0 => console::say(&format!(
                "--trace: {path}: {} records are missing: they came too fast for this machine, or \
                 their process was killed or stopped",
                grouped(lost)
            )),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{HEADER, record};
    use super::super::{End, Reader};
    use super::*;
    use crate::os::ControlBlock;
    use std::os::unix::fs::FileExt;
    use uzswap::control::Settings;
    use uzswap::control::trace::RING_OFFSET;

    fn file(name: &str) -> TraceFile {
        let path = std::env::temp_dir().join(format!("uzswap-{name}-{}", std::process::id()));
        let mut file = TraceFile { file: File::create(&path).unwrap(), path };
        file.begin(HEADER).unwrap();
        file
    }

    fn block() -> (&'static Ring, &'static Tree) {
        let block = ControlBlock::create(&Settings { trace: 1, ..Settings::new() }).unwrap();
        (block.ring().unwrap(), block.tree())
    }

    #[test]
    fn what_goes_through_the_ring_is_in_the_file() {
        const RECORDS: u64 = 100_000;
        let ((ring, tree), file) = (block(), file("recorder"));
        let path = file.path.clone();
        let recorder = Recorder::start(file, ring, tree).unwrap();
        // More than the ring holds: its writer has to wait.
        (0..RECORDS).for_each(|n| ring.push(&record(Kind::StoreLoad, 1, n, 1)));
        recorder.finish();
        ring.push(&record(Kind::StoreLoad, 1, 0, 1));
        let mut reader = Reader::new(File::open(&path).unwrap()).unwrap();
        let mut n = 0;
        let end = loop {
            match reader.next_block().unwrap() {
                Ok(records) => records.iter().for_each(|r| {
                    assert_eq!(r.page, n);
                    n += 1;
                }),
                Err(end) => break end,
            }
        };
        assert_eq!((n, end), (RECORDS, End::Whole { lost: 0 }));
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_ring_that_the_program_has_overwritten_has_an_end() {
        let block = ControlBlock::create(&Settings { trace: 1, ..Settings::new() }).unwrap();
        let ring = block.ring().unwrap();
        // The first word of the ring counts the slots that were taken: all, and no record is there.
        let path = format!("/proc/self/fd/{}", block.fd());
        let file = File::options().write(true).open(path).unwrap();
        file.write_all_at(&(SLOTS as u64).to_le_bytes(), RING_OFFSET as u64).unwrap();
        let mut put = 0;
        drain_rest(ring, |_| put += 1);
        assert_eq!((put, ring.next(), ring.lost()), (0, Next::Empty, SLOTS as u64));
    }

    #[test]
    fn a_full_disk_loses_the_rest_and_counts_it() {
        let file = File::options().write(true).open("/dev/full").unwrap();
        let mut file = TraceFile { file, path: "/dev/full".into() };
        let refused = file.begin(HEADER).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::ENOSPC));
        let mut output = Output::new(file);
        (0..10_000).for_each(|n| output.put([n, 0]));
        output.flush();
        assert_eq!((output.written, output.refused), (0, 10_000));
        output.finish(3);
    }
}
