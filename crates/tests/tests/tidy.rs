//! The style that a machine can see: which folder may import which, how files begin, how long
//! functions are, what may lie in the tree. Quick, without root, and without running anything.
//!
//! Widths are `.ci/width`'s; where `unsafe` may stand, the compiler's (`unsafe_code = "deny"`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "tidy/pager.rs"]
mod pager;
#[path = "tidy/takeover.rs"]
mod takeover;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// A folder of a crate's `src`, and the folders beside it that it may import. An arrow and the one
/// back are not both in here, nor longer circles: `no_circle_is_allowed` sees to that.
const IMPORTS: [(&str, &str, &[&str]); 25] = [
    // The engine: from the fault down to the bytes outside of memory.
    ("core", "sys", &[]),
    ("core", "codec", &["sys"]),
    ("core", "pool", &["sys"]),
    ("core", "store", &["sys"]),
    ("core", "region", &["sys"]),
    ("core", "cache", &["codec", "pool", "store", "sys"]),
    ("core", "library", &["cache", "codec", "store", "sys"]),
    ("core", "policy", &["region", "sys"]),
    ("core", "control", &["codec", "pool", "store", "sys"]),
    ("core", "pager", &["cache", "codec", "control", "policy", "region", "store", "sys"]),
    // The library: `takeover` drives the two others.
    ("preload", "calls", &[]),
    ("preload", "patch", &[]),
    ("preload", "takeover", &["calls", "patch"]),
    ("preload", "boot", &["takeover", "patch"]),
    // The command.
    ("cli", "os", &[]),
    ("cli", "trace", &[]),
    ("cli", "control", &["os"]),
    ("cli", "observe", &["os"]),
    ("cli", "governor", &["control"]),
    ("cli", "remote", &["control", "os"]),
    ("cli", "supervise", &["os"]),
    ("cli", "report", &["observe", "os", "remote"]),
    ("cli", "simulate", &["trace"]),
    ("cli", "estimate", &["observe", "os", "supervise", "trace"]),
    ("cli", "disk", &["control", "observe", "os"]),
];

/// The most lines of a function: it is read in one sitting.
const LINES_MOST: usize = 70;

/// Longer functions, and why they are not cut: tables and formats. Tests and models are stories
/// told in order, and are not asked.
const LONG: [(&str, &str, &str); 5] = [
    ("core/src/codec/lzo.rs", "decompress", "a format's one state machine"),
    ("core/src/sys/words/avx512.rs", "compress", "one loop, whose state stays in registers"),
    ("preload/src/calls/ioctl.rs", "argument", "a table, as a match"),
    ("preload/src/patch/analyze/sweep.rs", "is_compiled", "a table of instructions, as a match"),
    ("preload/src/takeover/signals.rs", "uzswap_enter_handler", "assembly"),
];

/// The largest file: larger ones are data, and belong outside of the tree; of results only lines
/// are kept.
const BYTES_MOST: u64 = 128 * 1024;
const LARGE: [(&str, u64); 3] = [
    ("docs/results.jsonl", 512 * 1024),
    // Cargo writes these, a line or more for each package of others.
    ("Cargo.lock", 64 * 1024),
    ("fuzz/Cargo.lock", 64 * 1024),
];

/// The whole tree without these: what people have written.
const TREE_BYTES_MOST: u64 = 6 << 20;

/// README fits one page.
const README_LINES_MOST: usize = 150;

// ---------------------------------------------------------------- the tree

/// Files of the checkout, by their paths in it.
fn files() -> Option<Vec<PathBuf>> {
    let listed = Command::new("git").arg("-C").arg(ROOT).args(["ls-files"]).output();
    match listed {
        Ok(output) if output.status.success() => {
            let names = String::from_utf8(output.stdout).expect("names are text");
            let all = names.lines().map(PathBuf::from);
            Some(all.filter(|path| in_tree(path).is_file()).collect())
        }
        _ => {
            println!("SKIPPED: no git checkout, so which files are sources is not known");
            None
        }
    }
}

fn in_tree(path: &Path) -> PathBuf {
    Path::new(ROOT).join(path)
}

fn text_of(path: &Path) -> String {
    fs::read_to_string(in_tree(path)).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
}

fn has_suffix(path: &Path, suffixes: &[&str]) -> bool {
    path.extension().is_some_and(|own| suffixes.iter().any(|suffix| own == *suffix))
}

/// Sources of Rust, by their paths in `crates`.
fn rust_files() -> Vec<(String, String)> {
    let all = files().unwrap_or_default();
    let rust = all.iter().filter(|path| has_suffix(path, &["rs"]));
    rust.filter_map(|path| {
        let name = path.strip_prefix("crates").ok()?.to_str()?.to_string();
        Some((name, text_of(path)))
    })
    .collect()
}

/// Tests, and the naive models beside which they run the engine.
fn is_test(name: &str) -> bool {
    let is_model =
        name.starts_with("core/") && (name.ends_with("/model.rs") || name.contains("/model/"));
    is_model || name.split('/').any(|part| part == "tests" || part == "tests.rs")
}

// ---------------------------------------------------------------- imports

/// The code of a file, without comments and without its tests.
fn code_of(text: &str) -> String {
    let (code, _) = ["", "pub ", "pub(super) "]
        .into_iter()
        .find_map(|seen| text.split_once(&format!("#[cfg(test)]\n{seen}mod tests {{")))
        .unwrap_or((text, ""));
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.fold(String::new(), |all, line| all + line + "\n")
}

/// The names that follow `crate::`, also in braces.
fn imports(code: &str) -> Vec<&str> {
    let word =
        |text: &str| text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let mut names = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            None => names.push(&rest[..word(rest)]),
            Some(list) => {
                let list = &list[..list.find(';').unwrap_or(list.len())];
                names.extend(list.split(',').map(str::trim_start).map(|name| &name[..word(name)]));
            }
        }
    }
    names
}

fn allowed(krate: &str, folder: &str) -> Option<&'static [&'static str]> {
    let row = IMPORTS.iter().find(|(of, name, _)| (*of, *name) == (krate, folder));
    row.map(|(_, _, others)| *others)
}

#[test]
fn folders_import_in_one_direction() {
    let mut wrong = Vec::new();
    let mut arrows = 0;
    for (name, text) in rust_files() {
        let Some((krate, rest)) = name.split_once("/src/") else { continue };
        let folder = rest.split('/').next().unwrap_or_default().trim_end_matches(".rs");
        let Some(may) = allowed(krate, folder) else { continue };
        if is_test(&name) {
            continue;
        }
        for other in imports(&code_of(&text)) {
            let is_folder = allowed(krate, other).is_some() && other != folder;
            arrows += usize::from(is_folder);
            if is_folder && !may.contains(&other) {
                wrong.push(format!("{name} imports {other}, and {folder} may import {may:?} only"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(
        arrows > 100 || files().is_none(),
        "only {arrows} imports: have they another form now?"
    );
}

#[test]
fn no_circle_is_allowed() {
    // A folder must not be among those that it reaches by the table.
    for (krate, folder, others) in IMPORTS {
        let mut reached: Vec<&str> = others.to_vec();
        let mut next = 0;
        while next < reached.len() {
            for further in allowed(krate, reached[next]).expect("a folder of the table") {
                if !reached.contains(further) {
                    reached.push(further);
                }
            }
            next += 1;
        }
        assert!(!reached.contains(&folder), "{krate}/{folder} reaches itself");
    }
}

#[test]
fn imports_are_found_in_all_their_forms() {
    let text = "// use crate::no;\nuse crate::sys::{a, b};\nuse crate::{pool::x, store};\n\
                let y = crate::codec::f();\n#[cfg(test)]\nmod tests {\nuse crate::fault;\n}";
    assert_eq!(imports(&code_of(text)), ["sys", "pool", "store", "codec"]);
}

/// Files in the order of the table at the head of `head`, from the bottom to the top. A row has the
/// name of a layer, three spaces or more, and files.
fn layers(head: &str) -> Vec<String> {
    let Some((_, text)) = rust_files().into_iter().find(|(name, _)| name == head) else {
        return Vec::new();
    };
    let (_, table) = text.split_once("reads this table):").expect("the table's announcement");
    let rows = table.split("```").nth(1).expect("the table").lines();
    let rows = rows.filter_map(|row| row.trim_start_matches("//!").trim().split_once("   "));
    let layers = rows.map(|(_, files)| files.split_whitespace().map(str::to_string));
    let mut all: Vec<Vec<String>> = layers.map(Iterator::collect).collect();
    all.reverse();
    [vec!["mod".to_string()], all.concat()].concat()
}

// ---------------------------------------------------------------- statistics

/// A statistic that nobody counts is always 0, and read as if that were so.
#[test]
fn each_counter_is_counted_somewhere() {
    const COUNTERS: &str = "core/src/control/counters.rs";
    let sources = rust_files();
    let Some((_, counters)) = sources.iter().find(|(name, _)| name.ends_with(COUNTERS)) else {
        assert!(sources.is_empty(), "no {COUNTERS}");
        return;
    };
    // A row begins with the variant and the name in quotes.
    let is_row = |line: &&str| line.trim().split(' ').nth(1).is_some_and(|w| w.starts_with('"'));
    let rows = code_of(counters);
    let rows = rows.lines().filter(is_row);
    let variants: Vec<&str> = rows.map(|line| line.trim().split(' ').next().unwrap()).collect();
    assert!(variants.len() > 50, "{variants:?}");
    let is_word = |c: char| !c.is_ascii_alphanumeric() && c != '_';
    let is_used = |variant: &str| {
        sources
            .iter()
            .filter(|(name, _)| !name.ends_with(COUNTERS))
            .any(|(_, text)| text.split(is_word).any(|word| word == variant))
    };
    let unused: Vec<_> = variants.into_iter().filter(|variant| !is_used(variant)).collect();
    assert!(unused.is_empty(), "nobody counts {unused:?}");
}

// ---------------------------------------------------------------- heads

#[test]
fn each_source_begins_with_what_it_is() {
    let mut wrong = Vec::new();
    for path in files().unwrap_or_default() {
        let is_source = has_suffix(&path, &["rs", "c", "h", "cpp", "py", "sh", "java", "js", "pl"]);
        if !is_source && !path.starts_with(".ci") {
            continue;
        }
        let text = text_of(&path);
        let mut lines = text.lines().filter(|line| !line.trim().is_empty());
        let first = lines.next().unwrap_or_default();
        let is_script = first.starts_with("#!") && !first.starts_with("#![");
        let head = if is_script { lines.next().unwrap_or_default() } else { first };
        if !["//", "/*", "# ", "\"\"\""].iter().any(|mark| head.starts_with(mark)) {
            wrong.push(format!("{} begins with: {head}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

// ---------------------------------------------------------------- lengths

/// The name of a function that begins in this line.
fn function(line: &str) -> Option<&str> {
    const BEFORE: [&str; 6] = ["pub", "const", "async", "unsafe", "extern", "\"C\""];
    let (before, after) = line.trim_start().split_once("fn ")?;
    let is_head =
        before.split_whitespace().all(|word| BEFORE.contains(&word) || word.starts_with("pub("));
    let end = after.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    (is_head && end > 0).then(|| &after[..end])
}

/// Functions with their lines, from `fn` to the brace under it.
fn lengths(text: &str) -> Vec<(&str, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut all = Vec::new();
    for (i, line) in lines.iter().enumerate() {
        let Some(name) = function(line) else { continue };
        let end = format!("{}}}", &line[..line.len() - line.trim_start().len()]);
        if line.ends_with(['}', ';']) {
            continue;
        }
        let length = lines[i..].iter().position(|line| *line == end).map_or(0, |to| to + 1);
        all.push((name, length));
    }
    all
}

#[test]
fn no_function_is_longer_than_a_sitting() {
    let mut wrong = Vec::new();
    let mut unused: Vec<(&str, &str)> = LONG.iter().map(|(file, name, _)| (*file, *name)).collect();
    for (file, text) in rust_files() {
        if is_test(&file) {
            continue;
        }
        for (name, length) in lengths(&text) {
            if length <= LINES_MOST {
                continue;
            }
            unused.retain(|known| *known != (file.as_str(), name));
            if !LONG.iter().any(|(of, known, _)| (*of, *known) == (file.as_str(), name)) {
                wrong.push(format!("{file}: {name} has {length} lines, {LINES_MOST} are the most"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(unused.is_empty() || files().is_none(), "short by now, and still excepted: {unused:?}");
}

#[test]
fn a_function_is_counted_from_its_head_to_its_brace() {
    let text = "impl A {\n    pub(crate) const fn one(\n        a: u8,\n    ) -> u8 {\n        \
                a\n    }\n}\n\
                fn two() {}\n// fn no() {\nlet x = \"fn no\";\nunsafe extern \"C\" fn three() {\n\
                }\n";
    assert_eq!(lengths(text), [("one", 5), ("three", 2)]);
}

// ---------------------------------------------------------------- words

/// A sentence says first which page, process or lock it is about.
const BEGINNINGS: [&str; 6] = ["The same", "Who", "Whoever", "Whose", "What", "Whatever"];

/// The comments of a file: a paragraph or an item of a list each, with the number of its line.
fn paragraphs(text: &str) -> Vec<(usize, String)> {
    let mut all: Vec<(usize, String)> = Vec::new();
    let mut goes_on = false;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let body = ["//!", "///", "//"].iter().find_map(|mark| line.strip_prefix(mark));
        let body = body.unwrap_or_default().trim();
        let item = ["- ", "* "].iter().find_map(|bullet| body.strip_prefix(bullet));
        match all.last_mut() {
            _ if body.is_empty() => {}
            Some((_, paragraph)) if goes_on && item.is_none() => *paragraph += &format!(" {body}"),
            _ => all.push((number + 1, item.unwrap_or(body).to_string())),
        }
        goes_on = !body.is_empty();
    }
    all
}

/// The sentences of a paragraph that begin with a word that says nothing yet. Questions may.
fn vague(paragraph: &str) -> Vec<&str> {
    let ends = paragraph.match_indices(". ").map(|(at, _)| at + 2);
    let begins: Vec<usize> = [0].into_iter().chain(ends).collect();
    let sentences = begins.iter().enumerate().map(|(i, from)| {
        let to = begins.get(i + 1).copied().unwrap_or(paragraph.len());
        paragraph[*from..to].trim()
    });
    let is_vague = |sentence: &&str| {
        let begins_with = |word: &&str| {
            let rest = sentence.strip_prefix(*word);
            rest.is_some_and(|rest| rest.starts_with([' ', ',', ':']))
        };
        !sentence.contains('?') && BEGINNINGS.iter().any(begins_with)
    };
    sentences.filter(is_vague).collect()
}

#[test]
fn sentences_begin_with_what_they_are_about() {
    let mut wrong = Vec::new();
    for (file, text) in rust_files() {
        for (line, paragraph) in paragraphs(&text) {
            wrong.extend(vague(&paragraph).iter().map(|said| format!("{file}:{line}: {said}")));
        }
    }
    assert!(wrong.is_empty(), "{} sentences:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn a_sentence_is_vague_by_its_beginning() {
    let text =
        "/// Pages. What is\n/// out comes in.\n/// - The same, later.\n\n// Whole. Who? What\n";
    let found = paragraphs(text);
    assert_eq!(found.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [1, 3, 5]);
    let all: Vec<_> = found.iter().flat_map(|(_, paragraph)| vague(paragraph)).collect();
    assert_eq!(all, ["What is out comes in.", "The same, later."]);
}

// ---------------------------------------------------------------- invariants

/// Whether `name` is a file or a folder of `crates`, or `file::function` in one.
fn is_there(name: &str) -> bool {
    let (file, function) = name.split_once("::").unwrap_or((name, ""));
    let path = Path::new("crates").join(file);
    match function {
        "" => in_tree(&path).exists(),
        _ => in_tree(&path).is_file() && text_of(&path).contains(&format!("fn {function}(")),
    }
}

#[test]
fn each_invariant_says_what_keeps_it() {
    if files().is_none() {
        return;
    }
    let text = text_of(Path::new("ARCHITECTURE.md"));
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for invariant in text.split("\n\n").filter(|p| p.starts_with("Architecture invariant:")) {
        seen += 1;
        let invariant = invariant.replace('\n', " ");
        let Some((_, keeps)) = invariant.split_once("Kept by ") else {
            wrong.push(format!("nothing keeps it: {invariant}"));
            continue;
        };
        let names = keeps.split('`').skip(1).step_by(2).filter(|name| name.contains('/'));
        wrong.extend(names.filter(|name| !is_there(name)).map(|name| format!("no {name}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 20, "only {seen} invariants: have they another form now?");
}

// ---------------------------------------------------------------- sizes and links

#[test]
fn no_raw_data_is_in_the_tree() {
    let mut all = 0;
    for path in files().unwrap_or_default() {
        // A link has no contents of its own.
        let bytes = fs::symlink_metadata(in_tree(&path)).unwrap().len();
        let known = LARGE.iter().find(|(name, _)| path == Path::new(name));
        all += if known.is_some() { 0 } else { bytes };
        let most = known.map_or(BYTES_MOST, |(_, most)| *most);
        assert!(bytes <= most, "{} has {bytes} bytes, {most} are the most", path.display());
    }
    assert!(all <= TREE_BYTES_MOST, "the tree has {all} bytes, {TREE_BYTES_MOST} are the most");
}

#[test]
fn readme_is_one_page_and_links_lead_somewhere() {
    let lines = text_of(Path::new("README.md")).lines().count();
    assert!(
        lines <= README_LINES_MOST,
        "README.md has {lines} lines, {README_LINES_MOST} are the most"
    );
    let mut seen = 0;
    for path in files().unwrap_or_default().iter().filter(|path| has_suffix(path, &["md"])) {
        let text = text_of(path);
        for (at, _) in text.match_indices("](") {
            let link = text[at + 2..].split([')', '#']).next().unwrap_or_default();
            if link.is_empty() || link.contains("://") {
                continue;
            }
            let target = in_tree(path).parent().expect("a file is in a folder").join(link);
            assert!(target.exists(), "{}: {link} is not there", path.display());
            seen += 1;
        }
    }
    assert!(seen > 20 || files().is_none(), "only {seen} links: have they another form now?");
}

#[test]
fn the_table_of_whole_program_tests_has_each_file() {
    let table = text_of(Path::new("crates/tests/README.md"));
    let listed = files().unwrap_or_default();
    let tests = listed.iter().filter_map(|path| path.strip_prefix("crates/tests").ok());
    let mut seen = 0;
    for file in tests.filter(|file| file.starts_with("tests") && has_suffix(file, &["rs"])) {
        assert!(table.contains(&format!("\n| `{}` |", file.display())), "{}", file.display());
        seen += 1;
    }
    assert!(seen > 20 || files().is_none(), "only {seen} tests: are they elsewhere now?");
}
