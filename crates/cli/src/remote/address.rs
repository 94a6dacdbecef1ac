//! The address of an export, as libnbd writes it: `nbd://HOST[:PORT]/EXPORT`,
//! `nbd+unix:///EXPORT?socket=PATH`.
//!
//! `%20` and the like stand for bytes. Several addresses are separated by commas, so a comma in a
//! name is `%2C`. A host's name is looked up here, once: the program looks nothing up.

use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use uzswap::store::remote::Server;

/// The port of NBD.
const PORT: u16 = 10809;

/// Where an export is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// As it was given, for messages.
    pub text: String,
    place: Place,
    export: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Tcp(String, u16),
    Unix(PathBuf),
}

/// Whether a value of `--store` is an address of an export.
pub fn is_one(text: &str) -> bool {
    text.split_once("://").is_some_and(|(scheme, _)| scheme.starts_with("nbd"))
}

impl Address {
    pub fn parse(text: &str) -> Result<Address, String> {
        let (scheme, rest) = text.split_once("://").ok_or("is no address: nbd://HOST/EXPORT")?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (host, export) = rest.split_once('/').unwrap_or((rest, ""));
        let place = match scheme {
            "nbd" if query.is_empty() => {
                let (host, port) = host_and_port(host)?;
                Place::Tcp(host, port)
            }
            "nbd" => return Err(format!("'?{query}' means nothing with nbd://")),
            "nbd+unix" if host.is_empty() => Place::Unix(socket(query)?),
            "nbd+unix" => {
                return Err("begins with nbd+unix:///, three slashes: there is no host".to_string());
            }
            "nbds" | "nbds+unix" => {
                return Err(
                    "TLS is not spoken here; pages are encrypted before they leave: take nbd://, \
                     or a tunnel"
                        .to_string(),
                );
            }
            _ => return Err(format!("'{scheme}://' is neither nbd:// nor nbd+unix://")),
        };
        Ok(Address { text: text.to_string(), place, export: plain(export)? })
    }

    /// For the runtime: with the host looked up.
    pub fn resolve(&self) -> Result<Server, String> {
        let address = match &self.place {
            Place::Unix(path) => {
                let mut bytes = (libc::AF_UNIX as u16).to_ne_bytes().to_vec();
                bytes.extend(path.as_os_str().as_bytes());
                bytes.push(0);
                // sun_path has 108 bytes.
                if bytes.len() > 2 + 108 {
                    return Err(format!(
                        "the socket's path has {} bytes, at most 107",
                        bytes.len() - 3
                    ));
                }
                bytes
            }
            Place::Tcp(host, port) => {
                let found = (host.as_str(), *port).to_socket_addrs();
                let mut found = found.map_err(|e| format!("{host} is not known: {e}"))?;
                socket_address(found.next().ok_or_else(|| format!("{host} has no address"))?)
            }
        };
        let too_long = || format!("the export's name has more than {} bytes", Server::NAME_BYTES);
        Server::new(&address, &self.export).ok_or_else(too_long)
    }

    /// Whether the server is on this machine, whose memory it takes then.
    pub fn is_local(&self) -> bool {
        match &self.place {
            Place::Unix(_) => true,
            Place::Tcp(host, port) => (host.as_str(), *port)
                .to_socket_addrs()
                .is_ok_and(|mut found| found.next().is_some_and(|a| a.ip().is_loopback())),
        }
    }
}

fn host_and_port(text: &str) -> Result<(String, u16), String> {
    split_port(text).map(|(host, port)| (host, port.unwrap_or(PORT)))
}

/// `HOST`, `HOST:PORT`, `[ADDRESS]:PORT`.
pub fn split_port(text: &str) -> Result<(String, Option<u16>), String> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or("has no ']' after the address")?;
            (host, rest.strip_prefix(':'))
        }
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    if host.is_empty() {
        return Err("names no host".to_string());
    }
    let port = match port {
        None => None,
        Some(port) => Some(port.parse().map_err(|_| format!("'{port}' is no port"))?),
    };
    Ok((host.to_string(), port))
}

fn socket(query: &str) -> Result<PathBuf, String> {
    let path = query.split('&').find_map(|pair| pair.strip_prefix("socket="));
    let path = path.filter(|p| !p.is_empty()).ok_or("does not say which socket: ?socket=PATH")?;
    let path = PathBuf::from(std::ffi::OsString::from_vec(plain(path)?));
    // The program may change its directory.
    std::path::absolute(&path).map_err(|e| format!("{}: {e}", path.display()))
}

/// The text's bytes, with each percent sign and its two digits replaced by the byte that they stand
/// for.
pub fn plain(text: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = after.get(..2).and_then(|d| std::str::from_utf8(d).ok());
        let byte = digits.and_then(|d| u8::from_str_radix(d, 16).ok()).filter(|b| *b != 0);
        bytes.push(byte.ok_or_else(|| format!("'{text}' has a % without two digits after it"))?);
        rest = &after[2..];
    }
    Ok(bytes)
}

/// The address in the form that the kernel takes.
pub fn socket_address(address: SocketAddr) -> Vec<u8> {
    let mut bytes = Vec::new();
    match address {
        SocketAddr::V4(v4) => {
            bytes.extend((libc::AF_INET as u16).to_ne_bytes());
            bytes.extend(v4.port().to_be_bytes());
            bytes.extend(v4.ip().octets());
            bytes.extend([0; 8]);
        }
        SocketAddr::V6(v6) => {
            bytes.extend((libc::AF_INET6 as u16).to_ne_bytes());
            bytes.extend(v6.port().to_be_bytes());
            bytes.extend(v6.flowinfo().to_ne_bytes());
            bytes.extend(v6.ip().octets());
            bytes.extend(v6.scope_id().to_ne_bytes());
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_libnbds() {
        let tcp =
            |host: &str, port, export: &[u8]| (Place::Tcp(host.to_string(), port), export.to_vec());
        let parsed = |text: &str| Address::parse(text).map(|a| (a.place, a.export));
        assert_eq!(parsed("nbd://spare"), Ok(tcp("spare", 10809, b"")));
        assert_eq!(parsed("nbd://spare:1/a/b%20c"), Ok(tcp("spare", 1, b"a/b c")));
        assert_eq!(parsed("nbd://[::1]:99/x"), Ok(tcp("::1", 99, b"x")));
        let unix = Place::Unix("/run/a b,c.sock".into());
        assert_eq!(
            parsed("nbd+unix:///x?socket=/run/a%20b%2Cc.sock"),
            Ok((unix.clone(), b"x".to_vec()))
        );
        assert_eq!(parsed("nbd+unix://?socket=/run/a%20b%2Cc.sock"), Ok((unix, vec![])));
        for (wrong, says) in [
            ("nbd://", "no host"),
            ("nbd://a:b/", "'b' is no port"),
            ("nbd://[::1/x", "no ']'"),
            ("nbd://a/%g1", "two digits"),
            ("nbd://a/%00", "two digits"),
            ("nbd://a/x?socket=/y", "means nothing"),
            ("nbd+unix:///x", "which socket"),
            ("nbd+unix://host/x?socket=/y", "three slashes"),
            ("nbds://a/x", "TLS"),
            ("nbd+vsock://1/x", "neither nbd://"),
        ] {
            let error = Address::parse(wrong).unwrap_err();
            assert!(error.contains(says), "{wrong}: {error}");
        }
        assert!(
            is_one("nbds://x") && is_one("nbd+unix:///") && !is_one("/nbd://") && !is_one("none")
        );
    }

    #[test]
    fn addresses_are_as_the_kernel_takes_them() {
        let server = |text: &str| Address::parse(text).unwrap().resolve();
        let v4 = server("nbd://127.0.0.1:258/x").unwrap();
        assert_eq!(v4.address(), [2, 0, 1, 2, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(v4.export(), b"x");
        assert_eq!(server("nbd://[::1]:258/").unwrap().address()[..4], [10, 0, 1, 2]);
        assert_eq!(server("nbd+unix:///?socket=/s").unwrap().address(), b"\x01\0/s\0");
        let long = format!("nbd+unix:///?socket=/{}", "s".repeat(107));
        assert!(server(&long).err().unwrap().contains("at most 107"));
        assert!(server(&format!("nbd://127.0.0.1/{}", "x".repeat(257))).is_err());
    }
}
