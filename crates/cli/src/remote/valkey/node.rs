//! The settings of one server, as it tells them: the most memory that it takes, and its policy when
//! that is full.

use uzswap::store::valkey::resp::{Address, Outgoing};
use uzswap::store::valkey::{Failure, Valkey, errno_of};
use uzswap::sys::socket::Patience;

use crate::size::human;

pub const POLICY_REMEDY: &str =
    "redis-cli -h HOST config set maxmemory-policy noeviction (in a Cluster, on every node)";
const PATIENCE_NS: u64 = 5_000_000_000;
/// INFO of one section has some kilobytes.
const TEXT_BYTES: usize = 64 << 10;

/// One server, or one node of a Cluster.
#[derive(Debug)]
pub struct Node {
    /// Its address.
    pub shown: String,
    pub used_bytes: u64,
    /// 0: no limit is set.
    most_bytes: u64,
    machine_bytes: u64,
    /// `None`: the server does not let us ask for it.
    pub policy: Option<String>,
    /// Replicas that follow it.
    pub replicas: Vec<Address>,
}

impl Node {
    /// Asks a server for its settings. `is_primary`: a replica is an error.
    pub fn ask(valkey: &Valkey, at: Address, is_primary: bool) -> Result<Node, String> {
        let shown = at.to_socket_address().map_or("a node".to_string(), |a| a.to_string());
        let ask = |words: &[&str]| {
            let command = Outgoing::new().command(words.len());
            let command = words.iter().fold(command, |c, word| c.word(word.as_bytes()));
            let mut text = vec![0; TEXT_BYTES];
            let mut patience = Patience::new(PATIENCE_NS);
            let asked = valkey.ask_text(at, &command, &mut text, &mut patience);
            asked.map(|len| String::from_utf8_lossy(&text[..len]).into_owned())
        };
        let said = |answer: Result<String, Failure>| match answer {
            Ok(text) => Ok(Some(text)),
            Err(Failure::Said(_)) => Ok(None),
            Err(why) => Err(super::in_words(&shown, errno_of(why))),
        };
        let memory = said(ask(&["INFO", "memory"]))?.unwrap_or_default();
        let role = said(ask(&["INFO", "replication"]))?.unwrap_or_default();
        if is_primary && field(&role, "role") == Some("slave") {
            return Err(format!("{shown} is a replica, which takes no writes: name its primary"));
        }
        let mut policy = field(&memory, "maxmemory_policy").map(str::to_string);
        if policy.is_none() {
            let config = said(ask(&["CONFIG", "GET", "maxmemory-policy"]))?;
            policy = config.and_then(|text| text.lines().nth(1).map(str::to_string));
        }
        let number = |name| field(&memory, name).and_then(|n| n.parse().ok()).unwrap_or(0);
        let (used_bytes, most_bytes) = (number("used_memory"), number("maxmemory"));
        let machine_bytes = number("total_system_memory");
        let replicas = role.lines().filter_map(replica).collect();
        Ok(Node { shown, used_bytes, most_bytes, machine_bytes, policy, replicas })
    }

    /// How much it takes, as far as it says.
    pub fn capacity_bytes(&self) -> Option<u64> {
        [self.most_bytes, self.machine_bytes].into_iter().find(|bytes| *bytes > 0)
    }

    /// The policy by which it deletes values that are to stay.
    pub fn evicts(&self) -> Option<&str> {
        self.policy.as_deref().filter(|policy| *policy != "noeviction")
    }

    /// For people.
    pub fn describe(&self) -> String {
        let most = match self.most_bytes {
            0 => "no maxmemory".to_string(),
            bytes => format!("of {}", human(bytes)),
        };
        let policy = self.policy.as_deref().unwrap_or("not to be asked for");
        format!("{}: {} used, {most}, policy {policy}", self.shown, human(self.used_bytes))
    }
}

/// The address in a line `slave0:ip=10.0.0.2,port=7002,state=online,...`.
fn replica(line: &str) -> Option<Address> {
    let (_, fields) = line.strip_prefix("slave")?.split_once(':')?;
    let of = |name: &str| fields.split(',').find_map(|f| f.strip_prefix(name)?.strip_prefix('='));
    Address::of(of("ip")?.as_bytes(), of("port")?.parse().ok()?)
}

/// A field of INFO's text.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let of = |line: &'a str| line.strip_prefix(name)?.strip_prefix(':');
    text.lines().find_map(of).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "# Memory\r\nmaxmemory:5\r\nmaxmemory_policy:allkeys-lru\r\n";
        assert_eq!(field(text, "maxmemory"), Some("5"));
        assert_eq!(field(text, "maxmemory_policy"), Some("allkeys-lru"));
        assert_eq!(field(text, "used_memory"), None);
        let line = "slave0:ip=10.0.0.2,port=7002,state=online,offset=1,lag=0";
        assert_eq!(replica(line), Address::of(b"10.0.0.2", 7002));
        assert_eq!((replica("slaves:1"), replica("slave_priority:100")), (None, None));
    }
}
