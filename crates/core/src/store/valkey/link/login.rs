//! The login on a new connection.

use super::{Answer, Failure, Socket};
use crate::store::remote::{EPROTO, Server};
use crate::store::valkey::resp::{Complaint, Head, Incoming, Outgoing};
use crate::sys::file::Fd;
use crate::sys::socket::{self, Patience};

/// The user's name and password, with a zero between them; empty: nobody logs in.
#[derive(Clone, Copy)]
pub struct Login {
    bytes: [u8; Server::NAME_BYTES],
    len: usize,
}

impl Login {
    pub const NOBODY: Login = Login { bytes: [0; Server::NAME_BYTES], len: 0 };

    /// The login in a server's settings, in place of an export's name.
    pub fn of(server: &Server) -> Login {
        let mut login = Login { len: server.export().len(), ..Login::NOBODY };
        login.bytes[..login.len].copy_from_slice(server.export());
        login
    }

    fn command(&self) -> Option<Outgoing> {
        let text = &self.bytes[..self.len];
        let zero = text.iter().position(|b| *b == 0)?;
        let (user, password) = (&text[..zero], &text[zero + 1..]);
        Some(match user {
            [] => Outgoing::new().command(2).word(b"AUTH").word(password),
            _ => Outgoing::new().command(3).word(b"AUTH").word(user).word(password),
        })
    }
}

pub(super) fn log_in(
    fd: Fd,
    login: &Login,
    incoming: &mut Incoming,
    patience: &mut Patience,
) -> Answer<()> {
    incoming.clear();
    let Some(command) = login.command() else { return Ok(()) };
    let sent = socket::send(fd, command.bytes().map_err(Failure::Broken)?, patience);
    sent.map_err(Failure::Broken)?;
    match incoming.head(&mut Socket { fd, patience }).map_err(Failure::Broken)? {
        Head::Status if incoming.is_empty() => Ok(()),
        // A user without a password on a server that asks for none: Redis says so, and goes on.
        Head::Error(Complaint::Other) => Err(Failure::Said(Complaint::NotAllowed)),
        Head::Error(why) => Err(Failure::Said(why)),
        _ => Err(Failure::Broken(EPROTO)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_names_a_user_only_where_there_is_one_and_the_longest_fits() {
        let command = |login: &[u8]| {
            let command = Login::of(&Server::new(&[], login).unwrap()).command();
            command.map(|c| String::from_utf8(c.bytes().unwrap().to_vec()).unwrap())
        };
        assert_eq!(command(b""), None);
        assert_eq!(command(b"\0pass").unwrap(), "*2\r\n$4\r\nAUTH\r\n$4\r\npass\r\n");
        let both = "*3\r\n$4\r\nAUTH\r\n$2\r\nme\r\n$0\r\n\r\n";
        assert_eq!(command(b"me\0").unwrap(), both);
        let longest = [&[b'u'; 127][..], b"\0", &[b'p'; 128]].concat();
        assert!(command(&longest).unwrap().ends_with("p\r\n"));
    }
}
