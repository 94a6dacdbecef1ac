//! The programs that work on files: compilers, a linker, git, PostgreSQL, ffmpeg.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::super::process::find;
use super::super::scratch::Scratch;
use super::catalogue::{Line, installed};
use super::inputs;
use uzswap_cli::program::reason;

fn source(scratch: &Scratch) -> Result<PathBuf, String> {
    const SOURCE: &[u8] = include_bytes!("../../../tests/programs/big.cpp");
    scratch.file("big.cpp", |out| out.write_all(SOURCE))
}

pub fn gcc(scratch: &Scratch) -> Result<Line, String> {
    let source = source(scratch)?;
    let words = ["-std=c++17", "-O1", "-DCOUNT=1", "-S", "-o", "/dev/stdout"];
    Ok(Line::new(installed("g++", "g++")?, []).and_all(words).and(source))
}

pub fn clang(scratch: &Scratch) -> Result<Line, String> {
    let source = source(scratch)?;
    let words = ["-std=c++17", "-O0", "-g", "-DCOUNT=8", "-S", "-o", "-"];
    Ok(Line::new(installed("clang++", "clang")?, []).and_all(words).and(source))
}

pub fn lld(scratch: &Scratch) -> Result<Line, String> {
    let linker = installed("ld.lld", "lld")?;
    let compiler = installed("cc", "gcc")?;
    let words = ["-shared", "--threads=2", "-O2", "-o", "-"];
    let mut line = Line::new(linker, []).and_all(words);
    for module in 0..inputs::MODULES {
        let object = scratch.path().join(format!("module-{module}.o"));
        if !object.exists() {
            let name = format!("module-{module}.s");
            let source = scratch.file(&name, |out| inputs::write_module(module, out))?;
            done(Command::new(&compiler).arg("-c").arg("-o").arg(&object).arg(source))?;
        }
        line = line.and(object);
    }
    Ok(line)
}

/// The command that `git repack -adf` runs. One thread, since several share out the work by chance.
pub fn git(scratch: &Scratch) -> Result<Line, String> {
    let git = installed("git", "git")?;
    let repository = scratch.path().join("repository");
    if !repository.exists() {
        let stream = scratch.file("history", inputs::write_history)?;
        let stream =
            fs::File::open(&stream).map_err(|e| format!("{}: {}", stream.display(), reason(&e)))?;
        done(Command::new(&git).args(["init", "--quiet", "--bare"]).arg(&repository))?;
        let mut import = Command::new(&git);
        done(import.arg("-C").arg(&repository).args(["fast-import", "--quiet"]).stdin(stream))?;
    }
    let words =
        ["pack-objects", "--all", "--stdout", "-q", "--no-reuse-delta", "--no-reuse-object"];
    let line = Line::new(git, [&"-C"]).and(repository).and_all(words);
    Ok(line.and_all(["--threads=1", "--window=40", "--depth=50"]))
}

/// A server process of PostgreSQL without a server: one that sorts in its own memory.
pub fn postgres(scratch: &Scratch) -> Result<Line, String> {
    const QUERY: &[u8] =
        b"select sum(n * v) from (select row_number() over (order by t, v) as n, v \
        from (select (i * 2654435761) % 1000003 as v, 'word ' || (i * 40503) % 99991 as t \
        from generate_series(1::bigint, 1500000) i) rows) sorted\n";
    let binaries = postgres_binaries()?;
    let directory = scratch.path().join("postgres");
    let database = directory.join("data");
    if !database.exists() {
        fs::create_dir(&directory)
            .map_err(|e| format!("{}: {}", directory.display(), reason(&e)))?;
        if is_root() {
            chown(&directory, Some(NOBODY), Some(NOBODY))
                .map_err(|e| format!("{}: {}", directory.display(), reason(&e)))?;
        }
        let mut made = as_nobody(&binaries.join("initdb")).command();
        made.args(["--no-sync", "--locale=C", "-E", "UTF8", "-A", "trust", "-D"]).arg(&database);
        done(&mut made)?;
    }
    let query = scratch.file("query.sql", |out| out.write_all(QUERY))?;
    // It reads its queries from standard input.
    let line = Line::new("/bin/sh".into(), [&"-c", &"exec \"$@\" <\"$0\"", &query]);
    let line = line.behind_words(as_nobody(&binaries.join("postgres")));
    let line = line.and_all(["--single", "-j", "-D"]).and(database);
    let settings = ["work_mem=1GB", "shared_buffers=16MB", "fsync=off", "log_checkpoints=off"];
    let line = settings.iter().fold(line, |line, setting| line.and_all(["-c", setting]));
    Ok(line.and("postgres"))
}

/// User and group `nobody`: PostgreSQL refuses to run as root.
const NOBODY: u32 = 65534;

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

fn as_nobody(program: &Path) -> Line {
    let id = NOBODY.to_string();
    match is_root() {
        false => Line::new(program.into(), []),
        true => {
            let line = Line::new("/usr/bin/setpriv".into(), [&"--reuid", &id, &"--regid", &id]);
            line.and("--clear-groups").and(program)
        }
    }
}

/// Debian keeps them off the search path, a folder for each version.
fn postgres_binaries() -> Result<PathBuf, String> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = versions.map(|version| version.path().join("bin")).collect();
    folders.extend(find("initdb").ok().and_then(|file| Some(file.parent()?.to_path_buf())));
    let whole =
        |folder: &PathBuf| folder.join("postgres").exists() && folder.join("initdb").exists();
    folders
        .into_iter()
        .find(whole)
        .ok_or("PostgreSQL is not installed: install postgresql".to_string())
}

pub fn ffmpeg(_: &Scratch) -> Result<Line, String> {
    let ffmpeg = installed("ffmpeg", "ffmpeg")?;
    let quiet = ["-nostdin", "-loglevel", "error", "-f", "lavfi", "-i"];
    let line =
        Line::new(ffmpeg, []).and_all(quiet).and("testsrc2=size=1280x720:rate=24:duration=4");
    let encoder = ["-c:v", "libx264", "-preset", "medium", "-threads", "2", "-f", "h264", "-"];
    Ok(line.and_all(encoder))
}

/// Runs a tool to its end; its last complaint is the error.
pub fn done(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().display().to_string();
    let output =
        command.stdout(Stdio::null()).output().map_err(|e| format!("{name}: {}", reason(&e)))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let text = String::from_utf8_lossy(&output.stderr);
            Err(format!("{name}: {}", text.lines().last().unwrap_or("failed")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_that_fails_says_why() {
        done(Command::new("sh").args(["-c", "echo all is well"])).unwrap();
        let why = done(Command::new("sh").args(["-c", "echo first >&2; echo last >&2; exit 1"]));
        assert_eq!(why.unwrap_err(), "sh: last");
        assert!(done(&mut Command::new("no-such-tool")).unwrap_err().starts_with("no-such-tool: "));
    }
}
