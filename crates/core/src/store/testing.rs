//! Stores for tests: one in memory, and its faulty twin.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{BLOCK_BYTES, Progress, Queue, ReadQueue, Store};
use crate::sys::{Errno, Result};

/// In place of the ten seconds of a run, where all servers are right: they answer sooner, however
/// busy the machine is with other tests.
#[cfg(test)]
pub const LONG_PATIENCE_NS: u64 = 4 * super::remote::PATIENCE_NS;

/// The operations that fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Never,
    /// The n-th operation (from 1) fails, all others work.
    Once(u64),
    /// The n-th and all later ones fail.
    From(u64),
    /// Every n-th one fails.
    Every(u64),
    /// All writes to the place there fail.
    WritesTo(u64),
}

/// A store in memory. `Copy`, so what belongs to it lives for ever, but for the contents: they end
/// with `close`.
#[derive(Clone, Copy)]
pub struct MemoryStore(&'static Data);

struct Data {
    bytes: Mutex<Vec<u8>>,
    fault: Mutex<Fault>,
    operations: AtomicU64,
    reads: AtomicU64,
    writes: AtomicU64,
    discards: AtomicU64,
    aheads: AtomicU64,
    max_bytes: usize,
    /// Results of writes come, and reads ahead happen, only when somebody waits for them.
    late: AtomicBool,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::with_capacity(usize::MAX)
    }
}

impl MemoryStore {
    pub fn new() -> MemoryStore {
        Self::default()
    }

    /// A store with a disk of that size.
    pub fn with_capacity(max_bytes: usize) -> MemoryStore {
        MemoryStore(Box::leak(Box::new(Data {
            bytes: Mutex::new(Vec::new()),
            fault: Mutex::new(Fault::Never),
            operations: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            discards: AtomicU64::new(0),
            aheads: AtomicU64::new(0),
            max_bytes,
            late: AtomicBool::new(false),
        })))
    }

    /// Makes writes end, and reads ahead happen, as late as they can.
    pub fn set_late(self, late: bool) {
        self.0.late.store(late, Ordering::Relaxed);
    }

    pub fn set_fault(self, fault: Fault) {
        *self.0.fault.lock().unwrap() = fault;
        self.0.operations.store(0, Ordering::Relaxed);
    }

    /// Reads and writes since the last `set_fault`.
    pub fn operations(self) -> u64 {
        self.0.operations.load(Ordering::Relaxed)
    }

    pub fn discards(self) -> u64 {
        self.0.discards.load(Ordering::Relaxed)
    }

    /// Reads ahead that were started.
    pub fn reads_ahead(self) -> u64 {
        self.0.aheads.load(Ordering::Relaxed)
    }

    pub fn corrupt(self, change: impl FnOnce(&mut [u8])) {
        change(&mut self.0.bytes.lock().unwrap());
    }

    fn step(self, writes_to: Option<u64>) -> Result<()> {
        let n = self.0.operations.fetch_add(1, Ordering::Relaxed) + 1;
        match *self.0.fault.lock().unwrap() {
            Fault::Once(k) if n == k => Err(Errno::EIO),
            Fault::From(k) if n >= k => Err(Errno::EIO),
            Fault::Every(k) if n.is_multiple_of(k) => Err(Errno::EIO),
            Fault::WritesTo(at) if writes_to == Some(at) => Err(Errno::EIO),
            _ => Ok(()),
        }
    }
}

impl Store for MemoryStore {
    fn read(self, at: u64, buf: &mut [u8]) -> Result<()> {
        assert!(
            at.is_multiple_of(BLOCK_BYTES as u64)
                && buf.len().is_multiple_of(BLOCK_BYTES)
                && buf.as_ptr().addr().is_multiple_of(BLOCK_BYTES)
        );
        self.0.reads.fetch_add(1, Ordering::Relaxed);
        self.step(None)?;
        let bytes = self.0.bytes.lock().unwrap();
        buf.copy_from_slice(bytes.get(at as usize..at as usize + buf.len()).ok_or(Errno::EIO)?);
        Ok(())
    }

    fn read_ahead(self, queue: &mut ReadQueue, at: u64, len: usize) -> bool {
        self.0.aheads.fetch_add(1, Ordering::Relaxed);
        if self.0.late.load(Ordering::Relaxed) {
            queue.promise(0, move |buf| self.read(at, &mut buf[..len]));
        } else {
            // The read happens at once, but nobody knows before it is waited for.
            let result = self.read(at, &mut queue.buffer(0)[..len]);
            queue.promise(0, move |_| result);
        }
        true
    }

    fn write(self, queue: &mut Queue, slot: usize, at: u64, len: usize) -> Progress {
        let result = self.write_now(at, &queue.buffer(slot)[..len]);
        if self.0.late.load(Ordering::Relaxed) {
            queue.promise(slot, move |_| result);
            return Progress::Queued;
        }
        Progress::Ended(result)
    }

    fn discard(self, at: u64, len: u64) {
        self.0.discards.fetch_add(1, Ordering::Relaxed);
        let mut bytes = self.0.bytes.lock().unwrap();
        let end = (at as usize + len as usize).min(bytes.len());
        bytes[at as usize..end].fill(0);
    }

    fn fresh(self) -> Result<MemoryStore> {
        Ok(MemoryStore::new())
    }

    fn close(self) {
        *self.0.bytes.lock().unwrap() = Vec::new();
    }

    /// The store lives in memory, which fork copies.
    fn is_inherited(self) -> bool {
        false
    }
}

impl MemoryStore {
    fn write_now(self, at: u64, buf: &[u8]) -> Result<()> {
        assert!(
            at.is_multiple_of(BLOCK_BYTES as u64)
                && buf.len().is_multiple_of(BLOCK_BYTES)
                && buf.as_ptr().addr().is_multiple_of(BLOCK_BYTES)
        );
        self.0.writes.fetch_add(1, Ordering::Relaxed);
        let end = at as usize + buf.len();
        if end > self.0.max_bytes {
            return Err(Errno::ENOSPC);
        }
        let mut bytes = self.0.bytes.lock().unwrap();
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        if let Err(e) = self.step(Some(at)) {
            // A failed write leaves arbitrary bytes behind.
            bytes[at as usize..end].fill(0x5a);
            return Err(e);
        }
        bytes[at as usize..end].copy_from_slice(buf);
        Ok(())
    }
}
