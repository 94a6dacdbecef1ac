//! The tables of the README, made from the lists that the command itself uses, and a test that they
//! are up to date.

use std::fs;

use uzswap::control::Counter;

use crate::options::OPTIONS;
use crate::report::{DOCUMENTED, fold_word};

fn options() -> String {
    let mut table = String::from("| option | variable | default | |\n|---|---|---|---|\n");
    for option in OPTIONS.iter().filter(|o| !o.hidden) {
        let usage = match option.value {
            Some(value) => format!("--{} {}", option.flag, value.replace('|', "\\|")),
            None => format!("--{}", option.flag),
        };
        let bounds = if option.bounds.is_empty() { String::new() } else { format!(" ({})", option.bounds) };
        let (variable, default, what) = (option.variable, option.default, option.what);
        table += &format!("| `{usage}` | `{variable}` | {default} | {what}{bounds} |\n");
    }
    table
}

fn statistics() -> String {
    let mut text = String::from("| key | |\n|---|---|\n");
    for (key, meaning) in DOCUMENTED {
        text += &format!("| `{key}` | {meaning} |\n");
    }
    text += "\n| counter | over processes | |\n|---|---|---|\n";
    for counter in Counter::ALL {
        text += &format!("| `{}` | {} | {} |\n", counter.name(), fold_word(counter.fold()), counter.doc());
    }
    text
}

/// Replaces what stands between `<!-- name -->` and `<!-- end -->`.
fn with_table(readme: &str, name: &str, table: &str) -> String {
    let begin = format!("<!-- {name}: made by the tests of crates/cli -->\n");
    let (before, rest) =
        readme.split_once(&begin).unwrap_or_else(|| panic!("the README has no place for {name}"));
    let (_, after) = rest.split_once("<!-- end -->").expect("the place ends");
    format!("{before}{begin}{table}<!-- end -->{after}")
}

/// To bring the tables up to date: `UPDATE_README=1 cargo test -p uzswap-cli readme`.
#[test]
fn the_tables_are_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
    let readme = fs::read_to_string(path).unwrap();
    let current = with_table(&with_table(&readme, "options", &options()), "statistics", &statistics());
    if std::env::var_os("UPDATE_README").is_some() {
        fs::write(path, &current).unwrap();
    } else {
        assert!(readme == current, "the tables are old: UPDATE_README=1 cargo test -p uzswap-cli readme");
    }
}
