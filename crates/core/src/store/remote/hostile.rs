//! An NBD server for tests that does its work, or does it wrong on demand. It stands alone: the
//! whole-program tests have this file, too.
//!
//! It knows one export, simple replies, READ, WRITE, FLUSH and TRIM. Each connection has a thread.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// A way in which a server is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Honest,
    /// Reads give bytes in which one bit of each 512 is another.
    WrongBytes,
    /// Reads give what was there when `remember` was called.
    Stale,
    /// Reads fail with EIO.
    ReadErrors,
    /// Writes fail with ENOSPC, and change nothing.
    Full,
    /// Nothing is answered any more.
    Silent,
    /// Each request ends its connection.
    Closes,
    /// Replies do not begin as replies do.
    WrongMagic,
    /// Replies are to requests that nobody has made.
    WrongCookie,
    /// Half of the bytes asked for come, then the connection ends.
    Short,
}

pub const ALL_WRONG: [Mode; 9] = [
    Mode::WrongBytes,
    Mode::Stale,
    Mode::ReadErrors,
    Mode::Full,
    Mode::Silent,
    Mode::Closes,
    Mode::WrongMagic,
    Mode::WrongCookie,
    Mode::Short,
];

struct Shared {
    bytes: Mutex<Vec<u8>>,
    remembered: Mutex<Vec<u8>>,
    mode: Mutex<Mode>,
    /// Another mode, and the requests after which it begins.
    next: Mutex<Option<(u64, Mode)>>,
    /// Takes place before each reply.
    delay_us: AtomicU64,
    ends: AtomicBool,
    requests: AtomicU64,
    trimmed: AtomicU64,
    connections: Mutex<Vec<UnixStream>>,
}

/// The server, until it is dropped.
pub struct Hostile {
    path: PathBuf,
    shared: Arc<Shared>,
    accepts: Option<JoinHandle<()>>,
}

impl Hostile {
    /// An export of so many bytes on a Unix socket.
    pub fn start(path: &Path, bytes: usize) -> Hostile {
        let _ = std::fs::remove_file(path);
        let listener = UnixListener::bind(path).expect("a socket of our own");
        listener.set_nonblocking(true).expect("it is a socket");
        let shared = Arc::new(Shared {
            bytes: Mutex::new(vec![0; bytes]),
            remembered: Mutex::new(vec![0; bytes]),
            mode: Mutex::new(Mode::Honest),
            next: Mutex::new(None),
            delay_us: AtomicU64::new(0),
            ends: AtomicBool::new(false),
            requests: AtomicU64::new(0),
            trimmed: AtomicU64::new(0),
            connections: Mutex::new(Vec::new()),
        });
        let all = shared.clone();
        let accepts = std::thread::spawn(move || {
            while !all.ends.load(Ordering::Acquire) {
                match listener.accept() {
                    Ok((stream, _)) => serve_in_background(stream, &all),
                    Err(e) if e.kind() == ErrorKind::WouldBlock => {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    Err(_) => return,
                }
            }
        });
        Hostile { path: path.to_owned(), shared, accepts: Some(accepts) }
    }

    pub fn set(&self, mode: Mode) {
        *self.shared.mode.lock().unwrap() = mode;
    }

    /// After so many requests the server remembers its bytes, and is in that mode from then on.
    pub fn set_after(&self, requests: u64, mode: Mode) {
        *self.shared.next.lock().unwrap() = Some((requests, mode));
    }

    /// Delays each reply.
    pub fn set_delay(&self, delay: Duration) {
        self.shared.delay_us.store(delay.as_micros() as u64, Ordering::Relaxed);
    }

    /// Keeps the bytes that are there now, for `Stale`.
    pub fn remember(&self) {
        self.shared.remembered.lock().unwrap().clone_from(&self.shared.bytes.lock().unwrap());
    }

    /// Loses all that was written, and all connections, as a server that was killed and started
    /// again.
    pub fn lose_everything(&self) {
        self.shared.bytes.lock().unwrap().fill(0);
        self.hang_up();
    }

    pub fn hang_up(&self) {
        for stream in self.shared.connections.lock().unwrap().drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }

    /// Requests so far.
    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::Relaxed)
    }

    /// Bytes given back so far.
    pub fn trimmed(&self) -> u64 {
        self.shared.trimmed.load(Ordering::Relaxed)
    }

    pub fn put(&self, at: usize, bytes: &[u8]) {
        self.shared.bytes.lock().unwrap()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// The bytes that the server holds, from the first one on.
    pub fn contents(&self) -> Vec<u8> {
        self.shared.bytes.lock().unwrap().clone()
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Release);
        self.hang_up();
        let _ = self.accepts.take().expect("started").join();
        let _ = std::fs::remove_file(&self.path);
    }
}

fn serve_in_background(stream: UnixStream, all: &Arc<Shared>) {
    stream.set_nonblocking(false).expect("it is a socket");
    all.connections.lock().unwrap().push(stream.try_clone().expect("a descriptor"));
    let all = all.clone();
    let ended = stream.try_clone().expect("a descriptor");
    std::thread::spawn(move || {
        let _ = serve(stream, &all);
        // `hang_up` has a descriptor of its own, so the connection does not end with this one.
        let _ = ended.shutdown(std::net::Shutdown::Both);
    });
}

fn array<const N: usize>(stream: &mut UnixStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |n, b| n << 8 | u64::from(*b))
}

/// One connection: the client asks for the export by GO, and for nothing else.
fn serve(mut stream: UnixStream, all: &Shared) -> io::Result<()> {
    let size = all.bytes.lock().unwrap().len();
    stream.write_all(b"NBDMAGICIHAVEOPT\0\x03")?;
    let _flags: [u8; 4] = array(&mut stream)?;
    let head: [u8; 16] = array(&mut stream)?;
    let mut data = vec![0; number(&head[12..]) as usize];
    stream.read_exact(&mut data)?;
    let mut reply = |kind: u32, payload: &[u8]| {
        let mut bytes = 0x0003_e889_0455_65a9_u64.to_be_bytes().to_vec();
        bytes.extend(7u32.to_be_bytes());
        bytes.extend(kind.to_be_bytes());
        bytes.extend((payload.len() as u32).to_be_bytes());
        bytes.extend(payload);
        stream.write_all(&bytes)
    };
    // HAS_FLAGS, SEND_FLUSH, SEND_TRIM, CAN_MULTI_CONN.
    let flags = (1u16 | 4 | 32 | 256).to_be_bytes();
    reply(3, &[&[0, 0], &(size as u64).to_be_bytes()[..], &flags].concat())?;
    // A description that is of no interest, and long.
    reply(3, &[&[0, 2][..], &[b'x'; 700]].concat())?;
    reply(1, &[])?;
    while answer(&mut stream, all)? {}
    Ok(())
}

/// One request. False: the connection is over.
fn answer(stream: &mut UnixStream, all: &Shared) -> io::Result<bool> {
    let head: [u8; 28] = array(stream)?;
    let before = all.requests.fetch_add(1, Ordering::Relaxed);
    let is_due = |next: &mut (u64, Mode)| before >= next.0;
    if let Some((_, mode)) = all.next.lock().unwrap().take_if(is_due) {
        all.remembered.lock().unwrap().clone_from(&all.bytes.lock().unwrap());
        *all.mode.lock().unwrap() = mode;
    }
    let (command, at, len) =
        (number(&head[6..8]), number(&head[16..24]) as usize, number(&head[24..]) as usize);
    let mut payload = vec![0; if command == 1 { len } else { 0 }];
    stream.read_exact(&mut payload)?;
    let delay_us = all.delay_us.load(Ordering::Relaxed);
    if delay_us > 0 {
        std::thread::sleep(Duration::from_micros(delay_us));
    }
    let mode = *all.mode.lock().unwrap();
    match mode {
        Mode::Closes => return Ok(false),
        Mode::Silent => {
            // Until somebody hangs up.
            while stream.read(&mut [0; 4096])? > 0 {}
            return Ok(false);
        }
        _ => {}
    }
    let mut error = 0u32;
    let mut data = Vec::new();
    let end = at + len;
    match command {
        0 => {
            let from = if mode == Mode::Stale { &all.remembered } else { &all.bytes };
            data.extend_from_slice(&from.lock().unwrap()[at..end]);
            if mode == Mode::WrongBytes {
                data.iter_mut().step_by(512).for_each(|b| *b ^= 0x10);
            }
            if mode == Mode::ReadErrors {
                (error, data) = (5, Vec::new());
            }
        }
        1 if mode == Mode::Full => error = 28,
        1 => all.bytes.lock().unwrap()[at..end].copy_from_slice(&payload),
        4 => {
            all.bytes.lock().unwrap()[at..end].fill(0);
            all.trimmed.fetch_add(len as u64, Ordering::Relaxed);
        }
        3 => {}
        _ => return Ok(false),
    }
    let mut reply = 0x6744_6698_u32.to_be_bytes().to_vec();
    reply.extend(error.to_be_bytes());
    reply.extend(&head[8..16]);
    match mode {
        Mode::WrongMagic => reply[0] ^= 1,
        Mode::WrongCookie => reply[15] ^= 1,
        _ => {}
    }
    reply.extend(data);
    if mode == Mode::Short {
        stream.write_all(&reply[..reply.len() / 2])?;
        return Ok(false);
    }
    stream.write_all(&reply)?;
    Ok(true)
}
