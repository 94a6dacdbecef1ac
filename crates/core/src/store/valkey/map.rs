//! Which node has which key: slots, and what a Cluster says of them.
//!
//! ```text
//!   key --- CRC16 ---> one of 16384 slots ---> a primary
//! ```
//!
//! The map comes by `CLUSTER SLOTS`, which all versions know, and is read as it comes: of each
//! primary its address is kept and whether it has a replica, of each slot the primary's number.

use super::resp::{Address, Complaint, Head, Incoming, Stream, name_of};
use crate::store::remote::EPROTO;
use crate::sys::{Errno, Result};

pub const SLOTS: usize = 16384;
/// Primaries of one Cluster: two connections to each are this process's. More are seldom.
pub const NODES_MOST: usize = 16;
/// Replies within a map: 16384 ranges of a primary and two replicas each, with what is said of
/// them, have some 500 000. A server that sends more would keep us for ever.
const PARTS_MOST: usize = 1 << 19;
/// Parts of an array in the map (a range has one for each of its nodes), and parts of a node, at
/// most.
const RANGE_PARTS_MOST: usize = 64;
const NODE_PARTS_MOST: usize = 16;
/// The longest text that is passed over, and the longest name of a host.
const TEXT_MOST_BYTES: usize = 4096;
const HOST_BYTES: usize = 255;
/// A Cluster of more primaries than we take.
pub const TOO_MANY: Errno = Errno::EMFILE;

/// CRC16 as Clusters have it (XMODEM: the polynomial 0x1021, from zero).
const CRC: [u16; 256] = {
    let mut table = [0u16; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = (i as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 != 0 { crc << 1 ^ 0x1021 } else { crc << 1 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
};

/// The slot of a key without braces.
pub fn slot_of(key: &[u8]) -> u16 {
    let step = |crc: u16, byte: &u8| crc << 8 ^ CRC[usize::from((crc >> 8) as u8 ^ byte)];
    key.iter().fold(0, step) % SLOTS as u16
}

/// A primary, as the map names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Primary {
    pub address: Address,
    pub has_replica: bool,
    /// As redirections name it: see [`name_of`].
    pub name: u64,
}

/// See the module.
pub struct Map {
    primaries: [Primary; NODES_MOST],
    len: usize,
    /// By slot: the number of a primary plus one, 0: nobody has it.
    owners: Box<[u8]>,
}

/// A map that is being read.
struct Reader<'a, S> {
    incoming: &'a mut Incoming,
    stream: &'a mut S,
    parts: usize,
}

impl<S: Stream> Reader<'_, S> {
    fn head(&mut self) -> Result<Head> {
        self.parts += 1;
        if self.parts > PARTS_MOST {
            return Err(EPROTO);
        }
        self.incoming.head(self.stream)
    }

    fn array(&mut self, most: usize) -> Result<usize> {
        match self.head()? {
            Head::Array(n) if n <= most => Ok(n),
            _ => Err(EPROTO),
        }
    }

    fn number(&mut self, most: usize) -> Result<usize> {
        match self.head()? {
            Head::Number(n) => usize::try_from(n).ok().filter(|n| *n <= most).ok_or(EPROTO),
            _ => Err(EPROTO),
        }
    }

    /// A text; empty, if the server has none; `None`, if it is longer than there is room.
    fn text<'t>(&mut self, into: &'t mut [u8]) -> Result<Option<&'t [u8]>> {
        match self.head()? {
            Head::Bulk(n) if n <= TEXT_MOST_BYTES => {
                let kept = self.incoming.body_beginning(self.stream, n, into)?;
                Ok((n <= into.len()).then_some(&into[..kept]))
            }
            Head::Nothing | Head::Status => Ok(Some(&[])),
            _ => Err(EPROTO),
        }
    }

    /// A reply of any kind, passed over. `depth`: arrays within arrays.
    fn skip(&mut self, depth: usize) -> Result<()> {
        match self.head()? {
            Head::Bulk(n) if n <= TEXT_MOST_BYTES => {
                self.incoming.body_beginning(self.stream, n, &mut []).map(drop)
            }
            Head::Array(n) if depth > 0 && n <= RANGE_PARTS_MOST => {
                (0..n).try_for_each(|_| self.skip(depth - 1))
            }
            Head::Bulk(_) | Head::Array(_) => Err(EPROTO),
            _ => Ok(()),
        }
    }

    /// A node: its address, if that is in digits, and its name. `from`: the node that we have
    /// asked.
    fn node(&mut self, from: Address) -> Result<(Option<Address>, u64)> {
        let parts = self.array(NODE_PARTS_MOST)?;
        if parts < 2 {
            return Err(EPROTO);
        }
        let (mut host, mut digits) = ([0; HOST_BYTES], [0; 64]);
        let host = self.text(&mut host)?;
        let port = self.number(65535)? as u16;
        let name = host.map_or(0, |host| name_of(host, port));
        // The endpoint may be a name; then the words after the node's id say its address, too.
        let mut address = match host {
            Some([]) => from.with_port(port),
            host => host.and_then(|host| Address::of(host, port)),
        };
        for part in 2..parts {
            if part == 2 {
                self.skip(1)?;
                continue;
            }
            let words = match self.head()? {
                Head::Array(n) if n <= RANGE_PARTS_MOST => n,
                Head::Nothing => 0,
                _ => return Err(EPROTO),
            };
            for _ in 0..words / 2 {
                let mut name = [0; 16];
                let is_ip = self.text(&mut name)? == Some(b"ip");
                let value = self.text(&mut digits)?.unwrap_or(&[]);
                address = address.or(if is_ip { Address::of(value, port) } else { None });
            }
            (0..words % 2).try_for_each(|_| self.skip(1))?;
        }
        Ok((address, name))
    }
}

impl Map {
    /// An empty map. Allocates, so not for use in a fault.
    pub fn new() -> Map {
        let none = Primary { address: Address::NONE, has_replica: false, name: 0 };
        Map { primaries: [none; NODES_MOST], len: 0, owners: vec![0; SLOTS].into_boxed_slice() }
    }

    pub fn primaries(&self) -> &[Primary] {
        &self.primaries[..self.len]
    }

    /// The primary of a slot, by number.
    pub fn owner(&self, slot: usize) -> Option<usize> {
        usize::from(self.owners[slot]).checked_sub(1)
    }

    /// Reads the reply to `CLUSTER SLOTS`. False: the server is not of a Cluster.
    pub fn read(
        &mut self,
        incoming: &mut Incoming,
        stream: &mut impl Stream,
        from: Address,
    ) -> Result<bool> {
        let mut reader = Reader { incoming, stream, parts: 0 };
        self.len = 0;
        self.owners.fill(0);
        let ranges = match reader.head()? {
            Head::Array(n) if n <= SLOTS => n,
            Head::Error(Complaint::Other) => return Ok(false),
            Head::Error(why) => return Err(why.errno()),
            _ => return Err(EPROTO),
        };
        for _ in 0..ranges {
            self.range(&mut reader, from)?;
        }
        Ok(true)
    }

    fn range(&mut self, reader: &mut Reader<'_, impl Stream>, from: Address) -> Result<()> {
        let parts = reader.array(RANGE_PARTS_MOST)?;
        if parts < 3 {
            return Err(EPROTO);
        }
        let (first, last) = (reader.number(SLOTS - 1)?, reader.number(SLOTS - 1)?);
        let (primary, name) = reader.node(from)?;
        for _ in 3..parts {
            reader.node(from)?;
        }
        let Some(address) = primary.filter(|_| first <= last) else { return Ok(()) };
        let number = self.primary(Primary { address, has_replica: parts > 3, name })?;
        self.owners[first..=last].fill(number as u8 + 1);
        Ok(())
    }

    fn primary(&mut self, primary: Primary) -> Result<usize> {
        if let Some(i) = self.primaries().iter().position(|p| p.address == primary.address) {
            return Ok(i);
        }
        *self.primaries.get_mut(self.len).ok_or(TOO_MANY)? = primary;
        self.len += 1;
        Ok(self.len - 1)
    }
}

impl Default for Map {
    fn default() -> Self {
        Map::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bytes<'a>(&'a [u8]);

    impl Stream for Bytes<'_> {
        fn some(&mut self, into: &mut [u8]) -> Result<usize> {
            let n = into.len().min(self.0.len()).min(7);
            into[..n].copy_from_slice(&self.0[..n]);
            self.0 = &self.0[n..];
            if n == 0 { Err(Errno(104)) } else { Ok(n) }
        }
    }

    const FROM: &str = "127.0.0.1";

    fn address(host: &str, port: u16) -> Address {
        Address::of(host.as_bytes(), port).unwrap()
    }

    fn read(reply: &str) -> Result<(bool, Map)> {
        let mut map = Map::new();
        let mut bytes = Bytes(reply.as_bytes());
        map.read(&mut Incoming::new(), &mut bytes, address(FROM, 1)).map(|is| (is, map))
    }

    fn is_whole(map: &Map) -> bool {
        map.owners.iter().all(|owner| *owner != 0)
    }

    fn bulk(text: &str) -> String {
        format!("${}\r\n{text}\r\n", text.len())
    }

    fn node(host: &str, port: u16, metadata: &[&str]) -> String {
        let words: String = metadata.iter().map(|w| bulk(w)).collect();
        format!("*4\r\n{host}:{port}\r\n{}*{}\r\n{words}", bulk("id"), metadata.len())
    }

    #[test]
    fn slots_are_those_of_clusters() {
        // From the specification, and from CLUSTER KEYSLOT of a server.
        assert_eq!(slot_of(b"123456789"), 0x31c3);
        assert_eq!(slot_of(b"foo"), 12182);
        assert_eq!(slot_of(b""), 0);
    }

    #[test]
    fn maps_are_read() {
        let reply = [
            "*3\r\n".to_string(),
            "*4\r\n:0\r\n:5460\r\n".to_string(),
            node(&bulk("10.0.0.1"), 7001, &[]),
            node(&bulk("10.0.0.2"), 7002, &[]),
            "*3\r\n:5461\r\n:16382\r\n".to_string(),
            node(&bulk("name.example"), 7003, &["hostname", "x", "ip", "10.0.0.3"]),
            "*3\r\n:16383\r\n:16383\r\n".to_string(),
            node("$-1\r\n", 7004, &[]),
        ]
        .concat();
        let (is_cluster, map) = read(&reply).unwrap();
        assert!(is_cluster && is_whole(&map));
        let of = |slot: usize| map.primaries()[map.owner(slot).unwrap()];
        let primary = |host, port, has_replica, name: &str| {
            let name = name_of(name.as_bytes(), port);
            Primary { address: address(host, port), has_replica, name }
        };
        assert_eq!(of(5460), primary("10.0.0.1", 7001, true, "10.0.0.1"));
        assert_eq!(of(5461), primary("10.0.0.3", 7003, false, "name.example"));
        assert_eq!(of(16383), primary(FROM, 7004, false, ""));
        assert_eq!(map.primaries().len(), 3);
        let (is_cluster, map) =
            read("-ERR This instance has cluster support disabled\r\n").unwrap();
        assert!(!is_cluster && !is_whole(&map));
        assert_eq!(read("-NOPERM no\r\n").err(), Some(Errno::EACCES));
        // Every byte of it may be the last.
        for end in 0..reply.len() {
            assert!(read(&reply[..end]).is_err(), "{end}");
        }
    }

    #[test]
    fn a_name_of_any_length_is_not_the_node_that_was_asked() {
        for len in [1, 64, 65, HOST_BYTES, HOST_BYTES + 1, TEXT_MOST_BYTES] {
            let host = bulk(&"n".repeat(len));
            let reply = |words: &[&str]| {
                format!("*1\r\n*3\r\n:0\r\n:16383\r\n{}", node(&host, 7001, words))
            };
            let (_, map) = read(&reply(&["ip", "10.0.0.7"])).unwrap();
            assert_eq!(map.primaries()[0].address, address("10.0.0.7", 7001), "{len} bytes");
            let (_, map) = read(&reply(&[])).unwrap();
            assert_eq!(map.owner(0), None, "{len} bytes");
        }
    }

    #[test]
    fn what_is_no_map_is_an_error() {
        let range = |first: i64, last: i64| {
            format!("*1\r\n*3\r\n:{first}\r\n:{last}\r\n{}", node(&bulk("10.0.0.1"), 1, &[]))
        };
        assert!(is_whole(&read(&range(0, 16383)).unwrap().1));
        for wrong in [
            "+OK\r\n".to_string(),
            "*16385\r\n".to_string(),
            range(0, 16384),
            range(-1, 5),
            "*1\r\n*2\r\n:0\r\n:1\r\n".to_string(),
            "*1\r\n*3\r\n:0\r\n:1\r\n*1\r\n$1\r\nx\r\n".to_string(),
            "*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n$9999999\r\n".to_string(),
            "*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n$1\r\nx\r\n:65536\r\n".to_string(),
            format!("*1\r\n*3\r\n:0\r\n:1\r\n*3\r\n$1\r\nx\r\n:6\r\n{}", "*1\r\n".repeat(100)),
        ] {
            assert_eq!(read(&wrong).err(), Some(EPROTO), "{wrong:?}");
        }
        // Backwards, and a node without an address: nobody has these slots.
        assert_eq!(read(&range(5, 4)).unwrap().1.owner(5), None);
        let many: String = (0..17)
            .map(|i| format!("*3\r\n:{i}\r\n:{i}\r\n{}", node(&bulk("10.0.0.1"), 7000 + i, &[])))
            .collect();
        assert_eq!(read(&format!("*17\r\n{many}")).err(), Some(TOO_MANY));
        // A server that never ends.
        let endless = format!("*16384\r\n{}", "*64\r\n:0\r\n:1\r\n".repeat(3));
        assert!(read(&endless).is_err());
    }
}
