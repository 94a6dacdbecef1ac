//! The header's prototypes are what the library exports, with the types that Rust has; and what
//! `uzswap_self.h` declares is what it says, too.
//!
//! Structures and constants are compared by `src/layout.rs`.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use support::{CRATE, Place, STRICT, built, said};

type Signatures = BTreeMap<String, String>;

fn text(file: &str) -> String {
    fs::read_to_string(format!("{CRATE}/{file}")).unwrap()
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A header without comments and without its macros.
fn header(name: &str) -> String {
    let text = text(&format!("include/{name}"));
    let code = text.split("/*").map(|part| part.split_once("*/").map_or(part, |(_, rest)| rest));
    let code: String = code.collect();
    code.lines().filter(|line| !line.starts_with('#')).fold(String::new(), |all, l| all + l + "\n")
}

/// `name -> result(types of arguments)` of a prototype.
fn signature(statement: &str) -> (String, String) {
    let (head, arguments) = statement.split_once('(').unwrap();
    let at = head.rfind("uzswap_").unwrap();
    let result = head[..at].rsplit(['}', '{']).next().unwrap();
    let without_name = |argument: &str| match argument.trim() {
        "void" => String::new(),
        argument => words(
            argument
                .rsplit_once(|c: char| " *".contains(c))
                .map_or(argument, |(_, name)| argument.strip_suffix(name).unwrap()),
        ),
    };
    let types: Vec<_> =
        arguments.trim_end().trim_end_matches(')').split(',').map(without_name).collect();
    (head[at..].to_string(), format!("{}({})", words(result), types.join(", ")))
}

/// All of the header.
fn of_header() -> Signatures {
    let code = header("uzswap.h");
    code.split(';').filter(|statement| statement.contains('(')).map(signature).collect()
}

/// A type of Rust, as C writes it.
fn in_c(rust: &str) -> String {
    let known = [
        ("c_int", "int"),
        ("u32", "uint32_t"),
        ("u64", "uint64_t"),
        ("i64", "int64_t"),
        ("usize", "size_t"),
        ("*const c_char", "const char *"),
        ("*const c_void", "const void *"),
        ("*const Page", "const void *"),
        ("*mut Page", "void *"),
        ("*const Handle", "uzswap_cache *"),
        ("*mut Handle", "uzswap_cache *"),
        ("*mut *mut Handle", "uzswap_cache **"),
        ("*const ConfigOfC", "const struct uzswap_config *"),
        ("*mut StatsOfC", "struct uzswap_cache_stats *"),
        ("*mut StatusOfC", "struct uzswap_self_status *"),
        ("*mut u64", "uint64_t *"),
    ];
    let found = known.iter().find(|(of_rust, _)| *of_rust == rust);
    found.unwrap_or_else(|| panic!("{rust} has no name in C here")).1.to_string()
}

/// The signatures that the sources export, with types as C has them.
fn of_rust() -> Signatures {
    let mut all = Signatures::new();
    for file in ["src/border.rs", "src/cache.rs", "src/managed.rs"] {
        for part in text(file).split("extern \"C\" fn ").skip(1) {
            let (head, _) = part.split_once('{').unwrap();
            let (name, rest) = head.split_once('(').unwrap();
            let (arguments, result) = rest.split_once(')').unwrap();
            let types = arguments.split(',').filter_map(|argument| argument.split_once(": "));
            let types: Vec<_> = types.map(|(_, of_rust)| in_c(of_rust.trim())).collect();
            let result = result.split_once("-> ").map_or("void".into(), |(_, of)| in_c(of.trim()));
            all.insert(name.to_string(), format!("{result}({})", types.join(", ")));
        }
    }
    all
}

#[test]
fn prototypes_are_those_of_the_sources() {
    let (header, rust) = (of_header(), of_rust());
    assert!(header.len() >= 18, "{header:?}");
    assert_eq!(header, rust);
}

/// Declarations of enumerations and structures, with their comments.
fn declarations(text: &str) -> Vec<&str> {
    let starts = ["\nenum uzswap_", "\nstruct uzswap_"].map(|start| text.match_indices(start));
    let all = starts.into_iter().flatten().map(|(at, _)| text[at..].split_once("\n};"));
    all.map(|declaration| declaration.expect("it ends").0).collect()
}

/// A program goes from one header to the other by its name alone.
#[test]
fn the_header_for_programs_that_are_not_linked_is_a_part_of_the_other() {
    const NAME: &str = "uzswap_self.h";
    let (whole, part) = (text("include/uzswap.h"), text(&format!("include/{NAME}")));
    let own = declarations(&part);
    assert_eq!(own.len(), 4, "{own:?}");
    for declaration in own {
        assert!(declarations(&whole).contains(&declaration), "another:{declaration}");
    }
    let code = header(NAME);
    let heads = code.split("static inline ").skip(1).map(|from| from.split_once(" {").unwrap());
    let mut functions: Signatures = heads.clone().map(|(head, _)| signature(head)).collect();
    functions.remove("uzswap_self_find_").expect("it looks for the others");
    let expected = of_header().into_iter().filter(|(name, _)| name.starts_with("uzswap_self_"));
    assert_eq!(functions, expected.collect());
    // Each asks for its own name, with the types that it has.
    for (head, body) in heads {
        let (name, types) = signature(head);
        let call = types.replacen('(', " (*call)(", 1).replace("()", "(void)");
        let found = format!("uzswap_self_find_(\"{name}\", &call)");
        let is_own = body.contains(&format!("{call};")) && body.contains(&found);
        assert!(name == "uzswap_self_find_" || is_own, "{head}: {body}");
    }
}

#[test]
fn the_library_exports_what_the_header_declares_and_nothing_else() {
    let library = built().join("libuzswap.so");
    let symbols = said(Command::new("nm").args(["-D", "--defined-only"]).arg(library));
    let mut exported: Vec<_> =
        symbols.lines().map(|line| line.rsplit(' ').next().unwrap().to_string()).collect();
    exported.sort();
    assert_eq!(exported, of_header().into_keys().collect::<Vec<_>>());
}

#[test]
fn the_loader_is_asked_for_the_library_by_its_number() {
    let dynamic = said(Command::new("readelf").arg("-d").arg(built().join("libuzswap.so")));
    assert!(dynamic.contains("Library soname: [libuzswap.so.1]"), "{dynamic}");
    for line in dynamic.lines().filter(|line| line.contains("(NEEDED)")) {
        let own = ["libc.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2", "libm.so.6"];
        assert!(own.iter().any(|name| line.contains(name)), "{line}");
    }
}

#[test]
fn the_headers_are_for_c_of_any_year_and_for_cpp() {
    let place = Place::new("header");
    let file = place.path().join("only.c");
    let both = "#include <uzswap.h>\n#include <uzswap_self.h>\n";
    for includes in ["#include <uzswap.h>\n", "#include <uzswap_self.h>\n", both] {
        fs::write(&file, format!("{includes}int main(void) {{ return 0; }}\n")).unwrap();
        for (compiler, language) in
            [("gcc", "c99"), ("gcc", "c17"), ("g++", "c++11"), ("g++", "c++20")]
        {
            if !support::has(compiler) {
                let test = "the_headers_are_for_c_of_any_year_and_for_cpp";
                support::skipped(test, "g++ is not installed");
                continue;
            }
            let mut command = Command::new(compiler);
            command.arg(format!("-std={language}")).args(STRICT);
            command.args(["-x", if compiler == "g++" { "c++" } else { "c" }, "-fsyntax-only"]);
            said(command.arg(format!("-I{CRATE}/include")).arg(&file));
        }
    }
}

/// Names of a structure's fields, in order: of the header, or of a class of ctypes.
fn fields(text: &str, from: &str, to: &str, name: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let (_, body) = text.split_once(from).unwrap_or_else(|| panic!("no {from}"));
    let (body, _) = body.split_once(to).expect("it ends");
    body.lines().filter_map(name).collect()
}

#[test]
fn python_has_the_headers_structures_and_results() {
    let (header, python) = (header("uzswap.h"), text("../../python/uzswap/_library.py"));
    for (c, class) in [("uzswap_config", "Config"), ("uzswap_cache_stats", "Stats")] {
        let of_c = fields(&header, &format!("struct {c} {{"), "};", |line| {
            let line = line.split_once(';')?.0;
            line.rsplit([' ', '*']).next().map(str::to_string)
        });
        let of_python = fields(&python, &format!("class {class}(ctypes.Structure)"), "]", |line| {
            let (name, _) = line.trim().strip_prefix("(\"")?.split_once('"')?;
            Some(name.to_string())
        });
        assert_eq!(of_c, of_python, "{class}");
    }
    // Results are the numbers from 0 on, and Python has the first of them.
    let (names, rest) = python.split_once(" = range(").unwrap();
    let names = names.rsplit('\n').next().unwrap();
    let count: usize = rest.split_once(')').unwrap().0.parse().unwrap();
    for (number, name) in names.split(", ").enumerate() {
        assert!(header.contains(&format!("UZSWAP_{name} = {number},")), "{name} is {number}");
    }
    assert_eq!(names.split(", ").count(), count);
}
