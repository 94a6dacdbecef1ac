//! The programs: shell scripts by kind, in `lists`.
//!
//! ```text
//!  #: NAME PACKAGE             lists/KIND.sh: of each program its name, the package that brings it,
//!  #: needs COMMAND...         and the commands without which it is left out;
//!  ...                         what is done once, before all runs, in its own directory;
//!  #: run
//!  ...                         and what is run: whatever it prints is compared
//! ```
//!
//! A script is run by `sh -e`, behind `lists/prelude.sh`. It prints nothing that another run would
//! not print: no times, no addresses, no order that depends on a hash of those.

use std::fs;
use std::path::Path;

use uzswap_cli::Failure;
use uzswap_cli::program::reason;

/// One program.
#[derive(Debug)]
pub struct Program {
    pub kind: String,
    pub name: String,
    pub package: String,
    pub needs: Vec<String>,
    prepare: String,
    run: String,
}

/// The functions that all scripts can call.
const PRELUDE: &str = include_str!("lists/prelude.sh");

const LISTS: [(&str, &str); 8] = [
    ("language", include_str!("lists/language.sh")),
    ("build", include_str!("lists/build.sh")),
    ("server", include_str!("lists/server.sh")),
    ("media", include_str!("lists/media.sh")),
    ("compressor", include_str!("lists/compressor.sh")),
    ("science", include_str!("lists/science.sh")),
    ("launcher", include_str!("lists/launcher.sh")),
    ("tool", include_str!("lists/tool.sh")),
];

/// The programs of a list with names and kinds.
pub fn chosen<'a>(all: &'a [Program], list: &str) -> Result<Vec<&'a Program>, String> {
    let mut programs: Vec<&Program> = Vec::new();
    for word in list.split(',') {
        let is_meant = |program: &&Program| [&program.name, &program.kind, "all"].contains(&word);
        let before = programs.len();
        programs.extend(all.iter().filter(is_meant));
        if programs.len() == before {
            return Err(format!("'{word}' is no program and no kind (see --list)"));
        }
    }
    Ok(programs)
}

/// All programs of this command, by kind.
pub fn all() -> Vec<Program> {
    let of = |(kind, text): &(&str, &str)| {
        parse(kind, text).unwrap_or_else(|why| panic!("the list of kind {kind}: {why}"))
    };
    LISTS.iter().flat_map(of).collect()
}

/// The programs of a file.
pub fn read(file: &Path) -> Result<Vec<Program>, Failure> {
    let named = |why: String| Failure::usage(format!("--from: {}: {why}", file.display()));
    let text = fs::read_to_string(file).map_err(|e| named(reason(&e)))?;
    let kind = file.file_stem().unwrap_or_default().to_string_lossy();
    parse(&kind, &text).map_err(named)
}

impl Program {
    /// The script that prepares it.
    pub fn prepare(&self) -> String {
        format!("{PRELUDE}\n{}", self.prepare)
    }

    /// The script that runs it.
    pub fn script(&self) -> String {
        format!("{PRELUDE}\n{}", self.run)
    }
}

/// The programs of one list.
fn parse(kind: &str, text: &str) -> Result<Vec<Program>, String> {
    let (_, mut left) = text.split_once("\n#: ").ok_or("there is no program in it")?;
    let mut all = Vec::new();
    while !left.is_empty() {
        let (name, rest) = left.split_once(' ').ok_or("a program has a name and a package")?;
        let without = |what: &str| format!("{name} has no line '#: {what}'");
        let (package, rest) =
            rest.split_once("\n#: needs ").ok_or_else(|| without("needs COMMAND..."))?;
        let (needs, rest) = rest.split_once('\n').ok_or_else(|| without("run"))?;
        let (prepare, rest) = rest.split_once("#: run\n").ok_or_else(|| without("run"))?;
        let (run, next) = rest.split_once("\n#: ").unwrap_or((rest, ""));
        all.push(Program {
            kind: kind.to_string(),
            name: name.to_string(),
            package: package.to_string(),
            needs: needs.split(' ').map(str::to_string).collect(),
            prepare: prepare.to_string(),
            run: run.to_string(),
        });
        left = next;
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_lists_are_whole() {
        let all = all();
        let mut names: Vec<&str> = all.iter().map(|program| &*program.name).collect();
        assert!(names.len() >= 60, "{} programs", names.len());
        names.extend(LISTS.map(|(kind, _)| kind));
        names.sort_unstable();
        let before = names.len();
        names.dedup();
        assert_eq!(names.len(), before, "a name is there twice");
        for program in &all {
            assert!(!program.run.trim().is_empty(), "{} runs nothing", program.name);
            assert!(!program.run.contains("#:"), "{} has a head in it", program.name);
            assert!(!program.package.contains('\n'), "{} has no needs", program.name);
        }
    }

    #[test]
    fn a_list_is_parsed_and_what_is_wrong_is_said() {
        let text = "# a head\n\n#: a pack\n#: needs x y\nmade\n#: run\necho\n\n#: b p q\n#: needs \
                    z\n#: run\ndone\n";
        let list = parse("kind", text).unwrap();
        assert_eq!((list.len(), &*list[0].prepare, &*list[0].run), (2, "made\n", "echo\n"));
        assert_eq!((&*list[1].package, &*list[1].prepare), ("p q", ""));
        assert_eq!(list[0].needs, ["x", "y"]);
        let why = |text| parse("kind", text).unwrap_err();
        assert_eq!(why("nothing"), "there is no program in it");
        assert_eq!(why("\n#: a p\n#: run\n"), "a has no line '#: needs COMMAND...'");
        assert_eq!(why("\n#: a p\n#: needs x\n"), "a has no line '#: run'");
    }

    #[test]
    fn programs_are_chosen_by_name_and_by_kind() {
        let all = all();
        let names = |list: &str| -> Vec<&str> {
            chosen(&all, list).unwrap().iter().map(|program| &*program.name).collect()
        };
        assert_eq!(names("all").len(), all.len());
        assert_eq!(names("ruby,lua"), ["ruby", "lua"]);
        assert!(names("language").contains(&"ruby"));
        assert!(chosen(&all, "cobol-73").unwrap_err().starts_with("'cobol-73' is no program"));
    }

    #[test]
    fn each_script_is_one_for_the_shell() {
        for program in all() {
            for script in [program.prepare(), program.script()] {
                let mut shell = Command::new("sh").arg("-n").stdin(Stdio::piped()).spawn().unwrap();
                shell.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
                assert!(shell.wait().unwrap().success(), "{}", program.name);
            }
        }
    }
}
