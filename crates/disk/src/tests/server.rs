//! Connections over sockets: many of them, slow ones, and orders.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::*;
use crate::keeper::Upkeep;
use crate::orders;
use crate::protocol::*;
use crate::server::{CONNECTIONS_MOST, Listener, Server};
use crate::testing::{export, request};

struct Served {
    server: Arc<Server>,
    path: PathBuf,
}

impl Served {
    fn new(disk: Disk, name: &str) -> Served {
        let path = std::env::temp_dir().join(format!("uzswap-disk-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let export = export(&disk);
        let server = Arc::new(Server::new(Arc::new(disk), export, Arc::new(Upkeep::new(None, 0))));
        server.listen(Listener::Unix(UnixListener::bind(&path).unwrap())).unwrap();
        Served { server, path }
    }

    fn connect(&self) -> UnixStream {
        UnixStream::connect(&self.path).unwrap()
    }

    /// A client in its session.
    fn client(&self) -> UnixStream {
        let mut stream = self.connect();
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).unwrap();
        stream.write_all(&[0, 0, 0, 3]).unwrap();
        stream.write_all(&[&b"IHAVEOPT\0\0\0\x01\0\0\0\0"[..]].concat()).unwrap();
        let mut export = [0; 10];
        stream.read_exact(&mut export).unwrap();
        stream
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(60), "never: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn write(stream: &mut UnixStream, at: u64, bytes: &[u8]) {
    stream.write_all(&request(0, CMD_WRITE, 1, at, bytes.len() as u32)).unwrap();
    stream.write_all(bytes).unwrap();
    let mut reply = [0; 16];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(reply, simple_reply(0, 1));
}

fn read_by(stream: &mut UnixStream, at: u64, len: usize) -> Vec<u8> {
    stream.write_all(&request(0, CMD_READ, 2, at, len as u32)).unwrap();
    let mut reply = [0; 16];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(reply, simple_reply(0, 2));
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

#[test]
fn what_one_connection_wrote_another_reads() {
    let served = Served::new(disk(MIB, 4 * MIB), "two");
    let (mut a, mut b) = (served.client(), served.client());
    write(&mut a, 5000, &[9; 3000]);
    assert_eq!(read_by(&mut b, 5000, 3000), [9; 3000]);
    drop(a);
    eventually("one has gone", || served.server.clients() == 1);
    write(&mut b, 0, &[1; 4]);
}

#[test]
fn who_comes_when_all_places_are_taken_is_turned_away() {
    let served = Served::new(disk(MIB, 4 * MIB), "many");
    let mut all: Vec<UnixStream> = (0..CONNECTIONS_MOST).map(|_| served.client()).collect();
    for _ in 0..20 {
        let mut late = served.connect();
        assert_eq!(late.read(&mut [0; 18]).unwrap_or(0), 0, "not even greeted");
    }
    for (n, stream) in all.iter_mut().enumerate() {
        write(stream, n as u64 * 4096, &[n as u8 + 1; 4096]);
    }
    let last = all.len() as u64 - 1;
    assert_eq!(read_by(&mut all[0], last * 4096, 1), [CONNECTIONS_MOST as u8]);
    all.truncate(CONNECTIONS_MOST / 2);
    eventually("places are free", || served.server.clients() == CONNECTIONS_MOST / 2);
    write(&mut served.client(), 0, &[3; 10]);
}

#[test]
fn who_does_not_take_replies_keeps_nobody_else_waiting() {
    let served = Served::new(disk(64 * MIB, 80 * MIB), "greedy");
    let mut greedy = served.client();
    write(&mut greedy, 0, &noise(1, MIB as usize));
    // Asks for far more than the socket holds, and takes nothing; then goes in the middle of a
    // write.
    for n in 0..64 {
        greedy.write_all(&request(0, CMD_READ, n, 0, MIB as u32)).unwrap();
    }
    let mut half = served.client();
    half.write_all(&request(0, CMD_WRITE, 1, 0, 4 << 20)).unwrap();
    half.write_all(&[1; 5000]).unwrap();
    let mut other = served.client();
    for n in 0..20 {
        write(&mut other, 32 * MIB + n * 4096, &[n as u8; 4096]);
    }
    drop((greedy, half));
    eventually("they have gone", || served.server.clients() == 1);
    served.server.disk.cache().check();
}

#[test]
fn orders_do_what_they_say() {
    let served = Served::new(disk_over(true, 8 * MIB, 16 * MIB), "orders");
    let disk = &served.server.disk;
    disk.write(0, &noise(1, 400 << 10)).unwrap();
    disk.write(4 * MIB, &[3; 400 << 10]).unwrap();
    let order = |line: &str| orders::run(line, &served.server);
    assert_eq!(order("mm_stat").unwrap().split_whitespace().nth(7), Some("100"));
    assert!(order("stats").unwrap().contains("\nclients 0\n"));
    assert_eq!(order("writeback idle").unwrap(), "0 pages written back\n");
    order("idle all").unwrap();
    assert_eq!(
        order("recompress idle max_pages=30").unwrap(),
        "30 pages tried, 0 are smaller now\n"
    );
    assert_eq!(order("writeback incompressible").unwrap(), "30 pages written back\n");
    order("set writeback_limit=20").unwrap();
    assert_eq!(order("writeback huge_idle max_pages=5").unwrap(), "5 pages written back\n");
    assert_eq!(order("writeback idle").unwrap(), "15 pages written back\n");
    assert_eq!(order("writeback idle").unwrap(), "0 pages written back\n");
    order("set writeback_limit=none").unwrap();
    assert_eq!(order("writeback huge").unwrap(), "50 pages written back\n");
    assert_eq!(order("bd_stat").unwrap().split_whitespace().next(), Some("100"));
    assert!(read(disk, 0, 400 << 10) == noise(1, 400 << 10));
    order("set memory=1048576").unwrap();
    assert_eq!(disk.memory_bytes(), MIB);
    order("set compressor=lz4").unwrap();
    order("set recompressor=none").unwrap();
    order("set idle_after=60").unwrap();
    assert!(order("stats").unwrap().contains("\nidle_after 60\n"));
    order("set read_only=1").unwrap();
    assert!(order("reset").unwrap_err().contains("read-only"));
    order("set read_only=0").unwrap();
    assert!(order("compact").unwrap().ends_with("bytes freed\n"));
    order("reset").unwrap();
    assert_eq!(read(disk, 0, 4096), [0; 4096]);
    for (line, word) in [
        ("", "missing"),
        ("fly", "no order 'fly'"),
        ("mm_stat now", "takes no 'now'"),
        ("idle", "number of seconds"),
        ("idle soon", "'soon' is no number"),
        ("writeback", "takes idle"),
        ("writeback cold", "'cold'"),
        ("writeback idle threshold=7", "'threshold'"),
        ("recompress max_pages=x", "'x' is no number"),
        ("set", "one NAME=VALUE"),
        ("set memory", "'memory' is no NAME=VALUE"),
        ("set memory=much", "'much' is no number"),
        ("set compressor=gzip", "gzip"),
        ("set read_only=2", "not '2'"),
        ("set colour=red", "no setting 'colour'"),
    ] {
        let error = order(line).unwrap_err();
        assert!(error.contains(word), "{line}: {error}");
    }
    assert!(disk.cache().counters().stored_pages == 0);
}

#[test]
fn without_a_store_nothing_is_written_back() {
    let served = Served::new(disk(MIB, 4 * MIB), "storeless");
    let error = orders::run("writeback huge", &served.server).unwrap_err();
    assert!(error.contains("--store"), "{error}");
}

#[test]
fn an_order_to_write_back_says_that_the_store_fails() {
    let served = Served::new(disk_over(true, MIB, 4 * MIB), "failing");
    let disk = &served.server.disk;
    disk.write(0, &noise(1, MIB as usize)).unwrap();
    let mut descriptors = Vec::new();
    disk.cache().for_each_descriptor(|fd| descriptors.push(fd));
    // A file that is always full takes the place of the store's.
    socket::replace(descriptors[0], fd::open_read_write(c"/dev/full").unwrap()).unwrap();
    for line in ["writeback huge", "writeback huge max_pages=3"] {
        let error = orders::run(line, &served.server).unwrap_err();
        assert!(error.contains("No space left on device"), "{error}");
    }
    assert!(read(disk, 0, MIB as usize) == noise(1, MIB as usize));
    disk.cache().check();
}

#[test]
fn an_order_is_one_line() {
    let served = Served::new(disk(MIB, 4 * MIB), "line");
    let said = |bytes: Vec<u8>| {
        let (mut a, b) = UnixStream::pair().unwrap();
        let server = served.server.clone();
        let answers = thread::spawn(move || orders::serve(&b, &server, || {}));
        let _ = a.write_all(&bytes);
        let _ = a.shutdown(std::net::Shutdown::Write);
        let mut text = String::new();
        let _ = a.read_to_string(&mut text);
        let _ = answers.join().unwrap();
        text
    };
    assert!(said(b"io_stat\n".to_vec()).starts_with("ok\n"));
    assert!(said(b"io_stat".to_vec()).starts_with("error\n"));
    assert!(said(vec![b'x'; 100_000]).starts_with("error\n"));
    assert!(said(b"\xff\xfe\n".to_vec()).starts_with("error\n"));
}

#[test]
fn the_keeper_gives_memory_back_and_compresses_again() {
    let disk = Arc::new(disk(64 * MIB, 80 * MIB));
    let upkeep = Arc::new(Upkeep::new(None, 1));
    let (tell, told) = std::sync::mpsc::channel();
    let keeper = crate::keeper::start(disk.clone(), upkeep.clone(), move |line| {
        let _ = tell.send(line.to_string());
    });
    let text: Vec<u8> =
        (0..4 * MIB).map(|i| b"words and words again, "[(i * i / 977 % 23) as usize]).collect();
    disk.write(0, &text).unwrap();
    eventually("what is idle is smaller", || disk.cache().counters().recompressed_pages > 100);
    assert!(read(&disk, 0, text.len()) == text);
    // Idle pages may go on becoming smaller meanwhile, by portions.
    let said = (0..60).find_map(|_| {
        disk.set_memory_bytes(disk.used_bytes() * 100 / 95);
        told.recv_timeout(Duration::from_secs(1)).ok()
    });
    let said = said.expect("it is nearly full");
    assert!(said.contains("ENOSPC") && said.contains("set memory="), "{said}");
    disk.trim(0, 64 * MIB).unwrap();
    eventually("tables are given back", || disk.used_bytes() < MIB / 4);
    upkeep.stop();
    keeper.unwrap().join().unwrap();
}
