//! One request and one reply per connection, each a line of JSON.
//!
//! ```text
//!  {"do":"list"}                                      {"ok":{...}}            see state.rs
//!  {"do":"set","memory":"50%"}                        {"ok":{"limit_bytes":N,"before_bytes":N,...}}
//!  {"do":"set","pool":"zbud",...}                     {"ok":{...,"tuned":[["pool",NOW,BEFORE],...]}}
//!  {"do":"reclaim","pid":N or null,"amount":"all"}    {"ok":[{"pid":N,"before_bytes":N,"after_bytes":N,...}]}
//!  {"do":"bring-in","pid":N or null}                  {"ok":[{"pid":N,"before_bytes":N,"missing_bytes":N,...}]}
//!                                                     {"error":"one line for the user"}
//! ```
//! Sizes go over as the user wrote them: a percentage is one of what the run may have where it
//! runs.
//!
//! A client is the user's, or root's, but perhaps not a program of ours: a line that is no request
//! is answered by an error. A line has a largest length and must be there in time.

use std::io::{self, ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::sys::socket::{MsgFlags, send};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::settings::compression::Words;
use crate::size;

/// The longest request.
pub const REQUEST_BYTES: usize = 4096;
/// The longest reply: a full table of processes.
pub const REPLY_BYTES: usize = 4 << 20;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum Request {
    /// Memory that the run and its processes hold; the answer is a `RunState`.
    List,
    /// A new limit for the run, or other ways to compress; the answer is a `Changed`.
    Set {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        memory: Option<String>,
        #[serde(flatten)]
        compression: Words,
    },
    /// Memory back, from one process or from all; the answer is a list of `Reclaimed`.
    Reclaim { pid: Option<u32>, amount: String },
    /// Pages that are out come in, of one process or of all; the answer is a list of `BroughtIn`.
    BringIn { pid: Option<u32> },
}

/// The answer to `Set`: the limit before and now, and what else has changed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Changed {
    pub run: u32,
    pub before_bytes: u64,
    pub limit_bytes: u64,
    /// A remark for the user on how the limit came to be.
    pub remarks: Vec<String>,
    /// Options that compression goes by, each with its value now and before.
    #[serde(default)]
    pub tuned: Vec<(String, String, String)>,
}

/// The outcome of a reclaim in one process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Reclaimed {
    pub pid: u32,
    /// Memory of its pages, before and after.
    pub before_bytes: u64,
    pub after_bytes: u64,
    /// Why it gave less than it was asked for; the process is the subject.
    pub fault: Option<String>,
}

/// The outcome of bringing in, in one process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BroughtIn {
    pub pid: u32,
    /// Memory of its pages, before and after.
    pub before_bytes: u64,
    pub after_bytes: u64,
    /// Pages that stay out since the limit has no room for them.
    pub missing_bytes: u64,
    /// Why it brought in less than it was asked for; the process is the subject.
    pub fault: Option<String>,
}

/// A run's answer: what was asked for, or one line for the user.
#[derive(Serialize, Deserialize)]
enum Reply<T> {
    #[serde(rename = "ok")]
    Done(T),
    #[serde(rename = "error")]
    Refused(String),
}

impl Request {
    pub fn to_line(&self) -> String {
        line(self)
    }

    /// Parses a request; the error is the reply.
    pub fn parse(line: &[u8]) -> Result<Request, String> {
        serde_json::from_slice(line).map_err(|e| explain("request", &e))
    }
}

fn line(message: &impl Serialize) -> String {
    let text = serde_json::to_string(message).expect("messages are strings and numbers");
    text + "\n"
}

fn explain(what: &str, error: &serde_json::Error) -> String {
    match error.is_data() {
        true => format!("the {what} is not understood: {error}"),
        false => format!("the {what} is no JSON: {error}"),
    }
}

/// Parses the amount of a reclaim; none means all.
pub fn parse_amount(text: &str) -> Result<Option<size::Size>, String> {
    match text.trim() {
        "all" => Ok(None),
        other => size::parse(other).map(Some).map_err(|why| format!("{why}, or all")),
    }
}

/// The reply to a request as a line.
pub fn reply_line<T: Serialize>(reply: Result<T, String>) -> String {
    match reply {
        Ok(done) => line(&Reply::Done(done)),
        Err(error) => line(&Reply::<T>::Refused(error)),
    }
}

/// Parses a reply: what was asked for, or the error.
pub fn parse_reply<T: DeserializeOwned>(line: &[u8]) -> Result<T, String> {
    match serde_json::from_slice(line).map_err(|e| explain("reply", &e))? {
        Reply::Done(done) => Ok(done),
        Reply::Refused(error) => Err(error),
    }
}

/// Reads a line, without its end, of at most `most` bytes; until `deadline`, if there is one.
pub fn read_line(
    mut stream: &UnixStream,
    most: usize,
    deadline: Option<Instant>,
) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    let mut piece = [0u8; 4096];
    loop {
        let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(left)?;
        match stream.read(&mut piece) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                let end = piece[..n].iter().position(|b| *b == b'\n');
                line.extend_from_slice(&piece[..end.unwrap_or(n)]);
                if line.len() > most {
                    return Err(io::Error::new(ErrorKind::InvalidData, "the line is too long"));
                }
                if end.is_some() {
                    return Ok(line);
                }
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// Writes a line, until `deadline`. Not by `write`, which would kill us by SIGPIPE when the other
/// side has gone.
pub fn write_line(stream: &UnixStream, line: &str, deadline: Instant) -> io::Result<()> {
    let mut bytes = line.as_bytes();
    while !bytes.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_write_timeout(Some(left))?;
        match send(stream.as_raw_fd(), bytes, MsgFlags::MSG_NOSIGNAL) {
            Ok(n) => bytes = &bytes[n..],
            Err(nix::errno::Errno::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soon() -> Option<Instant> {
        Some(Instant::now() + Duration::from_secs(30))
    }

    #[test]
    fn requests_come_back_as_they_were() {
        for request in [
            Request::List,
            Request::Set { memory: Some("1.5G".into()), compression: Words::default() },
            Request::Set {
                memory: None,
                compression: Words { pool: Some("zbud".into()), ..Words::default() },
            },
            Request::Reclaim { pid: Some(7), amount: "all".into() },
            Request::Reclaim { pid: None, amount: "\"\n\0 weird".into() },
            Request::BringIn { pid: Some(1) },
        ] {
            let line = request.to_line();
            assert_eq!(line.matches('\n').count(), 1);
            assert_eq!(Request::parse(line.trim_end().as_bytes()), Ok(request));
        }
    }

    #[test]
    fn what_is_no_request() {
        for (line, word) in [
            (&b""[..], "no JSON"),
            (b"list", "no JSON"),
            (b"\xff\xfe", "no JSON"),
            (b"{}", "`do`"),
            (b"[]", "not understood"),
            (b"{\"do\":3}", "not understood"),
            (b"{\"do\":\"stop\"}", "`stop`"),
            (b"{\"do\":\"set\",\"memory\":5}", "not understood"),
            (b"{\"do\":\"reclaim\",\"pid\":1}", "`amount`"),
            (b"{\"do\":\"reclaim\",\"pid\":-1,\"amount\":\"all\"}", "not understood"),
            (b"{\"do\":\"reclaim\",\"pid\":4294967296,\"amount\":\"all\"}", "not understood"),
        ] {
            let error = Request::parse(line).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
        let deep = "[".repeat(REQUEST_BYTES);
        assert!(Request::parse(deep.as_bytes()).unwrap_err().contains("the request"));
    }

    #[test]
    fn replies() {
        let fault = Some("is stopped".to_string());
        let done = vec![Reclaimed { pid: 1, before_bytes: 3, after_bytes: 2, fault }];
        let line = reply_line(Ok(done.clone()));
        assert!(line.starts_with("{\"ok\":[{\"pid\":1,\"before_bytes\":3,"), "{line}");
        assert_eq!(parse_reply(line.trim_end().as_bytes()), Ok(done));
        let line = reply_line::<Changed>(Err("two\nlines".into()));
        assert_eq!(line.matches('\n').count(), 1);
        assert_eq!(parse_reply::<Changed>(line.trim_end().as_bytes()), Err("two\nlines".into()));
        for line in [&b"{}"[..], b"x", b"{\"ok\":{\"run\":1}}", b"{\"error\":1}"] {
            assert!(parse_reply::<Changed>(line).is_err());
        }
    }

    #[test]
    fn lines_are_read_within_bounds() {
        let (a, b) = UnixStream::pair().unwrap();
        write_line(&a, "first\n", soon().unwrap()).unwrap();
        assert_eq!(read_line(&b, 100, soon()).unwrap(), b"first");
        write_line(&a, &"x".repeat(200), soon().unwrap()).unwrap();
        assert_eq!(read_line(&b, 100, soon()).unwrap_err().kind(), ErrorKind::InvalidData);
        assert_eq!(
            read_line(&b, 100, Some(Instant::now())).unwrap_err().kind(),
            ErrorKind::TimedOut
        );
        drop(a);
        assert_eq!(read_line(&b, 100, None).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert!(write_line(&b, "x\n", soon().unwrap()).is_err(), "and we are still alive");
    }
}
