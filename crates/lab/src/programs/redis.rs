//! A client of redis that asks for few keys often and for most of them seldom.
//!
//! ```text
//!  SET all keys ─> GET by Zipf's law ─> SHUTDOWN        in batches: the client's turns are few, the server's work is the time
//! ```
//!
//! Values are made up like a heap, of 0.5 to 3.5 KiB. By *Zipf's law* the key of rank k is asked
//! for 1/k^0.99 times as often as the first: what caches see, and the *theta* of YCSB, the usual
//! benchmark of such stores. Which key has which rank is shuffled, so that the often wanted ones do
//! not lie side by side in memory. Runs are compared by a digest of all answers.

use std::hash::{DefaultHasher, Hasher};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use uzswap_cli::pages::{PAGE_BYTES, Pages, Random};
use uzswap_cli::program::reason;

const KEYS: u32 = 100_000;
const GETS: u32 = 200_000;
/// Commands in a batch: few enough that the answers to a batch of writes, and a batch of questions,
/// fit what a socket holds: neither side waits for the other for ever.
const BATCH: usize = 64;

/// Fills the server that listens there, or will, asks it and ends it. Returns a digest of what it
/// said. Gives up once `over` says that there is no server any more.
pub fn drive(socket: &Path, over: &AtomicBool) -> Result<u64, String> {
    let stream = loop {
        match UnixStream::connect(socket) {
            Ok(stream) => break stream,
            Err(e) if over.load(Ordering::Relaxed) => {
                return Err(format!("no server: {}", reason(&e)));
            }
            Err(_) => thread::sleep(Duration::from_millis(5)),
        }
    };
    Client::new(stream).and_then(Client::run).map_err(|e| format!("redis: {}", reason(&e)))
}

struct Client {
    to: UnixStream,
    from: BufReader<UnixStream>,
    digest: DefaultHasher,
    answer: Vec<u8>,
}

impl Client {
    fn new(to: UnixStream) -> io::Result<Client> {
        let from = BufReader::with_capacity(1 << 16, to.try_clone()?);
        Ok(Client { to, from, digest: DefaultHasher::new(), answer: Vec::new() })
    }

    fn run(mut self) -> io::Result<u64> {
        let keys: Vec<u32> = (0..KEYS).collect();
        let mut page = [0; PAGE_BYTES];
        self.in_batches(&keys, |key, batch| {
            Pages::Synthetic.make(key.into(), &mut page)?;
            add(batch, &[b"SET", name(key).as_bytes(), &page[..value_bytes(key)]])
        })?;
        let mut random = Random(1);
        let mut by_rank = keys;
        random.shuffle(&mut by_rank);
        let zipf = Zipf::new(KEYS);
        let wanted: Vec<u32> =
            (0..GETS).map(|_| by_rank[zipf.rank(&mut random) as usize]).collect();
        self.in_batches(&wanted, |key, batch| add(batch, &[b"GET", name(key).as_bytes()]))?;
        let mut last = Vec::new();
        add(&mut last, &[b"SHUTDOWN", b"NOSAVE"])?;
        self.to.write_all(&last)?;
        // It says nothing more: the connection ends with it.
        self.from.read_line(&mut String::new())?;
        Ok(self.digest.finish())
    }

    fn in_batches(
        &mut self,
        keys: &[u32],
        mut command: impl FnMut(u32, &mut Vec<u8>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut batch = Vec::new();
        for keys in keys.chunks(BATCH) {
            batch.clear();
            keys.iter().try_for_each(|key| command(*key, &mut batch))?;
            self.to.write_all(&batch)?;
            keys.iter().try_for_each(|_| self.hear())?;
        }
        Ok(())
    }

    /// Reads one answer: a line, or a length and as many bytes.
    fn hear(&mut self) -> io::Result<()> {
        self.answer.clear();
        if self.from.read_until(b'\n', &mut self.answer)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = String::from_utf8_lossy(&self.answer);
        let line = line.trim_end();
        let bytes = match (
            line.as_bytes().first(),
            line.get(1..).and_then(|text| text.parse::<usize>().ok()),
        ) {
            (Some(b'+'), _) => 0,
            // The end of the line comes after the bytes, too.
            (Some(b'$'), Some(bytes)) => bytes + 2,
            _ => return Err(io::Error::other(line.to_string())),
        };
        self.digest.write(&self.answer);
        self.answer.resize(bytes, 0);
        self.from.read_exact(&mut self.answer)?;
        self.digest.write(&self.answer);
        Ok(())
    }
}

/// Adds a command as redis reads it.
fn add(batch: &mut Vec<u8>, words: &[&[u8]]) -> io::Result<()> {
    write!(batch, "*{}\r\n", words.len())?;
    for word in words {
        write!(batch, "${}\r\n", word.len())?;
        batch.extend_from_slice(word);
        batch.extend_from_slice(b"\r\n");
    }
    Ok(())
}

fn name(key: u32) -> String {
    format!("key:{key:08}")
}

fn value_bytes(key: u32) -> usize {
    512 + key as usize * 7919 % 3072
}

/// Ranks by Zipf's law, as Gray and others make them (Quickly generating billion-record synthetic
/// databases, 1994): exact for the first two, for the rest by the integral in place of the sum.
struct Zipf {
    count: f64,
    zeta: f64,
    eta: f64,
}

const THETA: f64 = 0.99;

impl Zipf {
    fn new(count: u32) -> Zipf {
        let zeta_of = |count: u32| (1..=count).map(|k| f64::from(k).powf(-THETA)).sum::<f64>();
        let (zeta, count) = (zeta_of(count), f64::from(count));
        let eta = (1.0 - (2.0 / count).powf(1.0 - THETA)) / (1.0 - zeta_of(2) / zeta);
        Zipf { count, zeta, eta }
    }

    /// From 0, the most frequent.
    fn rank(&self, random: &mut Random) -> u32 {
        // 53 bits are what a float holds.
        let share = (random.next() >> 11) as f64 / (1u64 << 53) as f64;
        let by_zeta = share * self.zeta;
        if by_zeta < 1.0 {
            return 0;
        }
        if by_zeta < 1.0 + 0.5f64.powf(THETA) {
            return 1;
        }
        let rank = self.count * (self.eta * share - self.eta + 1.0).powf(1.0 / (1.0 - THETA));
        (rank as u32).min(self.count as u32 - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn ranks_follow_zipfs_law() {
        const COUNT: u32 = 1000;
        const DRAWS: u32 = 1_000_000;
        let zipf = Zipf::new(COUNT);
        let mut random = Random(5);
        let mut seen = vec![0u32; COUNT as usize];
        (0..DRAWS).for_each(|_| seen[zipf.rank(&mut random) as usize] += 1);
        let expected = |ranks: std::ops::Range<u32>| {
            ranks.map(|rank| f64::from(rank + 1).powf(-THETA)).sum::<f64>() / zipf.zeta
                * f64::from(DRAWS)
        };
        for ranks in [0..1, 1..2, 2..10, 10..100, 100..500, 500..1000] {
            let found: u32 = seen[ranks.start as usize..ranks.end as usize].iter().sum();
            let ratio = f64::from(found) / expected(ranks.clone());
            assert!((0.9..1.1).contains(&ratio), "{ranks:?}: {ratio}");
        }
    }

    #[test]
    fn commands_and_answers() {
        let mut batch = Vec::new();
        add(&mut batch, &[b"SET", b"key", b"a\r\nb"]).unwrap();
        assert_eq!(batch, b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$4\r\na\r\nb\r\n");

        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut client = Client::new(ours).unwrap();
        theirs.write_all(b"+OK\r\n$4\r\na\r\nb\r\n-OOM no memory\r\n$-1\r\n").unwrap();
        client.hear().unwrap();
        assert!(client.answer.is_empty());
        client.hear().unwrap();
        assert_eq!(client.answer, b"a\r\nb\r\n");
        assert_eq!(client.hear().unwrap_err().to_string(), "-OOM no memory");
        assert!(client.hear().is_err(), "a key that is not there");
        drop(theirs);
        assert_eq!(client.hear().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_server_that_is_not_there_is_not_waited_for() {
        let path = std::env::temp_dir().join(format!("uzswap-redis-test-{}", std::process::id()));
        let over = AtomicBool::new(true);
        assert!(drive(&path, &over).unwrap_err().starts_with("no server"));
        // One that goes away at once.
        let listener = UnixListener::bind(&path).unwrap();
        let server = thread::spawn(move || drop(listener.accept()));
        assert!(drive(&path, &over).unwrap_err().starts_with("redis: "));
        server.join().unwrap();
        std::fs::remove_file(&path).unwrap();
    }
}
