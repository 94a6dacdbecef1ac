//! The claim of a run on an export, or a device: its first bytes.
//!
//! NBD knows no owners. So `uzswap run` writes into the export that it has it, and counts there
//! every second while it lives. A run that finds such a claim looks whether its count still grows:
//! then the export is in use; else it was left by a run that was killed, and is taken over. A run
//! that ends makes it zero again. An export in which there is anything else is not touched.
//!
//! Two runs that start at the same moment both write; the run that reads another's claim back gives
//! way.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use uzswap::nbd::{CMD_TRIM, CMD_WRITE};
use uzswap::store::extents::{CLAIM_BYTES, EXTENT_LEAST_BYTES};
use uzswap::store::remote::{Export, Failure as Refused, Link, Server};
use uzswap::sys::socket::Patience;
use uzswap::sys::{Errno, Result as Outcome};

use super::device::Device;
use super::words::in_words;

/// The block that has the claim.
const RECORD_BYTES: usize = 4096;
const MAGIC: &str = "uzswap store, in use by a run\n";
const LEFT: &str = "uzswap store, in use by processes that a run left behind\n";

/// The time between two counts.
pub const BEAT: Duration = Duration::from_secs(1);
/// A claim that has not counted for so long is nobody's: two counts may be lost.
const SILENCE: Duration = Duration::from_millis(3500);
/// The time within which two runs that write at the same moment see each other.
const SETTLES: Duration = Duration::from_millis(100);
/// The patience with each request: before the program starts, and while it runs. Then it is short,
/// because the counts of other exports wait behind the request.
const PATIENCE_NS: u64 = 5_000_000_000;
const HURRY_NS: u64 = 500_000_000;
/// How long a server is left alone after a request that came to nothing: for the rest of a beat.
/// The next beat counts again, so a slow TRIM does not make the claim look abandoned.
const LEFT_ALONE: Duration = Duration::from_millis(900);
/// The bytes that are searched for contents: partition tables and file systems begin within the
/// first 128 KiB.
const LOOKED_AT_BYTES: u64 = 128 << 10;
/// The most bytes of one TRIM: servers need not take longer ones.
const TRIM_BYTES: u64 = 32 << 20;

/// The way in which an export or a device is read and written.
enum Channel {
    Nbd(Box<Link>),
    Device(Device),
}

/// The size of an export or a device, and whether it can be trimmed.
#[derive(Clone, Copy)]
pub struct Traits {
    pub bytes: u64,
    pub can_trim: bool,
}

/// A connection of `uzswap run` to one export, of which it may be the owner.
pub struct Claimed {
    /// For messages.
    pub shown: String,
    pub server: Server,
    channel: Channel,
    /// The identifier that this run writes into its claim; empty while it has none.
    id: String,
    beats: u64,
    /// When it counted last; `None` while it has no claim.
    counted_at: Option<Instant>,
    patience_ns: u64,
    /// The moment since which the server is left alone.
    failed_at: Option<Instant>,
}

impl std::fmt::Debug for Claimed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Claimed").field(&self.shown).finish()
    }
}

/// The contents of the first bytes of an export or a device.
#[derive(PartialEq, Eq, Debug)]
enum Record {
    Blank,
    /// The identifier of the run that uses it, and its count.
    Used(String, u64),
    Left,
    /// Something else.
    Foreign,
}

impl Record {
    fn of(bytes: &[u8]) -> Record {
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
        let text = String::from_utf8_lossy(&bytes[..end]);
        if bytes[end..].iter().any(|b| *b != 0) {
            // Many a file system leaves the first bytes as they are, and begins after them.
            return Record::Foreign;
        }
        if end == 0 {
            return Record::Blank;
        }
        if text.starts_with(LEFT) {
            return Record::Left;
        }
        let used = || {
            let (by, count) = text.strip_prefix(MAGIC)?.split_once('\n')?;
            Some(Record::Used(by.to_string(), count.trim_end().parse().ok()?))
        };
        used().unwrap_or(Record::Foreign)
    }
}

impl Claimed {
    /// Connects, and asks what the export is like.
    pub fn connect(shown: &str, server: Server) -> Result<Claimed, String> {
        let mut link = Link::new();
        link.open(&server, &mut Patience::new(PATIENCE_NS)).map_err(|e| in_words(shown, e))?;
        check(shown, link.export())?;
        Ok(Self::over(shown, server, Channel::Nbd(Box::new(link))))
    }

    /// A block device, which nobody else has.
    pub fn device(path: &Path) -> Result<Claimed, String> {
        let device = Device::open(path)?;
        let shown = path.display().to_string();
        enough(&shown, device.bytes)?;
        Ok(Self::over(&shown, Device::server(path)?, Channel::Device(device)))
    }

    fn over(shown: &str, server: Server, channel: Channel) -> Claimed {
        Claimed {
            shown: shown.to_string(),
            server,
            channel,
            id: String::new(),
            beats: 0,
            counted_at: None,
            patience_ns: PATIENCE_NS,
            failed_at: None,
        }
    }

    pub fn traits(&self) -> Traits {
        match &self.channel {
            Channel::Nbd(link) => {
                Traits { bytes: link.export().bytes, can_trim: link.export().can_trim() }
            }
            Channel::Device(device) => Traits { bytes: device.bytes, can_trim: true },
        }
    }

    /// The program runs: nobody is to wait for this server for long.
    pub fn hurry(&mut self) {
        self.patience_ns = HURRY_NS;
    }

    fn read(&mut self, at: u64, buf: &mut [u8]) -> Outcome<()> {
        match &self.channel {
            Channel::Device(device) => device.read(at, buf),
            Channel::Nbd(_) => self.request(|link, patience| link.read(at, buf, patience)),
        }
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Outcome<()> {
        match &self.channel {
            Channel::Device(device) => device.write(at, bytes),
            Channel::Nbd(_) => {
                self.request(|link, patience| link.ask(CMD_WRITE, at, bytes.len(), bytes, patience))
            }
        }
    }

    /// Makes a request, once more where the connection turns out to be broken. After one that came
    /// to nothing none is made for a while.
    fn request(
        &mut self,
        mut ask: impl FnMut(&mut Link, &mut Patience) -> Result<(), Refused>,
    ) -> Outcome<()> {
        if self.failed_at.is_some_and(|at| at.elapsed() < LEFT_ALONE) {
            return Err(Errno::ETIMEDOUT);
        }
        let Channel::Nbd(link) = &mut self.channel else { unreachable!("a device is not asked") };
        let mut patience = Patience::new(self.patience_ns);
        let was_open = link.is_open();
        let mut once = || {
            link.open(&self.server, &mut patience).map_err(Refused::Broken)?;
            ask(link, &mut patience)
        };
        let mut answer = once();
        if was_open && matches!(answer, Err(Refused::Broken(_))) {
            answer = once();
        }
        self.failed_at = matches!(answer, Err(Refused::Broken(_))).then(Instant::now);
        answer.map_err(Refused::errno)
    }

    /// Reads and writes a little, timed: (4 KiB read, 64 KiB read, 64 KiB written), in nanoseconds.
    /// Only on an export that is claimed. `rounds` of each; the median counts.
    pub fn measure(&mut self, rounds: usize) -> Result<[u64; 3], String> {
        let mut buf = vec![0x5a; 64 << 10];
        let mut medians = [0; 3];
        for (i, median) in medians.iter_mut().enumerate() {
            let mut times: Vec<u64> = Vec::new();
            for _ in 0..rounds {
                let before = std::time::Instant::now();
                let done = match i {
                    0 => self.read(CLAIM_BYTES, &mut buf[..4096]),
                    1 => self.read(CLAIM_BYTES, &mut buf),
                    _ => self.write(CLAIM_BYTES, &buf),
                };
                done.map_err(|e| in_words(&self.shown, e))?;
                times.push(before.elapsed().as_nanos() as u64);
            }
            times.sort_unstable();
            *median = times[times.len() / 2];
        }
        self.trim(CLAIM_BYTES, 64 << 10).map_err(|e| in_words(&self.shown, e))?;
        Ok(medians)
    }

    fn record(&mut self) -> Result<Record, String> {
        let mut all = vec![0; CLAIM_BYTES as usize];
        self.read(0, &mut all).map_err(|e| in_words(&self.shown, e))?;
        Ok(Record::of(&all))
    }

    /// Whether the export is free, or what is the matter. Waits to see whether a claim that is
    /// there still counts. True: a claim is there that counts no more.
    pub fn look(&mut self) -> Result<bool, String> {
        self.look_beside(&mut [])
    }

    /// `beside`: claims that count on meanwhile.
    fn look_beside(&mut self, beside: &mut [Claimed]) -> Result<bool, String> {
        let shown = self.shown.clone();
        match self.record()? {
            Record::Blank => self.is_blank().map(|()| false),
            Record::Left => Err(format!(
                "{shown} is used by processes that a run left behind: when they have gone, start \
                 the server anew or make its first 4096 bytes zero"
            )),
            Record::Foreign => {
                Err(format!("{shown} holds something that is not uzswap's: {REMEDY}"))
            }
            Record::Used(by, count) => {
                let began = Instant::now();
                while began.elapsed() < SILENCE {
                    thread::sleep(SILENCE.saturating_sub(began.elapsed()).min(BEAT));
                    beside.iter_mut().for_each(Claimed::count_on);
                }
                match self.record()? {
                    Record::Used(still, now) if (&still, now) == (&by, count) => Ok(true),
                    Record::Used(still, _) => {
                        Err(format!("{shown} is used by another run, {still}: name another export"))
                    }
                    // The run that had it has ended just now.
                    _ => self.look_beside(beside),
                }
            }
        }
    }

    fn is_blank(&mut self) -> Result<(), String> {
        let mut bytes = vec![0; LOOKED_AT_BYTES as usize];
        for at in self.looked_at() {
            self.read(at, &mut bytes).map_err(|e| in_words(&self.shown, e))?;
            if let Some(first) = bytes.iter().position(|b| *b != 0) {
                let first = at + first as u64;
                return Err(format!(
                    "{} holds something, from byte {first} on: {REMEDY}",
                    self.shown
                ));
            }
        }
        Ok(())
    }

    /// Where the bytes begin that are searched for contents: the first bytes, and the last whole
    /// blocks.
    fn looked_at(&self) -> [u64; 2] {
        [0, (self.traits().bytes - LOOKED_AT_BYTES) / RECORD_BYTES as u64 * RECORD_BYTES as u64]
    }

    /// Takes the export. `by`: this run, in words that no other has. `beside`: exports that it has
    /// taken before, whose claims count on meanwhile.
    pub fn claim(&mut self, by: &str, beside: &mut [Claimed]) -> Result<(), String> {
        let is_left = self.look_beside(beside)?;
        self.id = by.to_string();
        self.beat().map_err(|e| in_words(&self.shown, e))?;
        thread::sleep(SETTLES);
        match self.record()? {
            Record::Used(whose, _) if whose == by => {
                if is_left {
                    let bytes = self.traits().bytes - CLAIM_BYTES;
                    self.trim_beside(CLAIM_BYTES, bytes / 4096 * 4096, beside)
                        .map_err(|e| in_words(&self.shown, e))?;
                }
                Ok(())
            }
            _ => {
                (self.id, self.counted_at) = (String::new(), None);
                Err(format!(
                    "{} was taken by another run just now: name another export",
                    self.shown
                ))
            }
        }
    }

    /// Writes the next count into the claim.
    pub fn beat(&mut self) -> Outcome<()> {
        self.beats += 1;
        self.counted_at = Some(Instant::now());
        let text = format!("{MAGIC}{}\n{}\n", self.id, self.beats);
        self.put(&text)
    }

    /// Counts if it is time to, in the middle of something that may take long.
    fn count_on(&mut self) {
        if self.counted_at.is_some_and(|at| at.elapsed() >= BEAT) {
            let _ = self.beat();
        }
    }

    fn put(&mut self, text: &str) -> Outcome<()> {
        let mut block = [0; RECORD_BYTES];
        let n = text.len().min(RECORD_BYTES - 1);
        block[..n].copy_from_slice(&text.as_bytes()[..n]);
        self.write(0, &block)
    }

    /// Gives the space of a range back to the server, if it knows how. One that says no keeps it,
    /// and that is all: what is written there next does not need it empty.
    pub fn trim(&mut self, at: u64, len: u64) -> Outcome<()> {
        self.trim_beside(at, len, &mut [])
    }

    /// `beside`: claims that count on meanwhile, as this one does.
    fn trim_beside(&mut self, at: u64, len: u64, beside: &mut [Claimed]) -> Outcome<()> {
        if let Channel::Device(device) = &self.channel {
            device.discard(at, len);
            return Ok(());
        }
        if !self.traits().can_trim {
            return Ok(());
        }
        for part in (at..at + len).step_by(TRIM_BYTES as usize) {
            let n = TRIM_BYTES.min(at + len - part) as usize;
            self.request(|link, patience| match link.ask(CMD_TRIM, part, n, &[], patience) {
                Err(Refused::Refused(_)) => Ok(()),
                answer => answer,
            })?;
            self.count_on();
            beside.iter_mut().for_each(Claimed::count_on);
        }
        Ok(())
    }

    /// The export is the run's no more. `is_used`: processes are left that use it.
    pub fn release(&mut self, is_used: bool) -> Outcome<()> {
        if self.id.is_empty() {
            return Ok(());
        }
        (self.id, self.counted_at) = (String::new(), None);
        // Nothing is wanted of the server after this.
        self.failed_at = None;
        if is_used {
            return self.put(LEFT);
        }
        // Pages were there, trimmed or not, and the next run would take them for somebody's. The
        // claim goes last.
        let zeros = vec![0; LOOKED_AT_BYTES as usize];
        self.looked_at().into_iter().rev().try_for_each(|at| self.write(at, &zeros))
    }
}

/// A program that could not be started after all has no use for its claim.
impl Drop for Claimed {
    fn drop(&mut self) {
        let _ = self.release(false);
        if let Channel::Nbd(link) = &mut self.channel {
            link.close();
        }
    }
}

const REMEDY: &str = "name an empty one, or make its first and last 128 KiB zero";

fn enough(shown: &str, bytes: u64) -> Result<(), String> {
    let least = CLAIM_BYTES + EXTENT_LEAST_BYTES;
    match bytes < least {
        true => Err(format!("{shown} has {bytes} bytes, and {least} is the least that works")),
        false => Ok(()),
    }
}

/// Whether an export can be a store.
fn check(shown: &str, export: &Export) -> Result<(), String> {
    enough(shown, export.bytes)?;
    match () {
        () if export.is_read_only() => Err(format!("{shown} is read-only")),
        () if export.block_bytes > 4096 => Err(format!(
            "{shown} wants requests of {} bytes at least, 4096 are sent",
            export.block_bytes
        )),
        () if !export.is_multi_conn() => Err(format!(
            "{shown} does not promise that one connection sees what another has written \
             (multi-conn): start its server so that it does (qemu-nbd --shared=64, nbdkit \
             --filter=multi-conn), or take 'uzswap disk'"
        )),
        () => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::address::Address;
    use std::io::{Read, Write};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::sync::{Arc, Mutex};
    use uzswap::nbd::*;

    type Bytes = Arc<Mutex<Vec<u8>>>;

    /// Serves a connection to an export, but for TRIM, which it refuses.
    fn serve(mut stream: UnixStream, bytes: &Bytes) -> std::io::Result<()> {
        stream.write_all(b"NBDMAGICIHAVEOPT\0\x03")?;
        let mut head = [0; 20];
        stream.read_exact(&mut head)?;
        let len = u32::from_be_bytes([head[16], head[17], head[18], head[19]]);
        stream.read_exact(&mut vec![0; len as usize])?;
        let flags = HAS_FLAGS | SEND_TRIM | CAN_MULTI_CONN;
        let size = (bytes.lock().unwrap().len() as u64).to_be_bytes();
        let info = [&INFO_EXPORT.to_be_bytes()[..], &size, &flags.to_be_bytes()].concat();
        for (kind, payload) in [(REP_INFO, &info[..]), (REP_ACK, &[][..])] {
            let numbers = [OPT_GO, kind, payload.len() as u32].map(u32::to_be_bytes).concat();
            let reply = [&OPTION_REPLY_MAGIC.to_be_bytes()[..], &numbers, payload].concat();
            stream.write_all(&reply)?;
        }
        loop {
            let mut head = [0; Request::BYTES];
            stream.read_exact(&mut head)?;
            let request = Request::parse(&head).expect("it is one");
            let at = request.offset as usize;
            let (range, mut data) = (at..at + request.len as usize, Vec::new());
            let error = match request.command {
                CMD_READ => {
                    data.extend_from_slice(&bytes.lock().unwrap()[range]);
                    0
                }
                CMD_WRITE => {
                    stream.read_exact(&mut bytes.lock().unwrap()[range])?;
                    0
                }
                _ => Error::Invalid as u32,
            };
            stream.write_all(&[&simple_reply(error, request.cookie)[..], &data].concat())?;
        }
    }

    /// A connection to an export of 2 MiB, and the bytes of that.
    fn export(name: &str) -> (Claimed, Bytes) {
        let name = format!("uzswap-claim-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let bytes = Arc::new(Mutex::new(vec![0; 2 << 20]));
        let served = bytes.clone();
        thread::spawn(move || listener.accept().map(|(stream, _)| serve(stream, &served)));
        let address = Address::parse(&format!("nbd+unix:///?socket={}", path.display())).unwrap();
        let claim = Claimed::connect("it", address.resolve().unwrap()).unwrap();
        let _ = std::fs::remove_file(&path);
        (claim, bytes)
    }

    fn record(bytes: &Bytes) -> Record {
        Record::of(&bytes.lock().unwrap()[..CLAIM_BYTES as usize])
    }

    #[test]
    fn a_server_that_refuses_to_trim_is_none_that_does_not_answer() {
        let (mut claim, bytes) = export("refuses");
        bytes.lock().unwrap()[CLAIM_BYTES as usize] = 1;
        assert_eq!(claim.trim(CLAIM_BYTES, 1 << 20), Ok(()));
        assert_eq!((claim.failed_at, record(&bytes)), (None, Record::Blank));
    }

    #[test]
    fn records_are_known() {
        let block = |text: &str| {
            let mut block = vec![0; CLAIM_BYTES as usize];
            block[..text.len()].copy_from_slice(text.as_bytes());
            Record::of(&block)
        };
        assert_eq!(block(""), Record::Blank);
        assert_eq!(block(LEFT), Record::Left);
        assert_eq!(block(&format!("{MAGIC}me\n17\n")), Record::Used("me".to_string(), 17));
        for foreign in ["x", "uzswap", MAGIC, "\u{7f}ELF"] {
            assert_eq!(block(foreign), Record::Foreign, "{foreign:?}");
        }
        assert_eq!(Record::of(&[0xff; RECORD_BYTES]), Record::Foreign);
        // A file system that was made over a claim, and left that as it was.
        for at in [1024, 4096, 65_000] {
            let mut block = vec![0; CLAIM_BYTES as usize];
            block[..MAGIC.len()].copy_from_slice(MAGIC.as_bytes());
            block[MAGIC.len()..MAGIC.len() + 5].copy_from_slice(b"me\n1\n");
            assert!(matches!(Record::of(&block), Record::Used(..)));
            block[at] = 1;
            assert_eq!(Record::of(&block), Record::Foreign);
        }
    }

    #[test]
    fn a_claim_is_given_up_also_just_after_a_request_that_came_to_nothing() {
        let (mut claim, bytes) = export("given-up");
        // As if it were always just now.
        let failed_at = Instant::now().checked_add(Duration::from_secs(3600));
        for (is_used, left) in [(true, Record::Left), (false, Record::Blank)] {
            (claim.id, claim.beats, claim.failed_at) = ("me".to_string(), 0, None);
            claim.beat().unwrap();
            assert_eq!(record(&bytes), Record::Used("me".to_string(), 1));
            claim.failed_at = failed_at;
            assert_eq!(claim.beat(), Err(Errno::ETIMEDOUT));
            assert_eq!((claim.release(is_used), record(&bytes)), (Ok(()), left));
        }
    }

    #[test]
    fn claims_count_on_while_much_is_given_back_and_not_without_being_claims() {
        let (mut claim, bytes) = export("counts");
        let (mut other, its_bytes) = export("counts-beside");
        claim.trim_beside(CLAIM_BYTES, 1 << 20, std::slice::from_mut(&mut other)).unwrap();
        assert_eq!((record(&bytes), record(&its_bytes)), (Record::Blank, Record::Blank));
        for claim in [&mut claim, &mut other] {
            claim.id = "me".to_string();
            claim.beat().unwrap();
        }
        let used = |count| Record::Used("me".to_string(), count);
        let later = Instant::now().checked_add(Duration::from_secs(3600));
        let due = Instant::now().checked_sub(BEAT);
        for (at, counts) in [(later, 1), (due, 2), (later, 2)] {
            (claim.counted_at, other.counted_at) = (at, at);
            claim.trim_beside(CLAIM_BYTES, 1 << 20, std::slice::from_mut(&mut other)).unwrap();
            assert_eq!((record(&bytes), record(&its_bytes)), (used(counts), used(counts)));
        }
        for claim in [&mut claim, &mut other] {
            claim.counted_at = due;
            claim.release(false).unwrap();
            claim.trim(CLAIM_BYTES, 4096).unwrap();
        }
        assert_eq!((record(&bytes), record(&its_bytes)), (Record::Blank, Record::Blank));
    }

    #[test]
    fn an_export_with_anything_at_either_end_is_not_free() {
        let (mut claim, bytes) = export("free");
        assert_eq!(claim.look(), Ok(false));
        let size = claim.traits().bytes as usize;
        let looked_at = LOOKED_AT_BYTES as usize;
        for at in [0, 1, RECORD_BYTES, looked_at - 1, size - looked_at, size - 1] {
            bytes.lock().unwrap()[at] = 1;
            let why = claim.look().unwrap_err();
            assert!(why.contains("it holds something"), "{at}: {why}");
            bytes.lock().unwrap()[at] = 0;
        }
        bytes.lock().unwrap()[..LEFT.len()].copy_from_slice(LEFT.as_bytes());
        assert!(claim.look().unwrap_err().contains("that a run left behind"));
        // Without a claim of its own it changes nothing.
        claim.release(false).unwrap();
        drop(claim);
        assert_eq!(record(&bytes), Record::Left);
    }
}
