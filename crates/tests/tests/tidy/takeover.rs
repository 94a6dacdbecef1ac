//! The takeover's files import one another in one direction.

use std::collections::BTreeMap;

use super::{code_of, layers, rust_files};

const FOLDER: &str = "preload/src/takeover/";

/// Imports of a file that stands above, and why each cannot be taken away.
const UPWARD: [(&str, &str, &str); 1] = [(
    "evictor",
    "evictor_work",
    "a thread begins with its work, and that work may switch paging on, which starts the thread",
)];

/// The files with their code, a file and the folder of its name as one.
fn takeover() -> BTreeMap<String, String> {
    let mut all: BTreeMap<String, String> = BTreeMap::new();
    for (name, text) in rust_files() {
        let Some(file) = name.strip_prefix(FOLDER) else { continue };
        let (unit, inner) = file.trim_end_matches(".rs").split_once('/').unwrap_or((file, ""));
        let unit = unit.trim_end_matches(".rs").to_string();
        let code = code_of(&text);
        let is_hidden = inner.is_empty() && code.contains("super::*");
        assert!(!is_hidden, "{name} imports all of mod.rs: this test could not see which files");
        *all.entry(unit).or_default() += code.as_str();
    }
    all
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The word with which a text begins.
fn word(text: &str) -> &str {
    &text[..text.find(|c| !is_of_word(c)).unwrap_or(text.len())]
}

/// The first words of a list's elements, up to its closing brace.
fn firsts(list: &str) -> Vec<&str> {
    let (mut depth, mut begins, mut all) = (0, true, Vec::new());
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => begins = true,
            _ if begins && is_of_word(c) => {
                all.push(word(&list[at..]));
                begins = false;
            }
            _ => {}
        }
    }
    all
}

/// The names that follow `super::` or `crate::takeover::`, also in braces: of files, and of items.
fn imported(code: &str) -> Vec<&str> {
    let mut names = Vec::new();
    for path in ["super::", "crate::takeover::"] {
        for (at, _) in code.match_indices(path) {
            let rest = &code[at + path.len()..];
            match rest.strip_prefix('{') {
                None => names.push(word(rest)),
                Some(list) => names.extend(firsts(list)),
            }
        }
    }
    names
}

/// Whether a line has a path that begins with `name`.
fn begins_path(line: &str, name: &str) -> bool {
    line.match_indices(&format!("{name}::")).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        before.is_none_or(|c| !is_of_word(c) && c != ':')
    })
}

#[test]
fn files_import_those_below_them() {
    let (mut files, order) = (takeover(), layers("preload/src/takeover/mod.rs"));
    let place = |file: &str| order.iter().position(|known| known == file);
    let unknown: Vec<_> = files.keys().filter(|file| place(file).is_none()).collect();
    assert!(unknown.is_empty(), "not in the table of {FOLDER}mod.rs: {unknown:?}");
    let gone: Vec<_> = order.iter().filter(|file| !files.contains_key(*file)).collect();
    assert!(gone.is_empty() || files.is_empty(), "in the table, and no files: {gone:?}");
    let (mut wrong, mut imports) = (Vec::new(), 0);
    let mut unused: Vec<_> = UPWARD.iter().map(|(file, other, _)| (*file, *other)).collect();
    // All files may import mod.rs, which shows some of their items to other folders, no more.
    let head = files.remove("mod").unwrap_or_default();
    for line in head.lines().filter(|line| !line.starts_with("pub")) {
        let named = order.iter().filter(|name| begins_path(line, name));
        wrong.extend(named.map(|name| format!("mod names {name}: {line}")));
    }
    for (file, code) in &files {
        for other in imported(code) {
            if other == file || !files.contains_key(other) {
                continue;
            }
            imports += 1;
            let is_upward = place(other) > place(file);
            unused.retain(|known| !is_upward || *known != (file.as_str(), other));
            if is_upward && !UPWARD.iter().any(|(of, up, _)| (*of, *up) == (file.as_str(), other)) {
                wrong.push(format!("{file} imports {other}, which stands above it"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(unused.is_empty() || files.is_empty(), "not there any more, and excepted: {unused:?}");
    assert!(
        imports > 80 || files.is_empty(),
        "only {imports} imports: have they another form now?"
    );
}

#[test]
fn imports_of_files_are_found_in_all_their_forms() {
    let code = "use super::one::{self, no};\nuse super::{\n    two, three::no,\n    \
                four::{no, no::{no}}, five,\n};\nuse super::super::six;\n\
                pub(super) fn x() { crate::takeover::seven::no() }\n";
    let mut found: Vec<_> = imported(code).into_iter().filter(|name| *name != "super").collect();
    found.sort_unstable();
    assert_eq!(found, ["five", "four", "one", "seven", "six", "three", "two"]);
    assert!(begins_path("use thread::X;", "thread") && begins_path("    run::f()", "run"));
    assert!(!begins_path("use uzswap::run::X;", "run") && !begins_path("rerun::f()", "run"));
}
