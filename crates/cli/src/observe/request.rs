//! One request over HTTP/1.1, as far as a monitor needs it: GET and HEAD of /metrics. Everything
//! else gets an answer that says what was wrong. The connection is closed after each.

use std::rc::Rc;

/// The format of the text, as Prometheus names it.
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// The longest head of a request that is read, in bytes.
pub const HEAD_MAX: usize = 8 << 10;

/// The next step after what has been read so far.
pub enum Request {
    /// More must come.
    Incomplete,
    /// The metrics, or (HEAD) only what they would be.
    Metrics { with_body: bool },
    /// Something else: this is the answer.
    Refused(Vec<u8>),
}

pub fn parse(head: &[u8]) -> Request {
    let Some(end) = end_of_head(head) else {
        return if head.len() >= HEAD_MAX {
            refuse("431 Request Header Fields Too Large", "the request is too long", "")
        } else {
            Request::Incomplete
        };
    };
    let line = head[..end].split(|b| matches!(b, b'\r' | b'\n')).next().unwrap_or_default();
    let mut words = std::str::from_utf8(line).unwrap_or_default().split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return refuse("400 Bad Request", "this is no HTTP request", "");
    };
    if !version.starts_with("HTTP/1.") {
        return refuse("505 HTTP Version Not Supported", "HTTP/1.1 is spoken here", "");
    }
    let with_body = match method {
        "GET" => true,
        "HEAD" => false,
        _ => {
            return refuse(
                "405 Method Not Allowed",
                "the metrics can only be read",
                "Allow: GET, HEAD\r\n",
            );
        }
    };
    match target.split(['?', '#']).next() {
        Some("/" | "/metrics") => Request::Metrics { with_body },
        _ => refuse("404 Not Found", "the metrics are at /metrics", ""),
    }
}

/// Where the empty line begins that ends a request's head.
fn end_of_head(head: &[u8]) -> Option<usize> {
    let crlf = head.windows(4).position(|w| w == b"\r\n\r\n");
    crlf.or_else(|| head.windows(2).position(|w| w == b"\n\n"))
}

fn refuse(status: &str, why: &str, more: &str) -> Request {
    let body = format!("{why}\n");
    Request::Refused(
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\n\
             {more}Connection: close\r\n\r\n{body}",
            body.len()
        )
        .into_bytes(),
    )
}

/// The answer with the metrics in it: its head, and its body, which several connections may share.
pub fn answer(text: &Rc<str>, with_body: bool) -> (Vec<u8>, Rc<str>) {
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {}\r\nCache-Control: \
         no-store\r\n\
         Connection: close\r\n\r\n",
        text.len()
    );
    (head.into_bytes(), if with_body { text.clone() } else { "".into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(head: &[u8]) -> String {
        match parse(head) {
            Request::Incomplete => "incomplete".to_string(),
            Request::Metrics { with_body: true } => "metrics".to_string(),
            Request::Metrics { with_body: false } => "head".to_string(),
            Request::Refused(answer) => String::from_utf8(answer).unwrap()[9..12].to_string(),
        }
    }

    #[test]
    fn requests_and_what_is_none() {
        assert_eq!(status(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"), "metrics");
        assert_eq!(status(b"GET /metrics?x=1 HTTP/1.0\n\n"), "metrics");
        assert_eq!(status(b"HEAD / HTTP/1.1\r\n\r\n"), "head");
        assert_eq!(status(b"GET /metrics HTTP/1.1\r\nHost"), "incomplete");
        assert_eq!(status(b""), "incomplete");
        assert_eq!(status(b"GET /etc/passwd HTTP/1.1\r\n\r\n"), "404");
        assert_eq!(status(b"POST /metrics HTTP/1.1\r\n\r\n"), "405");
        assert_eq!(status(b"GET /metrics HTTP/2.0\r\n\r\n"), "505");
        assert_eq!(status(b"GET /metrics\r\n\r\n"), "400");
        assert_eq!(status(b"\xff\xfe \x00\r\n\r\n"), "400");
        assert_eq!(status(b"\r\n\r\n"), "400");
        assert_eq!(status(&[b'a'; HEAD_MAX]), "431");
    }

    #[test]
    fn the_answer_says_how_long_it_is() {
        let (head, body) = answer(&"abc\n".into(), true);
        let head = String::from_utf8(head).unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n"));
        assert!(head.contains("Content-Length: 4\r\n") && head.contains("version=0.0.4"));
        assert_eq!(&*body, "abc\n");
        assert_eq!(&*answer(&"abc\n".into(), false).1, "");
    }
}
