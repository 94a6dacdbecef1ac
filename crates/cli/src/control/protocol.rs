//! One request and one reply per connection, each a line of JSON.
//!
//! ```text
//!  {"do":"list"}                                      {"ok":{...}}            see state.rs
//!  {"do":"set","memory":"50%"}                        {"ok":{"limit_bytes":N,"before_bytes":N,...}}
//!  {"do":"reclaim","pid":N or null,"amount":"all"}    {"ok":[{"pid":N,"before_bytes":N,"after_bytes":N,...}]}
//!  {"do":"bring-in","pid":N or null}                  {"ok":[{"pid":N,"before_bytes":N,"missing_bytes":N,...}]}
//!                                                     {"error":"one line for the user"}
//! ```
//! Sizes go over as the user wrote them: a percentage is one of what the run may have where it runs.
//!
//! Who connects is the user, or root, but perhaps not a program of ours: whatever comes is a request, or is answered by an error. A line
//! has a largest length and must be there in time.

use std::io::{self, ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::sys::socket::{MsgFlags, send};
use serde_json::{Value, json};

/// The longest request.
pub const REQUEST_BYTES: usize = 4096;
/// The longest reply: a full table of processes.
pub const REPLY_BYTES: usize = 4 << 20;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    List,
    /// A new limit for the run.
    Set {
        memory: String,
    },
    /// Memory back, from one process or from all.
    Reclaim {
        pid: Option<u32>,
        amount: String,
    },
    /// What is out comes in, of one process or of all.
    BringIn {
        pid: Option<u32>,
    },
}

impl Request {
    pub fn to_line(&self) -> String {
        let value = match self {
            Request::List => json!({"do": "list"}),
            Request::Set { memory } => json!({"do": "set", "memory": memory}),
            Request::Reclaim { pid, amount } => json!({"do": "reclaim", "pid": pid, "amount": amount}),
            Request::BringIn { pid } => json!({"do": "bring-in", "pid": pid}),
        };
        format!("{value}\n")
    }

    /// Reads a request; the error is the reply.
    pub fn parse(line: &[u8]) -> Result<Request, String> {
        let value: Value =
            serde_json::from_slice(line).map_err(|e| format!("the request is no JSON: {e}"))?;
        let text = |key: &str| match value.get(key).and_then(Value::as_str) {
            Some(text) => Ok(text.to_string()),
            None => Err(format!("the request has no '{key}'")),
        };
        let pid = || match value.get("pid") {
            None | Some(Value::Null) => Ok(None),
            Some(pid) => match pid.as_u64().and_then(|pid| u32::try_from(pid).ok()) {
                Some(pid) => Ok(Some(pid)),
                None => Err(format!("'{pid}' is no process id")),
            },
        };
        match text("do")?.as_str() {
            "list" => Ok(Request::List),
            "set" => Ok(Request::Set { memory: text("memory")? }),
            "reclaim" => Ok(Request::Reclaim { pid: pid()?, amount: text("amount")? }),
            "bring-in" => Ok(Request::BringIn { pid: pid()? }),
            other => Err(format!("there is no request '{other}'")),
        }
    }
}

/// The reply to a request as a line.
pub fn reply_line(reply: Result<Value, String>) -> String {
    match reply {
        Ok(value) => format!("{}\n", json!({"ok": value})),
        Err(error) => format!("{}\n", json!({"error": error})),
    }
}

/// A reply: what was asked for, or the error.
pub fn parse_reply(line: &[u8]) -> Result<Value, String> {
    let mut value: Value = serde_json::from_slice(line).map_err(|e| format!("the reply is no JSON: {e}"))?;
    match (value.get_mut("ok").map(Value::take), value.get("error").and_then(Value::as_str)) {
        (Some(ok), _) => Ok(ok),
        (None, Some(error)) => Err(error.to_string()),
        (None, None) => Err("the reply is neither a result nor an error".to_string()),
    }
}

/// Reads a line, without its end, of at most `most` bytes; until `deadline`, if there is one.
pub fn read_line(mut stream: &UnixStream, most: usize, deadline: Option<Instant>) -> io::Result<Vec<u8>> {
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

/// Writes a line, until `deadline`. Not by `write`, which would kill us by SIGPIPE when the other side has gone.
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
            Request::Set { memory: "1.5G".into() },
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
            (b"{}", "'do'"),
            (b"[]", "'do'"),
            (b"{\"do\":3}", "'do'"),
            (b"{\"do\":\"stop\"}", "'stop'"),
            (b"{\"do\":\"set\"}", "'memory'"),
            (b"{\"do\":\"set\",\"memory\":5}", "'memory'"),
            (b"{\"do\":\"reclaim\",\"pid\":1}", "'amount'"),
            (b"{\"do\":\"reclaim\",\"pid\":-1,\"amount\":\"all\"}", "no process id"),
            (b"{\"do\":\"reclaim\",\"pid\":4294967296,\"amount\":\"all\"}", "no process id"),
        ] {
            let error = Request::parse(line).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
        let deep = "[".repeat(REQUEST_BYTES);
        assert!(Request::parse(deep.as_bytes()).unwrap_err().contains("no JSON"));
    }

    #[test]
    fn replies() {
        let line = reply_line(Ok(json!([1])));
        assert_eq!(parse_reply(line.trim_end().as_bytes()), Ok(json!([1])));
        let line = reply_line(Err("two\nlines".into()));
        assert_eq!(line.matches('\n').count(), 1);
        assert_eq!(parse_reply(line.trim_end().as_bytes()), Err("two\nlines".into()));
        assert!(parse_reply(b"{}").is_err() && parse_reply(b"x").is_err());
    }

    #[test]
    fn lines_are_read_within_bounds() {
        let (a, b) = UnixStream::pair().unwrap();
        write_line(&a, "first\n", soon().unwrap()).unwrap();
        assert_eq!(read_line(&b, 100, soon()).unwrap(), b"first");
        write_line(&a, &"x".repeat(200), soon().unwrap()).unwrap();
        assert_eq!(read_line(&b, 100, soon()).unwrap_err().kind(), ErrorKind::InvalidData);
        assert_eq!(read_line(&b, 100, Some(Instant::now())).unwrap_err().kind(), ErrorKind::TimedOut);
        drop(a);
        assert_eq!(read_line(&b, 100, None).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert!(write_line(&b, "x\n", soon().unwrap()).is_err(), "and we are still alive");
    }
}
