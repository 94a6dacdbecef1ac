//! The address of a Valkey or Redis server, or of nodes of a Cluster:
//! `valkey://[USER[:PASSWORD]@]HOST[:PORT][,HOST[:PORT]...][?lease=TIME]`, and `redis://`.
//!
//! `%40` and the like stand for bytes of names and passwords. A password in an address can be seen
//! by everybody who can list processes (`ps`); one in [`PASSWORD`] cannot.

use std::net::ToSocketAddrs;
use std::time::Duration;

use uzswap::store::remote::{SERVERS_MOST, Server};

use crate::duration;
use crate::remote::address::{plain, socket_address, split_port};

/// The port of Valkey and Redis.
const PORT: u16 = 6379;
/// The variable that has the password where the address has none. The program does not get to see
/// it.
pub const PASSWORD: &str = "UZSWAP_STORE_PASSWORD";

/// The lifetime of values that nobody renews: longer than a machine is busy or a failover takes,
/// and short enough for somebody who looks whether they have gone.
pub const LEASE: Duration = Duration::from_secs(120);
/// The shortest lease: values are renewed once a second at most, and two of three tries may come to
/// nothing.
const LEASE_LEAST: Duration = Duration::from_secs(5);
const LEASE_MOST: Duration = Duration::from_secs(24 * 3600);

/// Where the servers are, and who we are there.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    /// As it was given, without the password: for messages.
    pub text: String,
    user: Vec<u8>,
    password: Option<Vec<u8>>,
    pub hosts: Vec<(String, u16)>,
    pub lease: Duration,
}

impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Address").field(&self.text).finish()
    }
}

/// Whether a value of `--store` is an address of Valkey or Redis.
pub fn is_one(text: &str) -> bool {
    let is_ours = |scheme: &str| scheme.starts_with("valkey") || scheme.starts_with("redis");
    text.split_once("://").is_some_and(|(scheme, _)| is_ours(scheme))
}

/// An address without its password, for messages about addresses that are wrong, too.
fn shown(text: &str) -> String {
    let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
    match rest.rsplit_once('@') {
        Some((login, rest)) => {
            let user = login.split(':').next().unwrap_or("");
            format!("{scheme}://{user}{}{rest}", if user.is_empty() { "" } else { "@" })
        }
        None => text.to_string(),
    }
}

impl Address {
    /// `env`: for the password.
    pub fn parse(text: &str, env: impl Fn(&str) -> Option<Vec<u8>>) -> Result<Address, String> {
        let shown = shown(text);
        Self::read(text, shown.clone(), env).map_err(|why| format!("'{shown}' {why}"))
    }

    fn read(
        text: &str,
        shown: String,
        env: impl Fn(&str) -> Option<Vec<u8>>,
    ) -> Result<Address, String> {
        let (scheme, rest) = text.split_once("://").ok_or("is no address: valkey://HOST")?;
        match scheme {
            "valkey" | "redis" => {}
            "valkeys" | "rediss" => {
                return Err(
                    "is for TLS, which is not spoken here; pages are encrypted before they \
                            leave: take valkey://, or a tunnel"
                        .to_string(),
                );
            }
            _ => return Err(format!("begins with '{scheme}://', not with valkey:// or redis://")),
        }
        // The login first: a question mark in a password begins nothing.
        let (login, rest) = rest.rsplit_once('@').map_or(("", rest), |(login, rest)| (login, rest));
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        if !matches!(path, "" | "0") {
            return Err(format!(
                "names the database '{path}': there is only 0 in a Cluster, so only 0 here"
            ));
        }
        let (user, password) = login.split_once(':').map_or((login, None), |(u, p)| (u, Some(p)));
        let password = match password {
            Some(password) => {
                let wrong = |_| "has a password with a % without two digits after it";
                Some(plain(password).map_err(wrong)?)
            }
            None => env(PASSWORD).filter(|password| !password.is_empty()),
        };
        let hosts: Vec<_> = hosts.split(',').map(host_and_port).collect::<Result<_, _>>()?;
        if hosts.len() > SERVERS_MOST {
            return Err(format!("names {} nodes, {SERVERS_MOST} are the most", hosts.len()));
        }
        let user = plain(user)?;
        if !user.is_empty() && password.is_none() {
            return Err(format!("names a user and no password: USER:PASSWORD@, or {PASSWORD}"));
        }
        Ok(Address { text: shown, user, password, hosts, lease: lease(query)? })
    }

    /// For the runtime: with the hosts looked up.
    pub fn resolve(&self) -> Result<Vec<Server>, String> {
        let login = match &self.password {
            Some(password) => [&self.user[..], &[0], password].concat(),
            None => Vec::new(),
        };
        let server = |(host, port): &(String, u16)| {
            let found = (host.as_str(), *port).to_socket_addrs();
            let mut found = found.map_err(|e| format!("{host} is not known: {e}"))?;
            let address = found.next().ok_or_else(|| format!("{host} has no address"))?;
            let server = Server::new(&socket_address(address), &login);
            server.ok_or_else(|| {
                format!(
                    "the user's name and password have more than {} bytes",
                    Server::NAME_BYTES - 1
                )
            })
        };
        self.hosts.iter().map(server).collect()
    }

    /// Whether a server is on this machine, whose memory it takes then.
    pub fn is_local(&self) -> bool {
        self.hosts.iter().any(|(host, port)| {
            let found = (host.as_str(), *port).to_socket_addrs();
            found.is_ok_and(|mut found| found.next().is_some_and(|a| a.ip().is_loopback()))
        })
    }
}

fn host_and_port(text: &str) -> Result<(String, u16), String> {
    let (host, port) = split_port(text)?;
    if let Some(odd) = host.chars().find(|c| !c.is_ascii_alphanumeric() && !"-._:".contains(*c)) {
        return Err(format!("has a host '{host}' with '{odd}' in it"));
    }
    Ok((host, port.unwrap_or(PORT)))
}

fn lease(query: &str) -> Result<Duration, String> {
    if query.is_empty() {
        return Ok(LEASE);
    }
    let Some(text) = query.strip_prefix("lease=") else {
        return Err(format!("has '?{query}', and only ?lease=TIME means anything"));
    };
    let lease = duration::parse(text).map_err(|why| format!("has a wrong lease: {why}"))?;
    if lease < LEASE_LEAST || lease > LEASE_MOST {
        return Err(format!("has a lease of '{text}': from 5s to 24h is right"));
    }
    Ok(lease)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Address, String> {
        Address::parse(text, |_| None)
    }

    #[test]
    fn addresses_name_nodes_and_who_we_are() {
        let host = |name: &str, port| (name.to_string(), port);
        let one = parse("valkey://spare").unwrap();
        assert_eq!((one.hosts, one.password, one.lease), (vec![host("spare", 6379)], None, LEASE));
        let many = parse("redis://me:p%40ss@a:1,[::1]:2,10.0.0.3/0?lease=30s").unwrap();
        assert_eq!(many.hosts, [host("a", 1), host("::1", 2), host("10.0.0.3", 6379)]);
        assert_eq!((&many.user[..], many.password.as_deref()), (&b"me"[..], Some(&b"p@ss"[..])));
        assert_eq!(many.lease, Duration::from_secs(30));
        assert_eq!(many.text, "redis://me@a:1,[::1]:2,10.0.0.3/0?lease=30s");
        assert_eq!(parse("redis://:secret@a").unwrap().text, "redis://a");
        let one = parse("redis://:a/b?c@d?lease=30s").unwrap();
        assert_eq!(
            (one.password.as_deref(), one.hosts),
            (Some(&b"a/b?c"[..]), vec![host("d", 6379)])
        );
        let by_variable = |name: &str| (name == PASSWORD).then(|| b"hidden".to_vec());
        let one = Address::parse("valkey://me@127.0.0.1:9", by_variable).unwrap();
        assert_eq!(one.resolve().unwrap()[0].export(), b"me\0hidden");
        assert!(one.is_local() && !format!("{one:?}").contains("hidden"));
        assert!(
            is_one("redis://x") && is_one("valkeys://x") && !is_one("nbd://x") && !is_one("/redis")
        );
    }

    #[test]
    fn what_is_wrong_is_named_without_the_password() {
        for (wrong, says) in [
            ("valkey://", "names no host"),
            ("valkey://a:b", "'b' is no port"),
            ("valkey://a,,b", "names no host"),
            ("valkey://a,b,c,d,e", "names 5 nodes"),
            ("redis://a/3", "database '3'"),
            ("rediss://a", "TLS"),
            ("redis+unix:///x", "begins with 'redis+unix://'"),
            ("redis://a?ttl=3", "'?ttl=3'"),
            ("redis://a?lease=1s", "from 5s to 24h"),
            ("redis://a?lease=soon", "wrong lease"),
            ("redis://me@a", "no password"),
            ("redis://:secret@a b", "with ' ' in it"),
            ("redis://u:se%zzcret@a", "two digits"),
            ("redis://:top?secret@a/3", "database '3'"),
            ("redis://:secret?top@a?ttl=3", "'?ttl=3'"),
        ] {
            let error = parse(wrong).unwrap_err();
            assert!(error.contains(says), "{wrong}: {error}");
            assert!(!error.contains("secret") && !error.contains("%zz"), "{error}");
        }
        let long = format!("redis://:{}@127.0.0.1", "x".repeat(300));
        assert!(parse(&long).unwrap().resolve().err().unwrap().contains("more than 255 bytes"));
    }
}
