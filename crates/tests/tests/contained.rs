//! A program meets all restrictions of a container at once: the calls that Docker's default profile
//! refuses, its capabilities, no disk and nowhere to write, process 1. In a hard group in which it
//! dies by itself the program gives the output that it gives with all its memory.

use std::ffi::OsString;
use std::fs;
use std::process::{Command, ExitCode};
use std::sync::Arc;

use uzswap_tests::suite::command;
use uzswap_tests::{Job, MIB, Outcome, Suite, User, Verdict, Workshop, full};

/// README's first command: as many words of a program's code, of eight bytes each.
const WORDS_BYTES: u64 = 10_000_000;
/// Six tenths of what it needs. With half of it `sort` still ends, but without a disk there is
/// little room for pages that compress badly.
const WORDS_LIMIT_BYTES: u64 = 96 * MIB;
/// README's second one, a third as large, and six tenths of what that needs.
const LETTERS: &str = r#"
import os
words = {n: f"word number {n}" for n in range(700_000)}
print(sum(map(len, words.values())), "letters, by process", os.getpid())
"#;
const LETTERS_LIMIT_BYTES: u64 = 80 * MIB;

/// The document that says how an image is made, and what it has built of the sources by then.
const RECIPE: &str = include_str!("../../../docs/containers.md");
const RECIPE_BUILT: &str = "/uzswap/target/release/";

/// The programs that are run there, with all libraries that they and the command need; and the
/// places of file systems that a runtime mounts.
const FURNISH: &str = r#"
mkdir proc dev sys
for file in sh od sort uniq head usr/bin/uzswap; do
    file=$(command -v "./$file" || command -v "$file")
    case $file in ./*) ;; *) echo "$file" ;; esac
    ldd "$file" | grep -o '/[^ ]*'
done | sort -u | xargs cp -L --parents -t .
"#;

/// Profiles: what refuses ptrace and process_vm_readv besides, and what does not.
const PROFILES: [(&str, &[&str]); 2] = [("profile", &[]), ("older_profile", &["-o"])];

fn main() -> ExitCode {
    let workshop = Arc::new(Workshop::new());
    let mut suite = Suite::new();
    for user in [User::Root, User::Ordinary] {
        // Each once in the short form, by one of the users, but for the older profile.
        let is_root = user == User::Root;
        for (name, options) in PROFILES {
            let w = workshop.clone();
            if full() || is_root && options.is_empty() {
                suite.add(format!("words_are_counted::{}::{name}", user.name()), move || {
                    words(&w, user, options)
                });
            }
        }
        let w = workshop.clone();
        if full() || is_root {
            suite.add(format!("the_program_is_process_1::{}", user.name()), move || {
                letters(&w, user)
            });
        }
        let w = workshop.clone();
        if full() || !is_root {
            suite.add(format!("an_image_by_the_recipe::{}", user.name()), move || image(&w, user));
        }
    }
    drop(workshop);
    suite.main()
}

/// The program alone, the program alone in the group, and the program by uzswap in the group, each
/// in a container of its own.
struct Three {
    free: Outcome,
    alone: Outcome,
    run: Outcome,
}

impl Three {
    /// `options` are `container`'s, `entry` is what stands before the program, and ends with the
    /// options of `uzswap run`.
    fn run(
        w: &Workshop,
        user: User,
        options: &[OsString],
        limit_bytes: u64,
        entry: &[OsString],
        program: &[OsString],
    ) -> Result<Three, String> {
        let mut container: Vec<OsString> = vec![w.program("container").into()];
        container.extend(options.iter().cloned());
        if user == User::Ordinary {
            container.extend(["-u".into(), User::ORDINARY_UID.to_string().into()]);
        }
        container.push("--".into());
        // The only file that can be written was opened before.
        let opened = "install -m 666 /dev/null stats.json && exec 9>stats.json && exec \"$@\"";
        let mut managed: Vec<OsString> = ["sh", "-c", opened, "sh"].map(Into::into).into();
        managed.extend(container.iter().cloned());
        managed.extend(entry.iter().cloned());
        managed.extend(["--stats", "/proc/self/fd/9", "--"].map(Into::into));
        let job = |before: &[OsString]| Job::new(before.iter().chain(program));
        Ok(Three {
            free: job(&container).run(w)?,
            alone: job(&container).limit(limit_bytes).run(w)?,
            run: job(&managed).limit(limit_bytes).run(w)?,
        })
    }

    fn verdict(&self, is_right: bool) -> Verdict {
        let Three { free, alone, run } = self;
        let is_killed = alone.oom_kills > 0 && alone.hash != free.hash;
        let is_same = free.succeeded() && run.succeeded() && run.hash == free.hash;
        Verdict::check(is_killed && is_same && is_right, || {
            format!("free: {}alone: {}managed: {}", free.report(), alone.report(), run.report())
        })
    }
}

/// The command, and options of `run`.
fn entry(w: &Workshop, options: &[&str]) -> Vec<OsString> {
    let command = [w.uzswap().into(), "run".into()];
    command.into_iter().chain(options.iter().map(Into::into)).collect()
}

fn counting(code: &str) -> [OsString; 3] {
    let script = format!(
        "od -An -v -tx8 -w8 -N {WORDS_BYTES} {code} | LC_ALL=C sort -S 1G | uniq -c | \
         LC_ALL=C sort -S 1G -rn | head"
    );
    ["sh".into(), "-c".into(), script.into()]
}

fn words(w: &Workshop, user: User, profile: &[&str]) -> Result<Verdict, String> {
    let options: Vec<OsString> = profile.iter().map(Into::into).collect();
    let program = counting(&w.uzswap().display().to_string());
    let three = Three::run(w, user, &options, WORDS_LIMIT_BYTES, &entry(w, &[]), &program)?;
    let run = &three.run;
    // The run finds the group's limit, and says that there is no disk.
    let is_right = run.mechanisms() == ["protect"]
        && run.stderr.contains("no directory for the backing store")
        && run.stat("stores").is_some_and(|pages| pages > 0);
    Ok(three.verdict(is_right))
}

/// By `--in-place` the program is the process that the runtime has started; its supervisor ends
/// with it, as all processes of the container do.
fn letters(w: &Workshop, user: User) -> Result<Verdict, String> {
    command("python3")?;
    let program = ["python3", "-c", LETTERS].map(Into::into);
    let entry = entry(w, &["--in-place", "--quiet"]);
    let three = Three::run(w, user, &[], LETTERS_LIMIT_BYTES, &entry, &program)?;
    let is_right = three.run.stdout.ends_with("by process 1\n");
    Ok(three.verdict(is_right))
}

/// The files that `docs/containers.md` puts into an image are enough, and its entry point works: in
/// a root that has nothing else but the program.
fn image(w: &Workshop, user: User) -> Result<Verdict, String> {
    let recipe = RECIPE.split_once("```dockerfile\n").and_then(|(_, rest)| rest.split_once("```"));
    let lines: Vec<&str> = recipe.expect("the document has a recipe").0.lines().collect();
    let built = w.uzswap().with_file_name("");
    let root = w.input("image", |root| {
        for line in &lines {
            let Some(copied) = line.strip_prefix("COPY --from=uzswap ") else { continue };
            let (from, to) = copied.split_once(' ').expect("from and to");
            let name = from.strip_prefix(RECIPE_BUILT).expect("what was built");
            let to = root.join(to.trim_start_matches('/'));
            fs::create_dir_all(&to).expect("the workshop is ours");
            fs::copy(built.join(name), to.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        }
        let made = Command::new("sh").arg("-ec").arg(FURNISH).current_dir(root).output();
        let made = made.expect("there is a shell");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    });
    let point = lines.iter().find_map(|line| line.strip_prefix("ENTRYPOINT "));
    let point: Vec<String> = serde_json::from_str(point.expect("an entry point")).expect("a list");
    let (last, entry) = point.split_last().expect("a command");
    assert_eq!(last, "--", "what follows is the program");
    let entry: Vec<OsString> = entry.iter().map(Into::into).collect();
    let options = ["-r".into(), root.into_os_string()];
    let program = counting("/usr/bin/uzswap");
    let three = Three::run(w, user, &options, WORDS_LIMIT_BYTES, &entry, &program)?;
    Ok(three.verdict(true))
}
