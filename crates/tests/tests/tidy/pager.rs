//! The pager's files call one another in one direction, and its counts change in one file.

use std::collections::BTreeMap;

use super::{code_of, function, layers, rust_files};

/// The pager's files, with their code.
fn pager() -> BTreeMap<String, String> {
    let all = rust_files().into_iter().filter_map(|(name, text)| {
        let file = name.strip_prefix("core/src/pager/")?.strip_suffix(".rs")?;
        (!file.contains('/')).then(|| (file.to_string(), joined(&code_of(&text))))
    });
    all.collect()
}

/// Code whose chains of calls are in one line each.
fn joined(code: &str) -> String {
    let mut all = String::new();
    for line in code.lines() {
        match line.trim_start().strip_prefix('.') {
            Some(call) => all.extend([".", call]),
            None => all.extend(["\n", line]),
        }
    }
    all + "\n"
}

/// The code of a file in its blocks `impl Pager`.
fn methods_of(code: &str) -> String {
    let mut inside = false;
    let lines = code.lines().filter(|line| {
        inside |= line.starts_with("impl Pager {");
        inside &= !line.starts_with('}');
        inside
    });
    lines.fold(String::new(), |all, line| all + line + "\n")
}

/// Names that are called as methods of the pager itself.
fn called(code: &str) -> impl Iterator<Item = &str> {
    code.match_indices("self.").filter_map(|(at, receiver)| {
        let rest = &code[at + receiver.len()..];
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_')?;
        rest[end..].starts_with('(').then(|| &rest[..end])
    })
}

#[test]
fn files_call_those_below_them() {
    let (files, order) = (pager(), layers("core/src/pager/mod.rs"));
    let place = |file: &str| order.iter().position(|known| known == file);
    let unknown: Vec<_> = files.keys().filter(|file| place(file).is_none()).collect();
    assert!(unknown.is_empty(), "not in the table of core/src/pager/mod.rs: {unknown:?}");
    let gone: Vec<_> = order.iter().filter(|file| !files.contains_key(*file)).collect();
    assert!(gone.is_empty() || files.is_empty(), "in the table, and no files: {gone:?}");
    let bodies: Vec<_> = files.iter().map(|(file, code)| (file, methods_of(code))).collect();
    let is_method = |line: &&str| line.starts_with("    ") && !line.starts_with("     ");
    let defined: BTreeMap<&str, &str> = bodies
        .iter()
        .flat_map(|(file, body)| {
            let heads = body.lines().filter(is_method).filter_map(function);
            heads.map(move |name| (name, file.as_str()))
        })
        .collect();
    let (mut wrong, mut calls) = (Vec::new(), 0);
    for (file, body) in &bodies {
        for name in called(body) {
            let Some(other) = defined.get(name) else { continue };
            calls += 1;
            if place(other) > place(file) {
                wrong.push(format!("{file} calls {name} of {other}, which stands above it"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(
        calls > 400 || files.is_empty(),
        "only {calls} calls among {} methods: have they another form now?",
        defined.len()
    );
}

#[test]
fn counts_change_in_the_book() {
    const COUNTS: [&str; 5] =
        ["m.count(", ".resident.", "self.limbo_pages.", "self.stored.", "self.left_directly."];
    let mut wrong = Vec::new();
    for (file, code) in pager() {
        for line in code.lines().filter(|_| file != "book") {
            let looks = |line: String, count: &&str| line.replace(&format!("{count}load("), "");
            let line = COUNTS.iter().fold(line.to_string(), looks);
            let is_change = COUNTS.iter().any(|count| line.contains(count));
            if is_change {
                wrong.push(format!("{file}: {}", line.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "counts change outside of the book:\n{}", wrong.join("\n"));
}

#[test]
fn calls_are_found_in_all_their_forms() {
    let code = "impl Other {\n    fn x() { self.no() }\n}\n\
                impl Pager {\n    fn y(&self) {\n        \
                self.one(self.two(), self.field);\n        t.self_();\n        \
                self\n            .three()\n    }\n}\nfn z() {}\n";
    let body = methods_of(&joined(code));
    assert_eq!(called(&body).collect::<Vec<_>>(), ["one", "two", "three"]);
}
