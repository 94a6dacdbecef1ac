//! The first half of a connection: the client says what it wants to use, by options, and which
//! export.
//!
//! Fixed newstyle. The client may be anybody: an option has a largest length, there is a largest
//! number of options, and the server sets a time for the whole handshake. An option that breaks the
//! protocol ends the connection; one that is only unknown here is answered by an error, and the
//! client goes on.

use std::io::{self, ErrorKind, Read, Write};
use std::time::Instant;

use crate::channel::Channel;
use crate::protocol::*;

/// The longest option that is read: names have at most 4096 bytes.
const OPTION_BYTES: u32 = 16 << 10;
/// Options in one handshake. Clients send a handful; tools that list everything, some dozens.
const OPTIONS_MOST: u32 = 1024;
/// Queries of contexts in one option.
const QUERIES_MOST: u32 = 1024;

/// The export that the server offers.
#[derive(Clone, Debug)]
pub struct Export {
    pub name: String,
    pub description: String,
    pub bytes: u64,
    pub read_only: bool,
}

impl Export {
    /// An empty name means the default: the only one.
    fn is_named(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes()
    }

    fn flags(&self, structured: bool) -> u16 {
        HAS_FLAGS
            | SEND_FLUSH
            | SEND_FUA
            | SEND_TRIM
            | SEND_WRITE_ZEROES
            | CAN_MULTI_CONN
            | SEND_CACHE
            | SEND_FAST_ZERO
            | if structured { SEND_DF } else { 0 }
            | if self.read_only { READ_ONLY } else { 0 }
    }
}

/// The features that client and server agreed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Agreement {
    pub structured: bool,
    /// Block status by `base:allocation`.
    pub allocation: bool,
}

/// How one option came out.
enum Next {
    Option,
    Session,
    End,
}

fn broken(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}

/// Shakes hands until `deadline`. `None`: the client wanted no more than to ask.
pub fn shake<R: Read, W: Write>(
    channel: &mut Channel<R, W>,
    export: &Export,
    deadline: Instant,
) -> io::Result<Option<Agreement>> {
    channel.put(&INIT_MAGIC.to_be_bytes());
    channel.put(&OPTION_MAGIC.to_be_bytes());
    channel.put(&(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES).to_be_bytes());
    let flags = u32::from_be_bytes(channel.array()?);
    let known = u32::from(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES);
    if flags & !known != 0 {
        return Err(broken("flags that are not known"));
    }
    let zeroes = flags & u32::from(FLAG_NO_ZEROES) == 0;
    let mut agreement = Agreement::default();
    for _ in 0..OPTIONS_MOST {
        let head: [u8; 16] = channel.array()?;
        let mut head = Fields(&head);
        let (magic, option, len) = (head.u64(), head.u32().unwrap_or(0), head.u32().unwrap_or(0));
        if magic != Some(OPTION_MAGIC) {
            return Err(broken("not an option"));
        }
        if len > OPTION_BYTES {
            return Err(broken("an option that is too long"));
        }
        if Instant::now() > deadline {
            return Err(ErrorKind::TimedOut.into());
        }
        channel.fill(len as usize)?;
        // At most OPTION_BYTES: a copy, so that replies can be put in meanwhile.
        let data = channel.take(len as usize).to_vec();
        match answer(channel, export, option, &data, zeroes, &mut agreement)? {
            Next::Option => {}
            Next::Session => {
                channel.flush()?;
                return Ok(Some(agreement));
            }
            Next::End => {
                channel.flush()?;
                return Ok(None);
            }
        }
    }
    Err(broken("too many options"))
}

fn answer<R: Read, W: Write>(
    channel: &mut Channel<R, W>,
    export: &Export,
    option: u32,
    data: &[u8],
    zeroes: bool,
    agreement: &mut Agreement,
) -> io::Result<Next> {
    match option {
        OPT_EXPORT_NAME => {
            // This option has no way to say no.
            if !export.is_named(data) {
                return Err(broken("an export that is not known"));
            }
            channel.reserve(256)?;
            channel.put(&export.bytes.to_be_bytes());
            channel.put(&export.flags(agreement.structured).to_be_bytes());
            if zeroes {
                channel.put(&[0; 124]);
            }
            return Ok(Next::Session);
        }
        OPT_ABORT => {
            reply(channel, option, REP_ACK, &[])?;
            return Ok(Next::End);
        }
        OPT_LIST if data.is_empty() => {
            let name = export.name.as_bytes();
            reply(channel, option, REP_SERVER, &[&(name.len() as u32).to_be_bytes(), name])?;
            reply(channel, option, REP_ACK, &[])?;
        }
        OPT_STRUCTURED_REPLY if data.is_empty() => {
            agreement.structured = true;
            reply(channel, option, REP_ACK, &[])?;
        }
        OPT_LIST | OPT_STRUCTURED_REPLY => {
            refuse(channel, option, REP_ERR_INVALID, "it has no data")?
        }
        OPT_INFO | OPT_GO => {
            let is_there = inform(channel, export, option, data, agreement.structured)?;
            if is_there && option == OPT_GO {
                return Ok(Next::Session);
            }
        }
        OPT_LIST_META_CONTEXT | OPT_SET_META_CONTEXT => {
            contexts(channel, export, option, data, agreement)?;
        }
        _ => refuse(channel, option, REP_ERR_UNSUP, "not known here")?,
    }
    Ok(Next::Option)
}

/// INFO and GO: says what the export is like; false if there is none of that name.
fn inform<R: Read, W: Write>(
    channel: &mut Channel<R, W>,
    export: &Export,
    option: u32,
    data: &[u8],
    structured: bool,
) -> io::Result<bool> {
    let mut fields = Fields(data);
    let parsed = fields.counted().zip(fields.u16());
    let Some((name, wanted)) = parsed.filter(|(_, n)| fields.0.len() == usize::from(*n) * 2) else {
        refuse(channel, option, REP_ERR_INVALID, "its lengths do not agree")?;
        return Ok(false);
    };
    if !export.is_named(name) {
        refuse(channel, option, REP_ERR_UNKNOWN, "there is no such export")?;
        return Ok(false);
    }
    let (mut has_name, mut has_description, mut has_sizes) = (false, false, false);
    for _ in 0..wanted {
        match fields.u16() {
            Some(INFO_NAME) => has_name = true,
            Some(INFO_DESCRIPTION) => has_description = true,
            Some(INFO_BLOCK_SIZE) => has_sizes = true,
            _ => {}
        }
    }
    let kind = |kind: u16| kind.to_be_bytes();
    let (size, flags) = (export.bytes.to_be_bytes(), export.flags(structured).to_be_bytes());
    reply(channel, option, REP_INFO, &[&kind(INFO_EXPORT), &size, &flags])?;
    if has_name {
        reply(channel, option, REP_INFO, &[&kind(INFO_NAME), export.name.as_bytes()])?;
    }
    if has_description {
        let text = export.description.as_bytes();
        reply(channel, option, REP_INFO, &[&kind(INFO_DESCRIPTION), text])?;
    }
    if has_sizes {
        let sizes =
            [BLOCK_LEAST_BYTES, BLOCK_PREFERRED_BYTES, PAYLOAD_MOST_BYTES].map(u32::to_be_bytes);
        reply(channel, option, REP_INFO, &[&kind(INFO_BLOCK_SIZE), sizes.as_flattened()])?;
    }
    reply(channel, option, REP_ACK, &[])?;
    Ok(true)
}

/// LIST_ and SET_META_CONTEXT: the one context that there is.
fn contexts<R: Read, W: Write>(
    channel: &mut Channel<R, W>,
    export: &Export,
    option: u32,
    data: &[u8],
    agreement: &mut Agreement,
) -> io::Result<()> {
    let sets = option == OPT_SET_META_CONTEXT;
    if sets {
        // The contexts set before are dropped in any case, even if this option fails.
        agreement.allocation = false;
    }
    if !agreement.structured {
        return refuse(channel, option, REP_ERR_INVALID, "structured replies come first");
    }
    let mut fields = Fields(data);
    let parsed = fields.counted().zip(fields.u32());
    let Some((name, queries)) = parsed.filter(|(_, n)| *n <= QUERIES_MOST) else {
        return refuse(channel, option, REP_ERR_INVALID, "its lengths do not agree");
    };
    // Without a query LIST asks for all.
    let mut is_meant = !sets && queries == 0;
    for _ in 0..queries {
        let Some(query) = fields.counted() else {
            return refuse(channel, option, REP_ERR_INVALID, "its lengths do not agree");
        };
        is_meant |= query == BASE_ALLOCATION || !sets && query == b"base:";
    }
    if !fields.0.is_empty() {
        return refuse(channel, option, REP_ERR_INVALID, "its lengths do not agree");
    }
    if !export.is_named(name) {
        return refuse(channel, option, REP_ERR_UNKNOWN, "there is no such export");
    }
    if is_meant {
        agreement.allocation |= sets;
        let id = if sets { BASE_ALLOCATION_ID } else { 0 };
        reply(channel, option, REP_META_CONTEXT, &[&id.to_be_bytes(), BASE_ALLOCATION])?;
    }
    reply(channel, option, REP_ACK, &[])
}

fn refuse<R: Read, W: Write>(
    channel: &mut Channel<R, W>,
    option: u32,
    error: u32,
    why: &str,
) -> io::Result<()> {
    reply(channel, option, error, &[why.as_bytes()])
}

fn reply<R: Read, W: Write>(
    channel: &mut Channel<R, W>,
    option: u32,
    kind: u32,
    parts: &[&[u8]],
) -> io::Result<()> {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    channel.reserve(20 + len)?;
    channel.put(&OPTION_REPLY_MAGIC.to_be_bytes());
    channel.put(&option.to_be_bytes());
    channel.put(&kind.to_be_bytes());
    channel.put(&(len as u32).to_be_bytes());
    parts.iter().for_each(|part| channel.put(part));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::testing::option;

    fn export() -> Export {
        let (name, description) = ("x".to_string(), "a test's".to_string());
        Export { name, description, bytes: 1 << 20, read_only: false }
    }

    /// The data of GO for the default export.
    const GO: [u8; 6] = [0; 6];

    /// The outcome of a handshake with a client that says hello, and then all this.
    fn shaken(options: &[Vec<u8>], deadline: Instant) -> io::Result<Option<Agreement>> {
        let sent = [&[0, 0, 0, 3][..], &options.concat()].concat();
        shake(&mut Channel::new(&sent[..], io::sink()).unwrap(), &export(), deadline)
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(3600)
    }

    #[test]
    fn contexts_that_were_set_are_dropped_by_an_option_that_fails() {
        let set = |name: &[u8]| {
            let name_len = (name.len() as u32).to_be_bytes();
            let query_len = (BASE_ALLOCATION.len() as u32).to_be_bytes();
            let data = [&name_len[..], name, &[0, 0, 0, 1], &query_len, BASE_ALLOCATION];
            option(OPT_SET_META_CONTEXT, &data.concat())
        };
        let begin = [option(OPT_STRUCTURED_REPLY, &[]), set(b"x")].concat();
        let agreed = |then: Vec<u8>| {
            shaken(&[begin.clone(), then, option(OPT_GO, &GO)], later()).unwrap().unwrap()
        };
        let all = Agreement { structured: true, allocation: true };
        assert_eq!(agreed(Vec::new()), all);
        assert_eq!(agreed(option(OPT_LIST_META_CONTEXT, b"no")), all, "to list sets nothing");
        let none = Agreement { structured: true, allocation: false };
        for fails in [set(b"no"), option(OPT_SET_META_CONTEXT, b""), set(b"x")[..40].to_vec()] {
            // The last one is cut off: its length is made right again.
            let data = &fails[16..];
            assert_eq!(agreed(option(OPT_SET_META_CONTEXT, data)), none, "{data:?}");
        }
    }

    #[test]
    fn the_longest_option_and_the_last_one_are_answered_and_no_more() {
        let (go, long) =
            (option(OPT_GO, &GO), |more: u32| vec![7u8; (OPTION_BYTES + more) as usize]);
        let begins = |options: &[Vec<u8>]| shaken(options, later()).is_ok_and(|a| a.is_some());
        assert!(begins(&[option(77, &long(0)), go.clone()]));
        assert!(!begins(&[option(77, &long(1)), go.clone()]));
        let many = |n: u32| option(OPT_LIST, &[]).repeat(n as usize);
        assert!(begins(&[many(OPTIONS_MOST - 1), go.clone()]));
        assert!(!begins(&[many(OPTIONS_MOST), go]));
    }

    #[test]
    fn a_client_that_has_said_all_too_late_is_not_served() {
        let go = [option(OPT_GO, &GO)];
        let passed = Instant::now().checked_sub(Duration::from_secs(1)).expect("it runs longer");
        assert_eq!(shaken(&go, passed).unwrap_err().kind(), ErrorKind::TimedOut);
        assert_eq!(shaken(&go, later()).unwrap(), Some(Agreement::default()));
    }
}
