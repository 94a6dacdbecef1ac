//! NBD's numbers, and requests and replies as bytes. All of them are big-endian.
//!
//! The document is <https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>; names are
//! those of the document. The server (`uzswap disk`) and the client (`store/remote`) both go by
//! this file.

/// The server's greeting: "NBDMAGIC", and "IHAVEOPT", which also begins each option.
pub const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

/// Flags of the handshake, the server's and the client's alike.
pub const FLAG_FIXED_NEWSTYLE: u16 = 1;
pub const FLAG_NO_ZEROES: u16 = 2;

pub const OPT_EXPORT_NAME: u32 = 1;
pub const OPT_ABORT: u32 = 2;
pub const OPT_LIST: u32 = 3;
pub const OPT_INFO: u32 = 6;
pub const OPT_GO: u32 = 7;
pub const OPT_STRUCTURED_REPLY: u32 = 8;
pub const OPT_LIST_META_CONTEXT: u32 = 9;
pub const OPT_SET_META_CONTEXT: u32 = 10;

pub const REP_ACK: u32 = 1;
pub const REP_SERVER: u32 = 2;
pub const REP_INFO: u32 = 3;
pub const REP_META_CONTEXT: u32 = 4;
pub const REP_ERR_UNSUP: u32 = 0x8000_0001;
pub const REP_ERR_POLICY: u32 = 0x8000_0002;
pub const REP_ERR_INVALID: u32 = 0x8000_0003;
pub const REP_ERR_TLS_REQD: u32 = 0x8000_0005;
pub const REP_ERR_UNKNOWN: u32 = 0x8000_0006;

pub const INFO_EXPORT: u16 = 0;
pub const INFO_NAME: u16 = 1;
pub const INFO_DESCRIPTION: u16 = 2;
pub const INFO_BLOCK_SIZE: u16 = 3;

/// Flags of an export.
pub const HAS_FLAGS: u16 = 1;
pub const READ_ONLY: u16 = 2;
pub const SEND_FLUSH: u16 = 4;
pub const SEND_FUA: u16 = 8;
pub const SEND_TRIM: u16 = 32;
pub const SEND_WRITE_ZEROES: u16 = 64;
pub const SEND_DF: u16 = 128;
pub const CAN_MULTI_CONN: u16 = 256;
pub const SEND_CACHE: u16 = 1024;
pub const SEND_FAST_ZERO: u16 = 2048;

pub const REQUEST_MAGIC: u32 = 0x2560_9513;
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

pub const CMD_READ: u16 = 0;
pub const CMD_WRITE: u16 = 1;
pub const CMD_DISC: u16 = 2;
pub const CMD_FLUSH: u16 = 3;
pub const CMD_TRIM: u16 = 4;
pub const CMD_CACHE: u16 = 5;
pub const CMD_WRITE_ZEROES: u16 = 6;
pub const CMD_BLOCK_STATUS: u16 = 7;

pub const CMD_FLAG_FUA: u16 = 1;
pub const CMD_FLAG_NO_HOLE: u16 = 2;
pub const CMD_FLAG_DF: u16 = 4;
pub const CMD_FLAG_REQ_ONE: u16 = 8;
pub const CMD_FLAG_FAST_ZERO: u16 = 16;

pub const REPLY_FLAG_DONE: u16 = 1;
pub const REPLY_OFFSET_DATA: u16 = 1;
pub const REPLY_OFFSET_HOLE: u16 = 2;
pub const REPLY_BLOCK_STATUS: u16 = 5;
pub const REPLY_ERROR: u16 = 0x8001;

/// Flags of `base:allocation`.
pub const STATE_HOLE: u32 = 1;
pub const STATE_ZERO: u32 = 2;

pub const BASE_ALLOCATION: &[u8] = b"base:allocation";
/// The number by which replies name it.
pub const BASE_ALLOCATION_ID: u32 = 1;

/// The block sizes that are announced: any byte may be asked for; 4096 is a page; and the
/// protocol's usual most.
pub const BLOCK_LEAST_BYTES: u32 = 1;
pub const BLOCK_PREFERRED_BYTES: u32 = 4096;
pub const PAYLOAD_MOST_BYTES: u32 = 32 << 20;

/// The reason why a request failed, as a number of the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Error {
    NotPermitted = 1,
    Io = 5,
    Invalid = 22,
    NoSpace = 28,
}

impl Error {
    pub fn text(self) -> &'static str {
        match self {
            Error::NotPermitted => "the disk is read-only",
            Error::Io => "the page could not be brought back from the store",
            Error::Invalid => "the request is not valid, or beyond the end of the disk",
            Error::NoSpace => "the disk's memory is full",
        }
    }
}

/// A request, as it came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    pub flags: u16,
    pub command: u16,
    pub cookie: u64,
    pub offset: u64,
    pub len: u32,
}

impl Request {
    pub const BYTES: usize = 28;

    /// `None`: it does not begin as a request does, so nobody knows where the next one would.
    pub fn parse(bytes: &[u8; Self::BYTES]) -> Option<Request> {
        let mut at = Fields(bytes);
        let magic = at.u32()?;
        let request = Request {
            flags: at.u16()?,
            command: at.u16()?,
            cookie: at.u64()?,
            offset: at.u64()?,
            len: at.u32()?,
        };
        (magic == REQUEST_MAGIC).then_some(request)
    }

    /// The request as it goes out.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.command.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        bytes[24..].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }

    /// The first byte after what it asks for, if that is on a disk of `bytes`.
    pub fn end_within(&self, bytes: u64) -> Option<u64> {
        self.offset.checked_add(u64::from(self.len)).filter(|end| *end <= bytes)
    }
}

/// Numbers one after the other, each there or not.
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    pub fn bytes(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// Bytes behind their length.
    pub fn counted(&mut self) -> Option<&'a [u8]> {
        let n = self.u32()?;
        self.bytes(usize::try_from(n).ok()?)
    }
}

pub const SIMPLE_REPLY_BYTES: usize = 16;

pub fn simple_reply(error: u32, cookie: u64) -> [u8; SIMPLE_REPLY_BYTES] {
    let mut bytes = [0; SIMPLE_REPLY_BYTES];
    bytes[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    bytes[4..8].copy_from_slice(&error.to_be_bytes());
    bytes[8..].copy_from_slice(&cookie.to_be_bytes());
    bytes
}

/// The head of one chunk of a structured reply.
pub fn chunk_head(flags: u16, kind: u16, cookie: u64, len: u32) -> [u8; CHUNK_HEAD_BYTES] {
    let mut bytes = [0; CHUNK_HEAD_BYTES];
    bytes[..4].copy_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
    bytes[4..6].copy_from_slice(&flags.to_be_bytes());
    bytes[6..8].copy_from_slice(&kind.to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..].copy_from_slice(&len.to_be_bytes());
    bytes
}

pub const CHUNK_HEAD_BYTES: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_as_the_document_has_it_and_comes_back_as_it_went() {
        let request = Request {
            flags: 0x0102,
            command: 0x0304,
            cookie: 0x0506_0708_090a_0b0c,
            offset: 0x0d0e_0f10_1112_1314,
            len: 0x1516_1718,
        };
        let bytes = request.to_bytes();
        assert_eq!(bytes[..4], [0x25, 0x60, 0x95, 0x13]);
        assert!(bytes[4..].iter().zip(1..).all(|(byte, n)| *byte == n));
        assert_eq!(Request::parse(&bytes), Some(request));
        for i in 0..4 {
            let mut other = bytes;
            other[i] ^= 1;
            assert_eq!(Request::parse(&other), None);
        }
    }

    #[test]
    fn a_request_ends_on_the_disk_or_nowhere() {
        let end = |offset, len, bytes| {
            Request { flags: 0, command: CMD_READ, cookie: 0, offset, len }.end_within(bytes)
        };
        assert_eq!((end(0, 0, 0), end(4096, 0, 4096)), (Some(0), Some(4096)));
        assert_eq!((end(4095, 1, 4096), end(4095, 2, 4096)), (Some(4096), None));
        assert_eq!(end(4097, 0, 4096), None);
        assert_eq!(end(u64::MAX, 1, u64::MAX), None);
        assert_eq!(end(u64::MAX - 5, 5, u64::MAX), Some(u64::MAX));
    }

    #[test]
    fn fields_are_there_whole_or_not_at_all() {
        let mut fields = Fields(&[0, 0, 0, 2, b'a', b'b', 0xff, 0xfe, 9]);
        assert_eq!((fields.counted(), fields.u64()), (Some(&b"ab"[..]), None));
        assert_eq!((fields.u32(), fields.u16(), fields.u16()), (None, Some(0xfffe), None));
        assert_eq!(
            (fields.bytes(2), fields.bytes(1), fields.bytes(0)),
            (None, Some(&[9][..]), Some(&[][..]))
        );
        assert_eq!(Fields(&[0xff; 7]).counted(), None);
        assert_eq!(Fields(&[0, 0, 0, 1]).counted(), None);
    }

    #[test]
    fn replies_are_as_the_document_has_them() {
        let simple = simple_reply(0x0102_0304, 0x0506_0708_090a_0b0c);
        assert_eq!(simple[..4], [0x67, 0x44, 0x66, 0x98]);
        assert!(simple[4..].iter().zip(1..).all(|(byte, n)| *byte == n));
        let chunk = chunk_head(0x0102, 0x0304, 0x0506_0708_090a_0b0c, 0x0d0e_0f10);
        assert_eq!(chunk[..4], [0x66, 0x8e, 0x33, 0xef]);
        assert!(chunk[4..].iter().zip(1..).all(|(byte, n)| *byte == n));
    }
}
