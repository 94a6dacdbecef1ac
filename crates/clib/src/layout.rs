//! The header's structures and constants are the library's: a program that is compiled with it says
//! what it has, and this says what Rust has.
//!
//! Both lists are complete: the program's is made of the header's text, and Rust's names every
//! field or does not compile.

use std::collections::BTreeMap;
use std::mem::{offset_of, size_of};
use std::path::Path;
use std::process::Command;

use crate::border::Outcome;
use crate::cache::{ConfigOfC, StatsOfC, UNENCRYPTED};
use crate::managed::StatusOfC;
use crate::run::Figures;

const HEADER: &str = include_str!("../include/uzswap.h");

type Facts = BTreeMap<String, u64>;

/// Every field of a structure, with where it lies.
macro_rules! fields {
    ($facts:ident, $name:literal, $type:ident { $($field:ident),* $(,)? }, from $start:expr) => {
        // Names all fields, or does not compile.
        let _ = |value: $type| { let $type { $($field: _),* } = value; };
        $($facts.insert(
            concat!($name, ".", stringify!($field)).to_string(),
            ($start + offset_of!($type, $field)) as u64,
        );)*
    };
}

fn of_rust() -> Facts {
    let mut facts = Facts::new();
    fields!(facts, "uzswap_config", ConfigOfC {
        size, memory_bytes, compressor, store_directory, flags
    }, from 0);
    fields!(facts, "uzswap_cache_stats", StatsOfC {
        size, memory_bytes, used_bytes, pages, same_filled_pages, memory_pages, store_pages,
        incompressible_pages, compressed_bytes, store_bytes, stores, failed_stores, loads,
        store_loads, missing_loads, read_errors, corrupt_loads, drops, written_back_pages,
        written_bytes, read_bytes, store_error
    }, from 0);
    facts.insert("uzswap_self_status.size".to_string(), offset_of!(StatusOfC, size) as u64);
    fields!(facts, "uzswap_self_status", Figures {
        run, milliseconds, processes, limit_bytes, used_bytes, own_used_bytes, own_needed_bytes,
        resident_bytes, pool_bytes, written_bytes, faults, activity
    }, from offset_of!(StatusOfC, figures));
    for (name, bytes) in [
        ("uzswap_config", size_of::<ConfigOfC>()),
        ("uzswap_cache_stats", size_of::<StatsOfC>()),
        ("uzswap_self_status", size_of::<StatusOfC>()),
    ] {
        facts.insert(name.to_string(), bytes as u64);
    }
    let constants = [
        ("UZSWAP_PAGE_BYTES", uzswap::PAGE_BYTES as u64),
        ("UZSWAP_AREAS", uzswap::AREAS.into()),
        ("UZSWAP_PAGES", uzswap::PAGES),
        ("UZSWAP_UNENCRYPTED", UNENCRYPTED),
        ("UZSWAP_OK", Outcome::Ok as u64),
        ("UZSWAP_INVALID", Outcome::Invalid as u64),
        ("UZSWAP_NOT_FOUND", Outcome::NotFound as u64),
        ("UZSWAP_FULL", Outcome::Full as u64),
        ("UZSWAP_OUT_OF_RANGE", Outcome::OutOfRange as u64),
        ("UZSWAP_CORRUPT", Outcome::Corrupt as u64),
        ("UZSWAP_FORKED", Outcome::Forked as u64),
        ("UZSWAP_STORE", Outcome::Store as u64),
        ("UZSWAP_SYSTEM", Outcome::System as u64),
        ("UZSWAP_COMPRESSOR", Outcome::Compressor as u64),
        ("UZSWAP_NOT_MANAGED", Outcome::NotManaged as u64),
        ("UZSWAP_NO_ANSWER", Outcome::NoAnswer as u64),
        ("UZSWAP_REFUSED", Outcome::Refused as u64),
        // Indices of the tables that they are looked up in.
        ("UZSWAP_DORMANT", 0),
        ("UZSWAP_ACTIVE", 1),
        ("UZSWAP_WAITS", 2),
        ("UZSWAP_COLD", 0),
        ("UZSWAP_OUT", 1),
        ("UZSWAP_NEED", 2),
    ];
    facts.extend(constants.map(|(name, value)| (name.to_string(), value)));
    facts
}

/// The header without its comments.
fn code() -> String {
    let parts = HEADER.split("/*").map(|part| part.split_once("*/").map_or(part, |(_, rest)| rest));
    parts.collect()
}

/// Structures of the header that have fields, with their names.
fn structures(code: &str) -> Vec<(&str, Vec<&str>)> {
    let bodies = code.split("struct ").skip(1).filter_map(|rest| {
        let (name, rest) = rest.split_once(" {")?;
        let (body, _) = rest.split_once('}')?;
        let is_name = name.chars().all(|c| c.is_alphanumeric() || c == '_');
        is_name.then_some((name, body))
    });
    bodies
        .map(|(name, body)| {
            let lines = body.split(';').map(str::trim).filter(|line| !line.is_empty());
            (name, lines.map(|line| line.rsplit([' ', '*']).next().expect("a name")).collect())
        })
        .collect()
}

/// Names of the header's constants.
fn constants(code: &str) -> Vec<&str> {
    let macros = code.lines().filter_map(|line| line.strip_prefix("#define "));
    let macros = macros.filter_map(|line| line.split_once(' '));
    // The version is a text.
    let macros = macros.filter(|(_, value)| !value.starts_with('"')).map(|(name, _)| name);
    let of_enums = code.split("enum ").skip(1).filter_map(|rest| rest.split_once('{'));
    let of_enums = of_enums.filter_map(|(_, body)| body.split_once('}').map(|(body, _)| body));
    let of_enums = of_enums.flat_map(|body| body.split(',')).filter_map(|v| v.split_once(" = "));
    macros.chain(of_enums.map(|(name, _)| name.trim())).collect()
}

/// A program that says what the header has.
fn program(code: &str) -> String {
    let mut text = String::from(
        "#include <stdio.h>\n#include \"uzswap.h\"\n#define SAY(name, value) \
         printf(\"%s %llu\\n\", name, (unsigned long long)(value))\nint main(void) {\n",
    );
    for (name, fields) in structures(code) {
        text += &format!("SAY(\"{name}\", sizeof(struct {name}));\n");
        for field in fields {
            text += &format!("SAY(\"{name}.{field}\", offsetof(struct {name}, {field}));\n");
        }
    }
    constants(code).iter().for_each(|name| text += &format!("SAY(\"{name}\", {name});\n"));
    text + "return 0; }\n"
}

/// The output of the program that `compiler` makes of `text`.
fn said(compiler: &str, file: &Path, text: &str) -> String {
    std::fs::write(file, text).unwrap();
    let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include");
    let made = file.with_extension("made");
    let all = ["-Wall", "-Wextra", "-Werror", "-pedantic", include, "-o"];
    let status = Command::new(compiler).args(all).args([&made, file]).status();
    assert!(status.expect("a compiler is needed").success(), "{compiler}: {text}");
    String::from_utf8(Command::new(&made).output().unwrap().stdout).unwrap()
}

#[test]
fn the_headers_structures_and_constants_are_the_librarys() {
    let directory = std::env::temp_dir().join(format!("uzswap-clib-layout-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let text = program(&code());
    let said = said("gcc", &directory.join("layout.c"), &text);
    std::fs::remove_dir_all(&directory).unwrap();
    let fact = |line: &str| {
        let (name, value) = line.split_once(' ').expect("a name and a number");
        (name.to_string(), value.parse().unwrap())
    };
    let of_header: Facts = said.lines().map(fact).collect();
    assert_eq!(of_header, of_rust());
}

#[test]
fn a_structure_that_is_read_has_no_padding_and_its_first_version_is_known() {
    use crate::border::Versioned;
    // All fields have eight bytes.
    assert_eq!(size_of::<ConfigOfC>(), 5 * 8);
    assert_eq!(size_of::<StatsOfC>(), 22 * 8);
    assert_eq!(size_of::<StatusOfC>(), 13 * 8);
    assert_eq!(ConfigOfC::LEAST_BYTES, 5 * 8);
    assert_eq!(StatsOfC::LEAST_BYTES, 22 * 8);
    assert_eq!(StatusOfC::LEAST_BYTES, 13 * 8);
}

#[test]
fn the_headers_version_is_the_librarys() {
    let of_header = format!("#define UZSWAP_VERSION \"{}\"\n", env!("CARGO_PKG_VERSION"));
    assert!(HEADER.contains(&of_header), "the header has not: {of_header}");
}
