//! Errors of servers and devices, in words.

use uzswap::sys::Errno;

/// Why a server cannot be used.
pub fn in_words(shown: &str, error: Errno) -> String {
    let why = match error {
        Errno::ENOENT => "there is no such export, or no such socket".to_string(),
        Errno::EOPNOTSUPP => "its server is too old (it does not know NBD_OPT_GO)".to_string(),
        Errno::EACCES => "its server does not let us".to_string(),
        Errno::ETIMEDOUT => "it does not answer".to_string(),
        uzswap::store::remote::ENOKEY => {
            "its server wants TLS, which is not spoken here".to_string()
        }
        uzswap::store::remote::EPROTO => "what answers there is no NBD server".to_string(),
        Errno(number) => crate::program::reason(&std::io::Error::from_raw_os_error(number)),
    };
    format!("{shown}: {why}")
}
