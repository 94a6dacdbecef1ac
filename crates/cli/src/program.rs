//! The program to run: where it is, and whether it can be taken over.
//!
//! uzswap enters a program through glibc's dynamic linker (LD_PRELOAD); one that has none (static
//! programs, those for musl) is booted by the library (`boot` there). So a program can be taken
//! over if it is an x86-64 ELF file, or a script whose interpreter is one, and if its start does
//! not gain privileges (then LD_PRELOAD is ignored, and rightly).

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::Failure;
use crate::mechanism::Refusal;
use crate::os::{self, FileSystem, Identity};

/// A program that was found, as it is to be executed.
#[derive(Debug)]
pub struct Program {
    pub path: PathBuf,
    /// argv, the program's name first.
    pub arguments: Vec<OsString>,
    /// How it can be taken over, if it can.
    pub takeover: Result<Way, Refusal>,
    /// A sanitizer's runtime that has to be loaded before everything else, us included: it looks,
    /// and gives up.
    pub first_library: Option<String>,
}

/// How the library gets into a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// glibc's dynamic linker loads it.
    Preload,
    /// It is executed in the program's place, and boots the program.
    Boot,
}

/// Where PATH points when it is not set, as for execvp.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

impl Program {
    /// Finds `command[0]` as execvp does, and looks into it.
    pub fn find(command: &[OsString], search_path: Option<OsString>) -> Result<Program, Failure> {
        let path = locate(&command[0], search_path)?;
        let mut arguments = command.to_vec();
        match Format::of(&path) {
            Ok(Format::Other(head)) if is_text(&head) => {
                // execvp hands a text without `#!` to the shell.
                let shell = PathBuf::from("/bin/sh");
                arguments[0] = path.into_os_string();
                arguments.insert(0, "sh".into());
                let takeover = judge(&shell, 0)?;
                Ok(Program { path: shell, arguments, takeover, first_library: None })
            }
            _ => Ok(Program {
                takeover: judge(&path, 0)?,
                first_library: first_library(&path, 0),
                path,
                arguments,
            }),
        }
    }
}

/// The file that execvp would execute.
fn locate(name: &OsStr, search_path: Option<OsString>) -> Result<PathBuf, Failure> {
    let shown = name.display();
    if name.is_empty() {
        return Err(Failure::not_found("the program's name is empty".to_string()));
    }
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match executable(&path) {
            Ok(()) => Ok(path),
            Err(e) if is_missing(&e) => Err(Failure::not_found(format!("{shown}: {}", reason(&e)))),
            Err(e) => Err(Failure::not_executable(format!("{shown}: {}", reason(&e)))),
        };
    }
    let search_path = search_path.unwrap_or_else(|| DEFAULT_PATH.into());
    let mut denied = None;
    for directory in std::env::split_paths(&search_path) {
        // An empty element is the current directory.
        let path = if directory.as_os_str().is_empty() {
            Path::new(".").join(name)
        } else {
            directory.join(name)
        };
        match executable(&path) {
            Ok(()) => return Ok(path),
            // Not there, or in a directory that is closed to us, as far as we can know.
            Err(_) if fs::metadata(&path).is_err() => {}
            Err(e) => denied = denied.or(Some((path, e))),
        }
    }
    match denied {
        Some((path, e)) => {
            Err(Failure::not_executable(format!("{}: {}", path.display(), reason(&e))))
        }
        None => Err(Failure::not_found(format!("{shown}: no such program in PATH"))),
    }
}

fn executable(path: &Path) -> io::Result<()> {
    let metadata = fs::metadata(path)?;
    if metadata.is_dir() {
        return Err(ErrorKind::IsADirectory.into());
    }
    os::may_execute(path)
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// An error in words, without the number.
pub fn reason(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => "no such file".to_string(),
        ErrorKind::NotADirectory => "a part of the path is not a directory".to_string(),
        ErrorKind::IsADirectory => "is a directory".to_string(),
        ErrorKind::PermissionDenied => "permission denied".to_string(),
        ErrorKind::StorageFull => "no space left".to_string(),
        ErrorKind::FileTooLarge => "files may not be so large (ulimit -f)".to_string(),
        ErrorKind::ReadOnlyFilesystem => "the file system is read-only".to_string(),
        _ => {
            let text = error.to_string();
            let text = text.split(" (os error").next().unwrap_or_default();
            // The C library's texts begin with a capital letter.
            if error.raw_os_error().is_some() {
                text.to_ascii_lowercase()
            } else {
                text.to_string()
            }
        }
    }
}

fn refuse<T>(cause: String, remedy: &str) -> Result<T, Refusal> {
    Err(Refusal { cause, remedy: remedy.to_string() })
}

/// Interpreters of interpreters that are followed: the kernel gives up there too.
const DEEPEST: u32 = 5;

/// The runtime that the program at `path`, or its interpreter, wants to have loaded first.
fn first_library(path: &Path, depth: u32) -> Option<String> {
    match Format::of(path).ok()? {
        Format::Elf { first_library, .. } => first_library,
        Format::Script { interpreter } if depth < DEEPEST => first_library(&interpreter, depth + 1),
        _ => None,
    }
}

/// Whether an executable file can be taken over; an error if it cannot even be executed.
fn judge(path: &Path, depth: u32) -> Result<Result<Way, Refusal>, Failure> {
    let shown = path.display();
    let format = match Format::of(path) {
        Ok(format) => format,
        // Executable but not readable: it cannot be looked into, and most programs can be taken
        // over.
        Err(e) if e.kind() == ErrorKind::PermissionDenied => return Ok(Ok(Way::Preload)),
        Err(e) => return Err(Failure::not_executable(format!("{shown}: {}", reason(&e)))),
    };
    match format {
        Format::Script { interpreter } => {
            if let Err(e) = executable(&interpreter) {
                let message =
                    format!("{shown}: its interpreter {}: {}", interpreter.display(), reason(&e));
                return Err(if is_missing(&e) {
                    Failure::not_found(message)
                } else {
                    Failure::not_executable(message)
                });
            }
            if depth >= DEEPEST {
                return Err(Failure::not_executable(format!("{shown}: too many scripts in a row")));
            }
            judge(&interpreter, depth + 1)
        }
        Format::Elf { linker: None, .. } => {
            let cause = format!("{shown} is statically linked");
            Ok(privileges(path)
                .and_then(|()| bootable(cause, "use a dynamically linked build of it")))
        }
        Format::Elf { linker: Some(linker), .. } => {
            if let Err(e) = fs::metadata(&linker) {
                let message =
                    format!("{shown}: its dynamic linker {}: {}", linker.display(), reason(&e));
                return Err(Failure::not_found(message));
            }
            let name = linker.file_name().unwrap_or_default();
            if !name.as_bytes().starts_with(b"ld-linux-x86-64") {
                let cause =
                    format!("{shown} uses {} and not glibc's dynamic linker", linker.display());
                return Ok(
                    privileges(path).and_then(|()| bootable(cause, "use a build of it for glibc"))
                );
            }
            Ok(privileges(path).map(|()| Way::Preload))
        }
        Format::OtherElf { what } => Ok(refuse(
            format!("{shown} is {what}, and uzswap knows 64-bit x86-64 programs only"),
            "use an x86-64 build of it",
        )),
        Format::Other(_) => Ok(refuse(
            format!("{shown} is neither an ELF file nor a script"),
            "name the program that interprets it",
        )),
    }
}

/// Whether the library can boot programs here: their thread slots are in a register that the kernel
/// lets programs use since Linux 5.9, on processors that have the instructions.
fn bootable(cause: String, remedy: &str) -> Result<Way, Refusal> {
    const HWCAP2_FSGSBASE: libc::c_ulong = 2;
    if os::auxiliary(libc::AT_HWCAP2) & HWCAP2_FSGSBASE != 0 {
        Ok(Way::Boot)
    } else {
        refuse(
            format!("{cause}, and this machine does not let programs use the base of gs"),
            remedy,
        )
    }
}

/// Whether executing the file changes who we are.
fn privileges(path: &Path) -> Result<(), Refusal> {
    let Ok(metadata) = fs::metadata(path) else { return Ok(()) };
    let identity = os::identity();
    if identity.no_new_privileges || FileSystem::of(path).is_ok_and(|f| f.no_setuid) {
        return Ok(());
    }
    let gained = gains(
        metadata.mode(),
        metadata.uid(),
        metadata.gid(),
        identity,
        os::has_capabilities(path),
    );
    match gained {
        None => Ok(()),
        Some(what) => refuse(
            format!(
                "{} is {what}: the dynamic linker loads nothing foreign into it",
                path.display()
            ),
            "run it as the user it changes to, or use a copy without that",
        ),
    }
}

fn gains(
    mode: u32,
    owner: u32,
    group: u32,
    identity: Identity,
    capabilities: bool,
) -> Option<&'static str> {
    // Set-group-ID without group execution is an old mark for locking.
    if mode & libc::S_ISUID != 0 && owner != identity.user {
        Some("setuid")
    } else if mode & (libc::S_ISGID | libc::S_IXGRP) == libc::S_ISGID | libc::S_IXGRP
        && group != identity.group
    {
        Some("setgid")
    } else if capabilities && identity.user != 0 {
        Some("given capabilities")
    } else {
        None
    }
}

/// The kind of an executable file.
#[derive(Debug, PartialEq, Eq)]
enum Format {
    /// x86-64 ELF, with its dynamic linker if it has one, and a sanitizer's runtime if it needs
    /// one.
    Elf {
        linker: Option<PathBuf>,
        first_library: Option<String>,
    },
    /// ELF for something else.
    OtherElf {
        what: String,
    },
    Script {
        interpreter: PathBuf,
    },
    /// Neither; the first bytes.
    Other(Vec<u8>),
}

impl Format {
    fn of(path: &Path) -> io::Result<Format> {
        let file = File::open(path)?;
        let mut head = Vec::new();
        (&file).take(256).read_to_end(&mut head)?;
        if head.starts_with(b"\x7fELF") {
            return elf(&file, &head);
        }
        Ok(match head.strip_prefix(b"#!") {
            Some(line) => {
                let line = line.split(|b| *b == b'\n').next().unwrap_or_default().trim_ascii();
                let interpreter =
                    line.split(|b| matches!(b, b' ' | b'\t')).next().unwrap_or_default();
                Format::Script { interpreter: PathBuf::from(OsStr::from_bytes(interpreter)) }
            }
            None => Format::Other(head),
        })
    }
}

/// As bash decides it: no zero byte in the first line.
fn is_text(head: &[u8]) -> bool {
    !head.split(|b| *b == b'\n').next().unwrap_or_default().contains(&0)
}

/// A program header, as far as it matters.
struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    bytes: u64,
}

/// Reads an ELF header and looks for PT_INTERP and PT_DYNAMIC among the program headers.
fn elf(file: &File, head: &[u8]) -> io::Result<Format> {
    const ELFCLASS64: u8 = 2;
    const ELFDATA2LSB: u8 = 1;
    const EM_X86_64: u16 = 62;
    const EHDR_BYTES: usize = 64;
    const PHDR_BYTES: usize = 56;
    let broken = || io::Error::new(ErrorKind::InvalidData, "damaged ELF file");
    if head.len() < 20 {
        return Err(broken());
    }
    let machine = u16::from_le_bytes([head[18], head[19]]);
    if head[4] != ELFCLASS64 || head[5] != ELFDATA2LSB || machine != EM_X86_64 {
        let bits = if head[4] == ELFCLASS64 { 64 } else { 32 };
        let what = match machine {
            3 => "a 32-bit x86 program".to_string(),
            EM_X86_64 => "an x32 program".to_string(),
            _ => format!("a {bits}-bit program for another processor (ELF machine {machine})"),
        };
        return Ok(Format::OtherElf { what });
    }
    if head.len() < EHDR_BYTES {
        return Err(broken());
    }
    let table_offset = u64::from_le_bytes(head[32..40].try_into().expect("8 bytes"));
    let entry_bytes = u16::from_le_bytes([head[54], head[55]]) as usize;
    let entries = u16::from_le_bytes([head[56], head[57]]) as usize;
    if entry_bytes != PHDR_BYTES {
        return Err(broken());
    }
    let mut table = vec![0; entries * PHDR_BYTES];
    file.read_exact_at(&mut table, table_offset).map_err(|_| broken())?;
    let segments: Vec<Segment> = table
        .chunks_exact(PHDR_BYTES)
        .map(|header| {
            let word =
                |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("8 bytes"));
            let kind = u32::from_le_bytes(header[..4].try_into().expect("4 bytes"));
            Segment { kind, offset: word(8), address: word(16), bytes: word(32) }
        })
        .collect();
    Ok(Format::Elf { linker: linker(file, &segments)?, first_library: runtime(file, &segments) })
}

/// The dynamic linker that the program names.
fn linker(file: &File, segments: &[Segment]) -> io::Result<Option<PathBuf>> {
    const PT_INTERP: u32 = 3;
    let Some(segment) = segments.iter().find(|s| s.kind == PT_INTERP) else { return Ok(None) };
    let broken = || io::Error::new(ErrorKind::InvalidData, "damaged ELF file");
    if !(2..=4096).contains(&segment.bytes) {
        return Err(broken());
    }
    let mut path = vec![0; segment.bytes as usize];
    file.read_exact_at(&mut path, segment.offset).map_err(|_| broken())?;
    path.truncate(path.iter().position(|b| *b == 0).unwrap_or(path.len()));
    Ok(Some(OsString::from_vec(path).into()))
}

/// The first library that the program needs, if that is a sanitizer's runtime: it is the first
/// wherever it is needed.
fn runtime(file: &File, segments: &[Segment]) -> Option<String> {
    const PT_LOAD: u32 = 1;
    const PT_DYNAMIC: u32 = 2;
    const DT_NEEDED: u64 = 1;
    const DT_STRTAB: u64 = 5;
    const LONGEST_TABLE: u64 = 64 << 10;
    const LONGEST_NAME: usize = 64;
    let dynamic = segments.iter().find(|s| s.kind == PT_DYNAMIC)?;
    let mut table = vec![0; dynamic.bytes.min(LONGEST_TABLE) as usize];
    file.read_exact_at(&mut table, dynamic.offset).ok()?;
    let (words, _) = table.as_chunks::<8>();
    let value = |tag| {
        let mut entries =
            words.chunks_exact(2).map(|e| (u64::from_le_bytes(e[0]), u64::from_le_bytes(e[1])));
        entries.find(|e| e.0 == tag).map(|e| e.1)
    };
    let (name, strings) = (value(DT_NEEDED)?, value(DT_STRTAB)?);
    let in_file =
        |s: &&Segment| s.kind == PT_LOAD && strings >= s.address && strings - s.address < s.bytes;
    let load = segments.iter().find(in_file)?;
    let mut text = [0; LONGEST_NAME];
    let at = (strings - load.address).checked_add(load.offset)?.checked_add(name)?;
    let n = file.read_at(&mut text, at).ok()?;
    let len = text[..n].iter().position(|b| *b == 0)?;
    let name = std::str::from_utf8(&text[..len]).ok()?;
    let is_one = name.starts_with("libasan.so") || name.starts_with("libclang_rt.asan");
    (is_one && !name.contains(['/', ':', ' '])).then(|| name.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_gains_privileges() {
        let user = Identity { user: 1000, group: 1000, no_new_privileges: false };
        let root = Identity { user: 0, group: 0, no_new_privileges: false };
        assert_eq!(gains(0o4755, 0, 0, user, false), Some("setuid"));
        assert_eq!(gains(0o4755, 0, 0, root, false), None);
        assert_eq!(gains(0o4755, 1000, 0, user, false), None);
        assert_eq!(gains(0o2755, 0, 42, user, false), Some("setgid"));
        assert_eq!(gains(0o2745, 0, 42, user, false), None);
        assert_eq!(gains(0o755, 0, 0, user, true), Some("given capabilities"));
        assert_eq!(gains(0o755, 0, 0, root, true), None);
        assert_eq!(gains(0o755, 0, 0, user, false), None);
    }

    #[test]
    fn this_test_is_a_dynamic_program() {
        let own = std::env::current_exe().unwrap();
        let Format::Elf { linker: Some(linker), first_library: None } = Format::of(&own).unwrap()
        else {
            panic!("no linker")
        };
        assert!(linker.to_str().unwrap().contains("ld-linux-x86-64"));
    }

    #[test]
    fn texts_and_binaries() {
        assert!(is_text(b"echo hello\n\0"));
        assert!(is_text(b""));
        assert!(!is_text(b"\x01\0\n"));
    }
}
