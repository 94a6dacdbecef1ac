//! The tables of options and statistics in `docs`, made from the lists that the command itself
//! uses, and a test that they are up to date.

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
        let bounds =
            if option.bounds.is_empty() { String::new() } else { format!(" ({})", option.bounds) };
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
        text += &format!(
            "| `{}` | {} | {} |\n",
            counter.name(),
            fold_word(counter.fold()),
            counter.doc()
        );
    }
    text
}

/// Replaces what stands between `<!-- name -->` and `<!-- end -->`.
fn with_table(document: &str, name: &str, table: &str) -> String {
    let begin = format!("<!-- {name}: made by the tests of crates/cli -->\n");
    let (before, rest) = document
        .split_once(&begin)
        .unwrap_or_else(|| panic!("docs/{name}.md has no place for its table"));
    let (_, after) = rest.split_once("<!-- end -->").expect("the place ends");
    format!("{before}{begin}{table}<!-- end -->{after}")
}

/// To bring the tables up to date: `UPDATE_README=1 cargo test -p uzswap-cli tables`.
#[test]
fn the_tables_are_up_to_date() {
    for (name, table) in [("options", options()), ("statistics", statistics())] {
        let path = format!("{}/../../docs/{name}.md", env!("CARGO_MANIFEST_DIR"));
        let document = fs::read_to_string(&path).unwrap();
        let current = with_table(&document, name, &table);
        if std::env::var_os("UPDATE_README").is_some() {
            fs::write(path, &current).unwrap();
        } else {
            assert!(
                document == current,
                "docs/{name}.md is old: UPDATE_README=1 cargo test -p uzswap-cli tables"
            );
        }
    }
}
