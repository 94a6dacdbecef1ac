//! Shared texts, tested on real programs: processes run the same pages of a file in the cache, and
//! a defect in any part (the file, the directory, the object, its text in memory) leads back to
//! pages of their own.

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use support::{Mode, compile, library, run, scratch, under_hook};

/// Two seconds, for which an object must have been left alone before its text is shared: a little
/// less, since file systems have coarse clocks, and more than it can take by whole seconds.
const LEAST_REST: Duration = Duration::from_millis(1900);
const REST: Duration = Duration::from_millis(3100);

fn fresh_cache(name: &str) -> PathBuf {
    let dir = scratch().join(name);
    let _ = std::fs::remove_dir_all(&dir);
    dir
}

/// Whether texts can be shared here at all: the kernel tells which pages were written, and the file
/// system is one of those whose files stay.
fn is_possible() -> bool {
    let kind = run(Command::new("stat").args(["-f", "-c", "%t"]).arg(scratch())).stdout;
    let kinds =
        ["ef53", "58465342", "9123683e", "f2f52010", "ca451a4e", "2fc12fc1", "1021994", "794c7630"];
    let possible = kinds.contains(&String::from_utf8_lossy(&kind).trim())
        && std::fs::File::open("/proc/self/pagemap").is_ok();
    if !possible {
        eprintln!("no texts are shared on this file system or kernel: skipped");
    }
    possible
}

fn texts_in(cache: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = std::fs::read_dir(cache).unwrap().map(|e| e.unwrap().path());
    let texts = files.filter(|p| p.extension().is_some_and(|e| e == "text"));
    texts.map(|p| (p.clone(), std::fs::read(p).unwrap())).collect()
}

/// An executable mapping of a file, and how much of it is the process's own.
#[derive(Debug)]
struct Mapped {
    file: PathBuf,
    own_kib: u64,
}

/// Mappings of files for execution in a program that prints its own smaps.
fn executable(smaps: &[u8]) -> Vec<Mapped> {
    let text = String::from_utf8_lossy(smaps);
    let mut list: Vec<Mapped> = Vec::new();
    let mut in_one = false;
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if words[0].contains('-') {
            in_one = words[1] == "r-xp" && words.get(5).is_some_and(|f| f.starts_with('/'));
            if in_one {
                list.push(Mapped { file: words[5].into(), own_kib: 0 });
            }
        } else if in_one && matches!(words[0], "Anonymous:" | "Swap:") {
            list.last_mut().unwrap().own_kib += words[1].parse::<u64>().unwrap();
        }
    }
    list
}

fn smaps(cache: &Path) -> Vec<Mapped> {
    let out = run(&mut under_hook(Mode::Light, Some(cache), None, &["cat", "/proc/self/smaps"]));
    assert!(out.status.success(), "{out:?}");
    executable(&out.stdout)
}

fn shared(mapped: &[Mapped]) -> Vec<&Path> {
    let texts = mapped.iter().filter(|m| m.file.extension().is_some_and(|e| e == "text"));
    texts.map(|m| m.file.as_path()).collect()
}

fn is_libc(m: &Mapped) -> bool {
    m.file.file_name().is_some_and(|n| n.to_string_lossy().starts_with("libc.so"))
}

#[test]
fn processes_run_the_same_pages() {
    if !is_possible() {
        return;
    }
    let cache = fresh_cache("cache-shared");
    let mut starts_without_news = 0;
    let mut known = 0;
    for _ in 0..60 {
        let mapped = smaps(&cache);
        // Four mappings: slots and text, of libc and of the loader.
        assert_eq!(shared(&mapped).len(), 4, "{mapped:?}");
        assert!(mapped.iter().all(|m| m.own_kib == 0) && !mapped.iter().any(is_libc), "{mapped:?}");
        let files = texts_in(&cache).len();
        starts_without_news = if files == known { starts_without_news + 1 } else { 0 };
        known = files;
        if starts_without_news == 10 {
            break;
        }
    }
    // Where objects lie is random, but few distances are.
    assert!(starts_without_news >= 5 && known <= 16, "{known}");
}

/// The log of the library: how many sites there are in each object, and how many were patched.
#[test]
fn nothing_is_left_out() {
    let cache = fresh_cache("cache-complete");
    let log = scratch().join("log-shared");
    for _ in 0..2 {
        let _ = std::fs::remove_file(&log);
        let mut command = under_hook(Mode::Return, Some(&cache), Some(&log), &["/bin/true"]);
        assert!(run(&mut command).status.success());
        let text = std::fs::read_to_string(&log).unwrap();
        let objects = text.lines().filter(|l| l.starts_with("object")).count();
        assert!(text.contains("unpatched 0 ") && objects >= 3, "{text}");
    }
}

#[test]
fn files_that_cannot_be_trusted_are_made_anew() {
    if !is_possible() {
        return;
    }
    let cache = fresh_cache("cache-damaged");
    smaps(&cache);
    let page = 4096;
    type Damage = fn(&Path, &[u8]);
    let damages: [Damage; 9] = [
        |f, b| flip_at(f, b, 0),
        |f, b| flip_at(f, b, 100),
        |f, b| flip_at(f, b, 5000),
        |f, b| flip_at(f, b, b.len() - 1),
        |f, b| rot_at(f, b, 5000),
        |f, b| rot_at(f, b, b.len() - 1),
        |f, b| write(f, &b[..b.len() - 4096]),
        |f, _| write(f, b""),
        |f, _| set_mode(f, 0o666),
    ];
    for (n, damage) in damages.into_iter().enumerate() {
        texts_in(&cache).keys().for_each(|f| std::fs::remove_file(f).unwrap());
        for _ in 0..4 {
            smaps(&cache);
        }
        let good = texts_in(&cache);
        good.iter().for_each(|(file, bytes)| damage(file, bytes));
        for _ in 0..4 {
            let mapped = smaps(&cache);
            assert_eq!(shared(&mapped).len(), 4, "{n} {mapped:?}");
            // All is as it was but the head, which has the time.
            for (file, good) in shared(&mapped).into_iter().filter_map(|f| Some((f, good.get(f)?)))
            {
                assert!(std::fs::read(file).unwrap()[page..] == good[page..], "{n} {file:?}");
            }
        }
    }
    // Files of another user are not used.
    let changed =
        texts_in(&cache).keys().all(|f| std::os::unix::fs::chown(f, Some(12345), None).is_ok());
    if changed {
        let mapped = smaps(&cache);
        use std::os::unix::fs::MetadataExt;
        assert!(
            shared(&mapped).iter().all(|f| std::fs::metadata(f).unwrap().uid() != 12345),
            "{mapped:?}"
        );
        std::os::unix::fs::chown(&cache, Some(12345), None).unwrap();
        assert_eq!(shared(&smaps(&cache)), Vec::<&Path>::new());
    }
    // A directory that others can write is not used.
    let cache = fresh_cache("cache-open");
    smaps(&cache);
    set_mode(&cache, 0o777);
    assert_eq!(shared(&smaps(&cache)), Vec::<&Path>::new());
}

fn flip_at(file: &Path, bytes: &[u8], at: usize) {
    let mut bad = bytes.to_vec();
    bad[at] ^= 1;
    write(file, &bad);
}

/// Writes into the file, which is read-only, and keeps its mode.
fn write(file: &Path, bytes: &[u8]) {
    set_mode(file, 0o600);
    std::fs::write(file, bytes).unwrap();
    set_mode(file, 0o400);
}

/// Writes into the file as a medium would that has lost a bit: the file is as old as before.
fn rot_at(file: &Path, bytes: &[u8], at: usize) {
    let before = std::fs::metadata(file).unwrap().modified().unwrap();
    flip_at(file, bytes, at);
    std::fs::File::open(file).unwrap().set_modified(before).unwrap();
    assert_eq!(std::fs::metadata(file).unwrap().modified().unwrap(), before);
}

fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

/// A library that is written anew, in its place or beside it, is run as it is now.
#[test]
fn an_upgraded_library_gets_another_text() {
    if !is_possible() {
        return;
    }
    let cache = fresh_cache("cache-upgraded");
    let dir = scratch();
    let answer = |n: u32| {
        let source = dir.join("upgraded.c");
        // The build id is equal each time: it alone does not tell.
        let text = "long answer(void) { long r; __asm__ volatile(\"syscall\" : \"=a\"(r) : \
                    \"a\"(39L) : \"rcx\", \"r11\"); return r > 0 ? ANSWER : 0; }";
        std::fs::write(&source, text).unwrap();
        let built = dir.join("libupgraded-new.so");
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-shared", "-fPIC", "-Wl,--build-id=0x0123456789abcdef0123456789abcdef"]);
        cc.arg(format!("-DANSWER={n}")).arg("-o").arg(&built).arg(&source);
        assert!(cc.status().unwrap().success());
        built
    };
    let library = dir.join("libupgraded.so");
    let (built, mut changed) = (answer(1), Instant::now());
    std::fs::copy(built, &library).unwrap();
    let main = dir.join("upgraded-main.c");
    let text = "#include <stdio.h>\nlong answer(void); int main(void) { char b[4096]; FILE *f = \
                fopen(\"/proc/self/smaps\", \"r\"); printf(\"%ld\\n\", answer()); while (fgets(b, \
                sizeof b, f)) fputs(b, stdout); }";
    std::fs::write(&main, text).unwrap();
    let program = dir.join("upgraded");
    let mut cc = Command::new("cc");
    cc.arg("-o").arg(&program).arg(main).arg(&library).arg("-Wl,-rpath").arg(&dir);
    assert!(cc.status().unwrap().success());
    // The program's answer, and whether its text is shared.
    let start = || {
        let out =
            run(&mut under_hook(Mode::Light, Some(&cache), None, &[program.to_str().unwrap()]));
        assert!(out.status.success(), "{out:?}");
        let end = out.stdout.iter().position(|&b| b == b'\n').unwrap();
        let mapped = executable(&out.stdout[end + 1..]);
        let own = mapped.iter().any(|m| m.file == library);
        (String::from_utf8_lossy(&out.stdout[..end]).into_owned(), !own)
    };
    // Not shared as long as the library is new. A machine that is slow makes it old meanwhile.
    let is_too_new = |answer: &str, changed: Instant| {
        let (said, is_shared) = start();
        said == answer && (!is_shared || changed.elapsed() >= LEAST_REST)
    };
    assert!(is_too_new("1", changed));
    std::thread::sleep(REST);
    assert_eq!(start(), ("1".into(), true));
    assert_eq!(start(), ("1".into(), true));
    let bytes = std::fs::read(answer(2)).unwrap();
    changed = Instant::now();
    std::fs::write(&library, bytes).unwrap();
    assert!(is_too_new("2", changed), "in its place");
    let built = answer(3);
    changed = Instant::now();
    std::fs::rename(built, &library).unwrap();
    assert!(is_too_new("3", changed), "another file");
    std::thread::sleep(REST);
    assert_eq!(start(), ("3".into(), true));
    assert_eq!(start(), ("3".into(), true));
}

/// Where files cannot be executed, or not be made, every process has pages of its own.
#[test]
fn a_cache_that_cannot_hold_code_holds_tables() {
    let cache = fresh_cache("cache-noexec");
    std::fs::create_dir_all(&cache).unwrap();
    let script = "mount -t tmpfs -o noexec,mode=700 none \"$1\" || exit 77; for i in 1 2; do \
                  LD_PRELOAD=\"$2\" UZ_PASSTHROUGH_CACHE=\"$1\" UZ_PASSTHROUGH_LOG=\"$3\" cat \
                  /proc/self/smaps; done; ls \"$1\" >&2";
    let log = scratch().join("log-noexec");
    let _ = std::fs::remove_file(&log);
    let mut command = Command::new("unshare");
    let arguments = ["-m", "sh", "-c", script, "sh"];
    let out = run(command.args(arguments).arg(&cache).arg(library()).arg(&log));
    if !out.status.success() {
        eprintln!("no mount of one's own here: skipped");
        return;
    }
    let mapped = executable(&out.stdout);
    assert!(
        shared(&mapped).is_empty() && mapped.iter().any(|m| is_libc(m) && m.own_kib > 0),
        "{mapped:?}"
    );
    let listed = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(listed.lines().count() >= 3 && !listed.contains(".text"), "{listed}");
    let said = std::fs::read_to_string(&log).unwrap();
    assert_eq!(said.matches("unpatched 0 ").count(), 2, "{said}");
}

/// A limit on the length of files is never exceeded: the kernel would kill.
#[test]
fn a_limit_on_files_is_kept() {
    let cache = fresh_cache("cache-limited");
    let mut command = Command::new("sh");
    command.args([
        "-c",
        "ulimit -f 200; exec env LD_PRELOAD=\"$1\" UZ_PASSTHROUGH_CACHE=\"$2\" cat \
         /proc/self/smaps",
        "sh",
    ]);
    let out = run(command.arg(library()).arg(&cache));
    assert!(out.status.success(), "{out:?}");
    let mapped = executable(&out.stdout);
    assert!(mapped.iter().any(|m| is_libc(m) && m.own_kib > 0), "{mapped:?}");
}

/// A debugger's breakpoints are in the text when the program starts: they stay.
#[test]
fn breakpoints_are_kept() {
    let cache = fresh_cache("cache-debugged");
    smaps(&cache);
    let program = compile("forms.c", "forms-debugged", &[]);
    let wrapper = format!(
        "set exec-wrapper env EXPECT_HOOK=1 LD_PRELOAD={} UZ_PASSTHROUGH_CACHE={}",
        library().display(),
        cache.display()
    );
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch", "-ex", &wrapper, "-ex", "set breakpoint pending on"]);
    gdb.args(["-ex", "break puts", "-ex", "run", "-ex", "bt", "-ex", "delete", "-ex", "continue"]);
    let Ok(out) = gdb.arg(program).output() else {
        eprintln!("gdb is not installed: skipped");
        return;
    };
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(said.contains("Breakpoint 1, ") && said.contains("forms ok\n"), "{said}");
}
