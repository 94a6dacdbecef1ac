//! Writers of our own, for data that fio cannot make: they do what its jobs do, a part of the disk
//! each, one request at a time.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use uzswap::nbd::*;
use uzswap_cli::pages::{PAGE_BYTES, PageBytes, Random};

use super::jobs::REQUEST_BYTES;

/// A reply that takes longer never comes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes that may be written past the page cache.
#[repr(align(4096))]
struct Block([u8; REQUEST_BYTES as usize]);

/// Where a writer's requests go.
pub enum Way {
    Nbd(UnixStream),
    Device(File),
}

impl Way {
    /// Connects to an export, by the oldest form of the handshake.
    pub fn connect(socket: &Path, export: &str) -> io::Result<Way> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        // Two words and flags; to which flags, an option and its name are the answer; then the size
        // and the flags of the export.
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        if greeting[..8] != INIT_MAGIC.to_be_bytes()
            || greeting[8..16] != OPTION_MAGIC.to_be_bytes()
        {
            return Err(io::Error::other("not an NBD server"));
        }
        let mut answer = Vec::from(u32::from(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES).to_be_bytes());
        answer.extend(OPTION_MAGIC.to_be_bytes());
        answer.extend(OPT_EXPORT_NAME.to_be_bytes());
        answer.extend((export.len() as u32).to_be_bytes());
        answer.extend(export.as_bytes());
        stream.write_all(&answer)?;
        stream.read_exact(&mut [0; 10])?;
        Ok(Way::Nbd(stream))
    }

    pub fn open(device: &Path) -> io::Result<Way> {
        let file = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(device)?;
        Ok(Way::Device(file))
    }

    fn write(&mut self, at: u64, block: &Block) -> io::Result<()> {
        let stream = match self {
            Way::Nbd(stream) => stream,
            Way::Device(file) => return file.write_all_at(&block.0, at),
        };
        let len = REQUEST_BYTES as u32;
        let request = Request { flags: 0, command: CMD_WRITE, cookie: at, offset: at, len };
        let mut sent = [0; Request::BYTES + REQUEST_BYTES as usize];
        sent[..Request::BYTES].copy_from_slice(&request.to_bytes());
        sent[Request::BYTES..].copy_from_slice(&block.0);
        stream.write_all(&sent)?;
        let mut reply = [0; SIMPLE_REPLY_BYTES];
        stream.read_exact(&mut reply)?;
        match reply == simple_reply(0, at) {
            true => Ok(()),
            false => Err(io::Error::other(format!("the write at {at} failed: {reply:?}"))),
        }
    }
}

/// The order of a writer's requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    Forward,
    Random,
}

/// Numbers of a part's requests, as they are written.
fn places(order: Order, part: u32, requests: u32) -> Vec<u32> {
    let mut places: Vec<u32> = (0..requests).collect();
    if order == Order::Random {
        Random(u64::from(part) + 1).shuffle(&mut places);
    }
    places
}

/// Writes the pages over and over, until each of the ways has filled a part of the disk. Says how
/// many seconds that took.
pub fn write(
    ways: &mut [Way],
    pages: &[PageBytes],
    bytes_of_each: u64,
    order: Order,
) -> io::Result<f64> {
    let requests = u32::try_from(bytes_of_each / REQUEST_BYTES).expect("a part of memory");
    let start = Barrier::new(ways.len() + 1);
    let one = |part: u32, way: &mut Way| {
        let places = places(order, part, requests);
        let mut block = Block([0; REQUEST_BYTES as usize]);
        start.wait();
        for place in places {
            let at = u64::from(part) * bytes_of_each + u64::from(place) * REQUEST_BYTES;
            let (to, _) = block.0.as_chunks_mut::<PAGE_BYTES>();
            for (page, to) in (at as usize / PAGE_BYTES..).zip(to) {
                *to = pages[page % pages.len()];
            }
            way.write(at, &block)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..)
            .zip(ways.iter_mut())
            .map(|(part, way)| scope.spawn(move || one(part, way)))
            .collect();
        start.wait();
        let started = Instant::now();
        let ends: Vec<io::Result<()>> =
            threads.into_iter().map(|t| t.join().expect("a panic ends the process")).collect();
        let seconds = started.elapsed().as_secs_f64();
        ends.into_iter().collect::<io::Result<()>>().map(|()| seconds)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_of_a_part_is_written_once() {
        assert_eq!(places(Order::Forward, 3, 4), [0, 1, 2, 3]);
        let mut random = places(Order::Random, 3, 1000);
        assert_ne!(random, places(Order::Random, 4, 1000));
        random.sort_unstable();
        assert_eq!(random, places(Order::Forward, 3, 1000));
    }

    #[test]
    fn parts_are_of_the_pages_that_lie_there() {
        let path = std::env::temp_dir().join(format!("uzswap-writer-{}", std::process::id()));
        let file = || {
            let opened = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
            Way::Device(opened.unwrap())
        };
        let pages: Vec<PageBytes> = (0..7).map(|tag| [tag; PAGE_BYTES]).collect();
        for order in [Order::Forward, Order::Random] {
            let mut ways = [file(), file(), file()];
            write(&mut ways, &pages, 2 * REQUEST_BYTES, order).unwrap();
            let bytes = std::fs::read(&path).unwrap();
            assert_eq!(bytes.len() as u64, 6 * REQUEST_BYTES);
            let (written, _) = bytes.as_chunks::<PAGE_BYTES>();
            assert!(written.iter().enumerate().all(|(i, page)| *page == pages[i % 7]));
            std::fs::remove_file(&path).unwrap();
        }
    }
}
