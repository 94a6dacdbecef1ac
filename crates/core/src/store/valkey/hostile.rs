//! A server for tests that does its work as Redis does, or does it wrong on demand. It knows SET,
//! GETRANGE, UNLINK, PEXPIRE, ASKING, WAIT and CLUSTER SLOTS. Each connection has a thread.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// The misbehaviour of the server, with values or with every command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    Right,
    WrongBytes,
    /// The values that [`Hostile::remember`] found.
    Stale,
    Short,
    /// Replies are longer than was asked for.
    Long,
    /// A number that is no length.
    Negative,
    /// Another kind of reply.
    Odd,
    Empty,
    Silent,
    /// The connection ends in the middle of a reply.
    HangsUp,
    Noise,
    /// A line without an end.
    Endless,
    Full,
    /// CLUSTERDOWN for ever.
    Later,
    /// MOVED to itself, and ASK for ever.
    Moved,
    Ask,
    /// The key is of another kind.
    WrongType,
}

pub const ALL_WRONG: [Mode; 16] = [
    Mode::WrongBytes,
    Mode::Stale,
    Mode::Short,
    Mode::Long,
    Mode::Negative,
    Mode::Odd,
    Mode::Empty,
    Mode::Silent,
    Mode::HangsUp,
    Mode::Noise,
    Mode::Endless,
    Mode::Full,
    Mode::Later,
    Mode::Moved,
    Mode::Ask,
    Mode::WrongType,
];

type Values = HashMap<Vec<u8>, Vec<u8>>;

struct Shared {
    address: SocketAddr,
    mode: Mutex<Mode>,
    values: Mutex<Values>,
    before: Mutex<Values>,
    /// The owner of all slots, as CLUSTER SLOTS and MOVED say it.
    owner: Mutex<Option<SocketAddr>>,
    /// Connections, to be cut.
    streams: Mutex<Vec<TcpStream>>,
    ends: AtomicBool,
    waits: AtomicU64,
    replicas: AtomicU64,
    /// WAIT says that nobody has it.
    is_alone: AtomicBool,
}

pub struct Hostile(Arc<Shared>);

impl Hostile {
    pub fn start() -> Hostile {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let shared = Arc::new(Shared {
            address: listener.local_addr().expect("it is bound"),
            mode: Mutex::new(Mode::Right),
            values: Mutex::default(),
            before: Mutex::default(),
            owner: Mutex::new(None),
            streams: Mutex::default(),
            ends: AtomicBool::new(false),
            waits: AtomicU64::new(0),
            replicas: AtomicU64::new(0),
            is_alone: AtomicBool::new(false),
        });
        let accepts = shared.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if accepts.ends.load(Ordering::Relaxed) {
                    return;
                }
                let serves = accepts.clone();
                accepts.streams.lock().unwrap().push(stream.try_clone().expect("a descriptor"));
                thread::spawn(move || _ = serves.serve(stream));
            }
        });
        Hostile(shared)
    }

    pub fn address(&self) -> SocketAddr {
        self.0.address
    }

    pub fn set(&self, mode: Mode) {
        *self.0.mode.lock().unwrap() = mode;
    }

    /// Remembers the values that are there now, for `Stale` to give.
    pub fn remember(&self) {
        *self.0.before.lock().unwrap() = self.0.values.lock().unwrap().clone();
    }

    pub fn values(&self) -> Values {
        self.0.values.lock().unwrap().clone()
    }

    pub fn waits(&self) -> u64 {
        self.0.waits.load(Ordering::Relaxed)
    }

    pub fn hang_up(&self) {
        for stream in self.0.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }

    /// Makes it a node of a Cluster in which `owner` has everything, with so many replicas.
    pub fn belongs_to(&self, owner: &Hostile, replicas: u64) {
        *self.0.owner.lock().unwrap() = Some(owner.address());
        self.0.replicas.store(replicas, Ordering::Relaxed);
    }

    pub fn replica_is_gone(&self) {
        self.0.is_alone.store(true, Ordering::Relaxed);
    }

    /// Gives its values to another server.
    pub fn moves_to(&self, other: &Hostile) {
        let mut values = self.0.values.lock().unwrap();
        other.0.values.lock().unwrap().extend(values.drain());
        drop(values);
        for server in [self, other] {
            let replicas = server.0.replicas.load(Ordering::Relaxed);
            server.belongs_to(other, replicas);
        }
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.0.ends.store(true, Ordering::Relaxed);
        self.hang_up();
        let _ = TcpStream::connect(self.0.address);
    }
}

fn bulk(bytes: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

impl Shared {
    fn serve(&self, stream: TcpStream) -> std::io::Result<()> {
        let mut writer = stream.try_clone()?;
        let mut reader = BufReader::new(stream);
        while let Some(words) = command(&mut reader)? {
            let mode = *self.mode.lock().unwrap();
            if mode == Mode::Silent {
                continue;
            }
            let reply = self.reply(&words, mode);
            writer.write_all(&reply)?;
            if mode == Mode::HangsUp {
                return writer.shutdown(std::net::Shutdown::Both);
            }
            if mode == Mode::Endless {
                while writer.write_all(&[b'7'; 4096]).is_ok() {}
                return Ok(());
            }
        }
        Ok(())
    }

    fn reply(&self, words: &[Vec<u8>], mode: Mode) -> Vec<u8> {
        let name = words[0].as_slice();
        match mode {
            Mode::Noise => return b"\x00\xff\r\n\r\n::\r\n".to_vec(),
            Mode::Endless => return b"$1".to_vec(),
            Mode::Later => return b"-CLUSTERDOWN The cluster is down\r\n".to_vec(),
            Mode::Moved => return format!("-MOVED 1 {}\r\n", self.address).into_bytes(),
            Mode::Ask => return format!("-ASK 1 {}\r\n", self.address).into_bytes(),
            Mode::WrongType => return b"-WRONGTYPE Operation against a key\r\n".to_vec(),
            Mode::Odd => return b"*2\r\n:1\r\n:2\r\n".to_vec(),
            Mode::Full if name == b"SET" => return b"-OOM command not allowed\r\n".to_vec(),
            _ => {}
        }
        let owner = *self.owner.lock().unwrap();
        if let Some(owner) = owner.filter(|owner| *owner != self.address)
            && matches!(name, b"SET" | b"GETRANGE" | b"UNLINK" | b"PEXPIRE")
        {
            let slot = super::map::slot_of(&words[1]);
            return format!("-MOVED {slot} {owner}\r\n").into_bytes();
        }
        let mut values = self.values.lock().unwrap();
        match name {
            b"SET" => {
                values.insert(words[1].clone(), words[2].clone());
                b"+OK\r\n".to_vec()
            }
            b"UNLINK" => format!(":{}\r\n", u8::from(values.remove(&words[1]).is_some())).into(),
            b"PEXPIRE" => format!(":{}\r\n", u8::from(values.contains_key(&words[1]))).into(),
            b"ASKING" => b"+OK\r\n".to_vec(),
            b"WAIT" => {
                self.waits.fetch_add(1, Ordering::Relaxed);
                let came = !self.is_alone.load(Ordering::Relaxed);
                let replicas = self.replicas.load(Ordering::Relaxed) * u64::from(came);
                format!(":{replicas}\r\n").into()
            }
            b"CLUSTER" => self.slots(owner),
            b"GETRANGE" => {
                let before = self.before.lock().unwrap();
                let values = if mode == Mode::Stale { &before } else { &values };
                let number = |i: usize| String::from_utf8_lossy(&words[i]).parse().unwrap_or(0);
                let value = values.get(&words[1]).map_or(&[][..], Vec::as_slice);
                let (from, to): (usize, usize) = (number(2), number(3));
                let part = value.get(from..value.len().min(to + 1)).unwrap_or(&[]);
                self.part(part, mode)
            }
            _ => b"-ERR unknown command\r\n".to_vec(),
        }
    }

    fn part(&self, part: &[u8], mode: Mode) -> Vec<u8> {
        match mode {
            Mode::WrongBytes => bulk(&part.iter().map(|b| b ^ 1).collect::<Vec<_>>()),
            Mode::Short => bulk(&part[..part.len() / 2]),
            Mode::Long => bulk(&[part, b"more"].concat()),
            Mode::Negative => b"$-7\r\n".to_vec(),
            Mode::Empty => bulk(b""),
            Mode::HangsUp => bulk(part)[..part.len() / 2].to_vec(),
            _ => bulk(part),
        }
    }

    fn slots(&self, owner: Option<SocketAddr>) -> Vec<u8> {
        let Some(owner) = owner else {
            return b"-ERR This instance has cluster support disabled\r\n".to_vec();
        };
        let replicas = self.replicas.load(Ordering::Relaxed) as usize;
        let node = |port: u16| format!("*3\r\n$9\r\n127.0.0.1\r\n:{port}\r\n$1\r\nx\r\n");
        let nodes = node(owner.port()) + &node(1).repeat(replicas);
        format!("*1\r\n*{}\r\n:0\r\n:16383\r\n{nodes}", 3 + replicas).into_bytes()
    }
}

/// The words of a command.
fn command(reader: &mut impl BufRead) -> std::io::Result<Option<Vec<Vec<u8>>>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let count: usize = line.trim_start_matches('*').trim().parse().unwrap_or(0);
    let mut words = Vec::new();
    for _ in 0..count {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let len: usize = line.trim_start_matches('$').trim().parse().unwrap_or(0);
        let mut word = vec![0; len + 2];
        reader.read_exact(&mut word)?;
        word.truncate(len);
        words.push(word);
    }
    Ok(if words.is_empty() { None } else { Some(words) })
}
