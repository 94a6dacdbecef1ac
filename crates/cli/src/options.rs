//! The options of `uzswap run`: one list, from which everything else derives.
//!
//! An option is given on the command line (`--memory 1G`) or by its variable (`UZSWAP_MEMORY=1G`);
//! the command line wins. The arguments clap accepts, the text of `--help`, the table in
//! docs/options.md and the names in error messages are all made from [`OPTIONS`].

use std::ffi::OsString;
use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Command};

/// One option of `uzswap run`.
#[derive(Debug)]
pub struct OptionSpec {
    /// Name on the command line, without the dashes.
    pub flag: &'static str,
    /// The environment variable that gives the same.
    pub variable: &'static str,
    /// The value's name in help texts; `None` for a switch.
    pub value: Option<&'static str>,
    /// Its effect, with the unit of the value.
    pub what: &'static str,
    pub default: &'static str,
    /// Which values are accepted.
    pub bounds: &'static str,
    /// Why the default is what it is, or why one would change it.
    pub reason: &'static str,
    /// For people who work on uzswap itself: left out of help and tables.
    pub hidden: bool,
}

/// The smallest `--memory` with which a program can run at all: below it the pages that one system
/// call holds, the compressed pool and the runtime's own tables do not fit beside each other.
pub const MIN_MEMORY_BYTES: u64 = 16 << 20;
pub const POOL_PERCENT_DEFAULT: &str = "auto";
pub const POOL_PERCENT_MIN: u32 = 1;
pub const POOL_PERCENT_MAX: u32 = 90;
pub const ACCEPT_THRESHOLD_DEFAULT: u32 = 90;
pub const COMPRESSOR_DEFAULT: &str = "auto";
pub const RECOMPRESSOR_DEFAULT: &str = "zstd:level=-1";

pub const MEMORY: OptionSpec = OptionSpec {
    flag: "memory",
    variable: "UZSWAP_MEMORY",
    value: Some("SIZE|PERCENT"),
    what: "memory that the program and all it starts may hold: bytes, 512M, 1.5G, 1GiB, or 50% of \
           the limit",
    default: "what is free",
    bounds: "at least 16M",
    reason: "what is left in the memory cgroup that leaves least (or the machine's available \
             memory, if that is less), less a margin for page tables, stacks and kernel memory, \
             which count there too",
    hidden: false,
};

pub const POOL_PERCENT: OptionSpec = OptionSpec {
    flag: "pool-percent",
    variable: "UZSWAP_POOL_PERCENT",
    value: Some("N|auto"),
    what: "share of the memory that compressed pages may take, in percent, or auto",
    default: POOL_PERCENT_DEFAULT,
    bounds: "1 to 90",
    reason: "a larger pool avoids the disk, a smaller one leaves more pages ready to use; what is \
             better shows in the faults, so it adapts between 10 and 85; without a store it stays \
             at 90",
    hidden: false,
};

pub const COMPRESSOR: OptionSpec = OptionSpec {
    flag: "compressor",
    variable: "UZSWAP_COMPRESSOR",
    value: Some("NAME|auto"),
    what: "how pages are compressed: words, lz4, zstd:level=3 and others (see 'uzswap help \
           compressors'), or auto",
    default: COMPRESSOR_DEFAULT,
    bounds: "",
    reason: "words (lz4 on processors without AVX2) brings pages back fastest; auto takes the \
             recompressor at once for a program to which the memory saved is worth more than the \
             time",
    hidden: false,
};

pub const RECOMPRESSOR: OptionSpec = OptionSpec {
    flag: "recompressor",
    variable: "UZSWAP_RECOMPRESSOR",
    value: Some("NAME|none"),
    what: "how idle pages are compressed again, while the program hardly pages or its memory is \
           reclaimed",
    default: RECOMPRESSOR_DEFAULT,
    bounds: "",
    reason: "most of what is in the pool stays there for long: packed more densely it leaves \
             memory for pages",
    hidden: false,
};

pub const POOL: OptionSpec = OptionSpec {
    flag: "pool",
    variable: "UZSWAP_POOL",
    value: Some("NAME"),
    what: "where compressed pages lie: zsmalloc, close together by size, or zbud, two to a frame",
    default: "zsmalloc",
    bounds: "zsmalloc or zbud",
    reason: "zsmalloc holds more; a page of zbud's is given back as soon as its two objects are \
             gone, and nothing is ever moved",
    hidden: false,
};

pub const ACCEPT_THRESHOLD: OptionSpec = OptionSpec {
    flag: "accept-threshold",
    variable: "UZSWAP_ACCEPT_THRESHOLD",
    value: Some("N"),
    what: "once the pool is full, it takes nothing until it is below this part of its size, in \
           percent",
    default: "90",
    bounds: "1 to 100",
    reason: "a pool that is full all the time would send a page to the disk for each that comes \
             in; the part is written by larger portions",
    hidden: false,
};

pub const HUGE_PAGES: OptionSpec = OptionSpec {
    flag: "huge-pages",
    variable: "UZSWAP_HUGE_PAGES",
    value: Some("always|madvise|never"),
    what: "which memory goes out and comes in as whole huge pages of 2 MiB: all that could, what \
           the program asks for (MADV_HUGEPAGE), or none",
    default: "madvise",
    bounds: "needs userfaultfd with MOVE, and 32M of memory or more",
    reason: "a huge page is one fault instead of 512, but all of it comes in for any part of it",
    hidden: false,
};

pub const STORE: OptionSpec = OptionSpec {
    flag: "store",
    variable: "UZSWAP_STORE",
    value: Some("DIR|DEVICE|URL,...|none"),
    what: "where pages go that find no room in memory: a directory on a disk, in a file without a \
           name; a block device; the exports of NBD servers, nbd://HOST/EXPORT or \
           nbd+unix:///EXPORT?socket=PATH; or a Valkey or Redis server or Cluster, valkey://HOST \
           or redis://HOST (its password in UZSWAP_STORE_PASSWORD)",
    default: "first disk directory of $TMPDIR, /var/tmp, /tmp",
    bounds: "a writable directory, an empty device, at most 4 empty exports, or servers that \
             evict nothing",
    reason: "with none, compressed pages are all there is, and what does not fit stays in the \
             program",
    hidden: false,
};

pub const COPIES: OptionSpec = OptionSpec {
    flag: "copies",
    variable: "UZSWAP_COPIES",
    value: Some("1|2"),
    what: "on how many servers of --store each page is that was written: with 2, one of them may \
           fail",
    default: "1",
    bounds: "no more than there are servers",
    reason: "a page whose only server is gone ends the program that needs it",
    hidden: false,
};

pub const STATS: OptionSpec = OptionSpec {
    flag: "stats",
    variable: "UZSWAP_STATS",
    value: Some("FILE"),
    what: "write every counter to FILE as JSON at the end (see 'uzswap help stats')",
    default: "not written",
    bounds: "a writable file",
    reason: "opened before the program starts, so that a wrong name is heard of at once",
    hidden: false,
};

pub const METRICS: OptionSpec = OptionSpec {
    flag: "metrics",
    variable: "UZSWAP_METRICS",
    value: Some("unix:PATH|HOST:PORT|PORT"),
    what: "serve metrics for Prometheus over HTTP while the program runs, on a Unix socket or a \
           TCP port",
    default: "not served",
    bounds: "a free address; without a host only this machine can reach it",
    reason: "a socket file is its owner's alone; a port has no password, so whoever reaches it \
             reads the names and memory of processes. Port 0 takes a free one and says which",
    hidden: false,
};

pub const REPORT: OptionSpec = OptionSpec {
    flag: "report",
    variable: "UZSWAP_REPORT",
    value: Some("FILE.html"),
    what: "write a page about the run at the end, with plots over time, in one file that needs \
           nothing else",
    default: "not written",
    bounds: "a file that can be made",
    reason: "tried before the program starts, and written however the program ends",
    hidden: false,
};

pub const TRACE: OptionSpec = OptionSpec {
    flag: "trace",
    variable: "UZSWAP_TRACE",
    value: Some("FILE"),
    what: "record every fault in FILE, for 'uzswap simulate'",
    default: "not recorded",
    bounds: "a writable file; 16 bytes for each fault",
    reason: "what is touched while it is in memory leaves no fault: a small --memory gives a fine \
             trace",
    hidden: false,
};

pub const IF_POSSIBLE: OptionSpec = OptionSpec {
    flag: "if-possible",
    variable: "UZSWAP_IF_POSSIBLE",
    value: None,
    what: "run the program unmanaged, and say so, where it cannot be taken over",
    default: "refuse",
    bounds: "",
    reason: "a program that runs without its limit is killed later, and then nobody knows why",
    hidden: false,
};

pub const MECHANISM: OptionSpec = OptionSpec {
    flag: "mechanism",
    variable: "UZSWAP_MECHANISM",
    value: Some("NAME"),
    what: "how pages leave and enter the program",
    default: "auto",
    bounds: "auto, userfaultfd, userfaultfd-copy or protect",
    reason: "auto takes the best that 'uzswap doctor' finds; the others are for tests and \
             measurements",
    hidden: false,
};

pub const NO_ENCRYPT: OptionSpec = OptionSpec {
    flag: "no-encrypt",
    variable: "UZSWAP_NO_ENCRYPT",
    value: None,
    what: "do not encrypt what is written to the store",
    default: "encrypt",
    bounds: "",
    reason: "memory holds secrets; the key dies with the process",
    hidden: false,
};

pub const CACHE: OptionSpec = OptionSpec {
    flag: "cache",
    variable: "UZSWAP_CACHE",
    value: Some("DIR|none"),
    what: "directory where the analysis of libraries and their patched code, 128 MiB at most, are \
           kept between starts",
    default: "$XDG_CACHE_HOME/uzswap, ~/.cache/uzswap or /tmp/uzswap-UID",
    bounds: "a directory that nobody else can write",
    reason: "without it every start takes some 100 ms longer and every process has its own copies \
             of that code",
    hidden: false,
};

pub const IDLE_AFTER_DEFAULT: &str = "never";
pub const IDLE_AFTER_LEAST: Duration = Duration::from_secs(1);

pub const IDLE_AFTER: OptionSpec = OptionSpec {
    flag: "idle-after",
    variable: "UZSWAP_IDLE_AFTER",
    value: Some("TIME|never"),
    what: "take all memory of a process that has had no fault and no processor time (a thousandth \
           of it at most) for so long: 30s, 10m, 2h; it comes back as it is touched",
    default: IDLE_AFTER_DEFAULT,
    bounds: "at least 1s",
    reason: "memory that is not used for minutes is worth more to others, but the program's next \
             step waits for it",
    hidden: false,
};

pub const NO_TURNS: OptionSpec = OptionSpec {
    flag: "no-turns",
    variable: "UZSWAP_NO_TURNS",
    value: None,
    what: "let all processes run at any time, also when they need so much memory together that \
           they do little but page; without this only so many of them run at a time as fit, by \
           turns of 0.4 to 8 s",
    default: "turns",
    bounds: "",
    reason: "a build by 24 compilers in half of their memory takes an eleventh of the processor \
             time; a server that must answer at once may rather be slow all the time than wait for \
             its turn",
    hidden: false,
};

pub const IN_PLACE: OptionSpec = OptionSpec {
    flag: "in-place",
    variable: "UZSWAP_IN_PLACE",
    value: None,
    what: "become the program: it has the process id that uzswap was started with, and its parent \
           as its own; uzswap goes on beside it, with nothing to say",
    default: "the program is a child",
    bounds: "",
    reason: "whoever started uzswap (a notebook server, systemd, a batch system, a container) \
             signals, watches and waits for the program itself; the summary has no stderr to go \
             to, --stats and --report have it; as process 1 of a container the program takes \
             uzswap with it when it ends, so these may not be written",
    hidden: false,
};

pub const QUIET: OptionSpec = OptionSpec {
    flag: "quiet",
    variable: "UZSWAP_QUIET",
    value: None,
    what: "no summary at the end; warnings of failures are still printed",
    default: "one line on stderr",
    bounds: "",
    reason: "the line says whether the memory given was enough",
    hidden: false,
};

pub const DEBUG: OptionSpec = OptionSpec {
    flag: "debug",
    variable: "UZSWAP_DEBUG",
    value: None,
    what: "diagnostics of the runtime on stderr",
    default: "off",
    bounds: "",
    reason: "for work on uzswap itself",
    hidden: true,
};

/// Every option, in the order of the help text.
pub const OPTIONS: &[&OptionSpec] = &[
    &MEMORY,
    &POOL_PERCENT,
    &COMPRESSOR,
    &RECOMPRESSOR,
    &POOL,
    &ACCEPT_THRESHOLD,
    &HUGE_PAGES,
    &STORE,
    &COPIES,
    &STATS,
    &METRICS,
    &REPORT,
    &TRACE,
    &IF_POSSIBLE,
    &MECHANISM,
    &NO_ENCRYPT,
    &CACHE,
    &IDLE_AFTER,
    &NO_TURNS,
    &IN_PLACE,
    &QUIET,
    &DEBUG,
];

impl OptionSpec {
    fn help(&self) -> String {
        let mut text = format!("{} [default: {}]", self.what, self.default);
        if !self.bounds.is_empty() {
            text += &format!(" [{}]", self.bounds);
        }
        text + &format!(" [env: {}]", self.variable)
    }

    fn arg(&self) -> Arg {
        let arg = Arg::new(self.flag)
            .long(self.flag)
            .help(self.help())
            .long_help(format!("{}\nWhy: {}", self.help(), self.reason))
            .hide(self.hidden);
        match self.value {
            Some(value) => arg
                .value_name(value)
                .action(ArgAction::Set)
                .value_parser(clap::value_parser!(OsString))
                // So that `--memory -5` is answered by "no size", not by "unexpected argument".
                .allow_hyphen_values(true),
            None => arg.action(ArgAction::SetTrue),
        }
    }
}

/// Where a value came from, as it is named in messages: `--memory` or `UZSWAP_MEMORY`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given<T> {
    pub value: T,
    pub origin: String,
}

/// The options as the command line gave them: not parsed, not completed from the environment.
#[derive(Clone, Debug, Default)]
pub struct RawOptions {
    values: Vec<(&'static str, OsString)>,
    switches: Vec<&'static str>,
}

impl RawOptions {
    /// The text of an option: from the command line, else from its variable; an empty variable is
    /// no value.
    pub fn text(
        &self,
        option: &OptionSpec,
        env: &dyn Fn(&str) -> Option<OsString>,
    ) -> Option<Given<OsString>> {
        if let Some((_, value)) = self.values.iter().find(|(flag, _)| *flag == option.flag) {
            return Some(Given { value: value.clone(), origin: format!("--{}", option.flag) });
        }
        let value = env(option.variable).filter(|v| !v.is_empty())?;
        Some(Given { value, origin: option.variable.to_string() })
    }

    /// Whether a switch is on. A variable may say 1, true, yes, on or 0, false, no, off.
    pub fn switch(
        &self,
        option: &OptionSpec,
        env: &dyn Fn(&str) -> Option<OsString>,
    ) -> Result<bool, String> {
        if self.switches.contains(&option.flag) {
            return Ok(true);
        }
        let Some(value) = env(option.variable) else { return Ok(false) };
        match value.to_str().map(str::to_ascii_lowercase).as_deref() {
            Some("1" | "true" | "yes" | "on") => Ok(true),
            Some("" | "0" | "false" | "no" | "off") => Ok(false),
            _ => Err(format!("{} is {value:?}, which is neither 1 nor 0", option.variable)),
        }
    }
}

impl clap::FromArgMatches for RawOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut raw = RawOptions::default();
        for option in OPTIONS {
            match option.value {
                Some(_) => {
                    if let Some(value) = matches.get_one::<OsString>(option.flag) {
                        raw.values.push((option.flag, value.clone()));
                    }
                }
                None if matches.get_flag(option.flag) => raw.switches.push(option.flag),
                None => {}
            }
        }
        Ok(raw)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl clap::Args for RawOptions {
    fn augment_args(command: Command) -> Command {
        command.args(OPTIONS.iter().map(|option| option.arg()))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(flag: &'static str, value: &str) -> RawOptions {
        RawOptions { values: vec![(flag, value.into())], switches: vec![] }
    }

    #[test]
    fn the_command_line_wins_over_the_variable() {
        let env = |name: &str| (name == "UZSWAP_MEMORY").then(|| OsString::from("1G"));
        let given = raw("memory", "2G").text(&MEMORY, &env).unwrap();
        assert_eq!((given.value, given.origin.as_str()), ("2G".into(), "--memory"));
        let given = RawOptions::default().text(&MEMORY, &env).unwrap();
        assert_eq!((given.value, given.origin.as_str()), ("1G".into(), "UZSWAP_MEMORY"));
        assert_eq!(RawOptions::default().text(&STORE, &env), None);
        let empty = |_: &str| Some(OsString::new());
        assert_eq!(RawOptions::default().text(&MEMORY, &empty), None);
    }

    #[test]
    fn switches_understand_yes_and_no() {
        let with = |value: &'static str| move |_: &str| Some(OsString::from(value));
        let none = RawOptions::default();
        for on in ["1", "true", "YES", "on"] {
            assert_eq!(none.switch(&QUIET, &with(on)), Ok(true), "{on}");
        }
        for off in ["0", "False", "no", "off", ""] {
            assert_eq!(none.switch(&QUIET, &with(off)), Ok(false), "{off}");
        }
        assert!(none.switch(&QUIET, &with("maybe")).unwrap_err().contains("UZSWAP_QUIET"));
        let given = RawOptions { values: vec![], switches: vec!["quiet"] };
        assert_eq!(given.switch(&QUIET, &with("0")), Ok(true));
    }

    #[test]
    fn every_option_has_its_own_names() {
        for (i, a) in OPTIONS.iter().enumerate() {
            assert!(a.variable.starts_with("UZSWAP_"), "{}", a.variable);
            assert_eq!(a.variable[7..].to_ascii_lowercase().replace('_', "-"), a.flag);
            for b in &OPTIONS[..i] {
                assert_ne!(a.flag, b.flag);
            }
        }
    }
}
