//! The source tree: fetched, unpacked, and what a build of it has made.
//!
//! ```text
//!  mirrors of apt ─> archive, its SHA-256 as it should be ─> unpacked tree ─> make ─> objects ─> digest
//!                      (kept, with --cache)                       ^───── restore: all that was made is removed
//! ```
//!
//! The tree is git: some 240 C files of all sizes, a Makefile without a configure step, and objects
//! that are the same bytes in every build (no dates, no random names), so that those of two builds
//! can be compared.

use std::collections::HashSet;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::super::process::find;
use uzswap_cli::program::reason;

/// Where the archive is on every Debian mirror, and what it is.
const ARCHIVE: &str = "git_2.39.5.orig.tar.xz";
const POOL: &str = "pool/main/g/git";
const SHA256: &str = "c58da92c378df4a986ca33266897a7397e86c22ee266a284d8c2432c39066b59";
/// The directory in it.
const TREE: &str = "git-2.39.5";
/// Where to ask if apt has nothing to say.
const DEBIAN: &str = "http://deb.debian.org/debian";
/// Programs that are left out need libraries that few have.
const WITHOUT: [&str; 7] = [
    "NO_CURL=1",
    "NO_EXPAT=1",
    "NO_OPENSSL=1",
    "NO_GETTEXT=1",
    "NO_TCLTK=1",
    "NO_PYTHON=1",
    "NO_PERL=1",
];

/// An unpacked source tree.
pub struct Source {
    root: PathBuf,
    /// All that was unpacked.
    files: HashSet<PathBuf>,
    targets: Vec<String>,
    make: PathBuf,
    compiler: PathBuf,
    flags: String,
}

/// The objects of a build.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Objects {
    pub count: usize,
    /// Of names and bytes of all of them.
    pub digest: u64,
}

impl Source {
    /// Fetches the archive into `cache` unless it is there, and unpacks it in `scratch`. Of its
    /// library every build makes `files` objects, 0 for all; `flags` are the compiler's.
    pub fn prepare(
        cache: &Path,
        scratch: &Path,
        files: usize,
        flags: &str,
    ) -> Result<Source, String> {
        let [make, compiler, tar] = [("make", "make"), ("gcc", "gcc"), ("tar", "tar and xz-utils")]
            .map(|(name, package)| find(name).map_err(|why| format!("{why}: install {package}")));
        let (make, compiler, tar) = (make?, compiler?, tar?);
        if !Path::new("/usr/include/zlib.h").exists() {
            return Err("zlib.h is not installed: install zlib1g-dev".to_string());
        }
        let archive = fetched(cache)?;
        quietly(Command::new(tar).arg("-xf").arg(&archive).arg("-C").arg(scratch))?;
        let root = scratch.join(TREE);
        let named = |e: io::Error| format!("{}: {}", root.display(), reason(&e));
        let unpacked = walk(&root).map_err(named)?.into_iter().collect();
        let makefile = fs::read_to_string(root.join("Makefile")).map_err(named)?;
        let targets = every_nth(&objects_of_library(&makefile), files);
        Ok(Source { root, files: unpacked, targets, make, compiler, flags: flags.to_string() })
    }

    /// The build by so many jobs, behind the beginning of a command line.
    pub fn build(&self, beginning: Option<Command>, jobs: u32) -> Command {
        let mut command = match beginning {
            None => Command::new(&self.make),
            Some(mut beginning) => {
                beginning.arg(&self.make);
                beginning
            }
        };
        command.arg("-C").arg(&self.root).arg(format!("-j{jobs}")).args(WITHOUT);
        command
            .arg(format!("CC={}", self.compiler.display()))
            .arg(format!("CFLAGS={}", self.flags));
        command.args(&self.targets).env("LC_ALL", "C").env_remove("MAKEFLAGS");
        command
    }

    pub fn objects(&self) -> Result<Objects, String> {
        let named = |path: &Path, e: io::Error| format!("{}: {}", path.display(), reason(&e));
        let mut made = walk(&self.root).map_err(|e| named(&self.root, e))?;
        made.retain(|path| path.extension().is_some_and(|extension| extension == "o"));
        made.sort();
        let mut digest = DefaultHasher::new();
        for path in &made {
            digest.write(path.as_os_str().as_encoded_bytes());
            digest.write(&fs::read(path).map_err(|e| named(path, e))?);
        }
        Ok(Objects { count: made.len(), digest: digest.finish() })
    }

    /// Restores the tree as it was unpacked.
    pub fn restore(&self) -> Result<(), String> {
        let made = walk(&self.root).and_then(|files| {
            files.iter().filter(|path| !self.files.contains(*path)).try_for_each(fs::remove_file)
        });
        made.map_err(|e| format!("{}: {}", self.root.display(), reason(&e)))
    }
}

/// The archive in the cache directory, fetched from the first mirror that has it unless it is
/// there.
fn fetched(cache: &Path) -> Result<PathBuf, String> {
    let path = cache.join(ARCHIVE);
    if path.exists() {
        return match is_right(&path)? {
            true => Ok(path),
            false => Err(format!("{}: this is another file, remove it", path.display())),
        };
    }
    let mut failure = String::new();
    for mirror in mirrors() {
        let url = format!("{}/{POOL}/{ARCHIVE}", mirror.trim_end_matches('/'));
        match download(&url, &path).and_then(|()| is_right(&path)) {
            Ok(true) => return Ok(path),
            Ok(false) => failure = format!("{url}: another file than it should be"),
            Err(why) => failure = format!("{url}: {why}"),
        }
        let _ = fs::remove_file(&path);
    }
    Err(format!(
        "the source tree cannot be had: {failure}; put {ARCHIVE} into a directory and name it by \
         --cache"
    ))
}

/// The mirrors that apt is configured with.
fn mirrors() -> Vec<String> {
    let mut apt = Command::new("apt-get");
    let output =
        apt.args(["indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]).output();
    let text = output
        .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
        .unwrap_or_default();
    let mut mirrors: Vec<String> = Vec::new();
    for mirror in text.lines().chain([DEBIAN]) {
        if !mirrors.iter().any(|known| known.trim_end_matches('/') == mirror.trim_end_matches('/'))
        {
            mirrors.push(mirror.to_string());
        }
    }
    mirrors
}

/// Downloads by apt's own means, which know of proxies and keys; else by curl.
fn download(url: &str, path: &Path) -> Result<(), String> {
    let helper = Path::new("/usr/lib/apt/apt-helper");
    match helper.exists() {
        true => quietly(
            Command::new(helper)
                .args(["download-file", url])
                .arg(path)
                .arg(format!("SHA256:{SHA256}")),
        ),
        false => quietly(Command::new("curl").args(["-sSfL", url, "-o"]).arg(path)),
    }
}

fn is_right(path: &Path) -> Result<bool, String> {
    let output = Command::new("sha256sum").arg(path).output();
    let output = output.map_err(|e| format!("sha256sum: {}", reason(&e)))?;
    Ok(output.stdout.starts_with(SHA256.as_bytes()))
}

/// Runs a tool; the last line of its complaints is the error.
fn quietly(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().display().to_string();
    let output =
        command.stdin(Stdio::null()).output().map_err(|e| format!("{name}: {}", reason(&e)))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            Err(String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or(&name).to_string())
        }
    }
}

/// All files below a directory.
fn walk(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let (mut files, mut directories) = (Vec::new(), vec![directory.to_path_buf()]);
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => directories.push(entry.path()),
                false => files.push(entry.path()),
            }
        }
    }
    Ok(files)
}

/// The objects that the Makefile puts into the library on every system.
fn objects_of_library(makefile: &str) -> Vec<String> {
    let names = makefile.lines().filter_map(|line| line.strip_prefix("LIB_OBJS += "));
    names.filter(|name| name.ends_with(".o") && !name.contains('$')).map(String::from).collect()
}

/// `count` of the names from begin to end, or all.
fn every_nth(names: &[String], count: usize) -> Vec<String> {
    let count = if count == 0 { names.len() } else { count.min(names.len()) };
    (0..count).map(|i| names[i * names.len() / count].clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::super::scratch::Scratch;
    use super::*;

    #[test]
    fn objects_are_read_from_the_makefile() {
        let makefile = "LIB_OBJS += a.o\nLIB_OBJS += $(B).o\n\tLIB_OBJS += c.o\nLIB_OBJS += x/d.o\n\
                        OBJS += e.o\n";
        assert_eq!(objects_of_library(makefile), ["a.o", "x/d.o"]);
    }

    #[test]
    fn a_part_of_the_objects_is_of_all_of_them() {
        let names: Vec<String> = (0..10).map(|i| i.to_string()).collect();
        assert_eq!(every_nth(&names, 0), names);
        assert_eq!(every_nth(&names, 3), ["0", "3", "6"]);
        assert_eq!(every_nth(&names, 99), names);
    }

    #[test]
    fn what_was_made_is_seen_and_removed() {
        let scratch = Scratch::new("source-test").unwrap();
        let root = scratch.path().join("tree");
        fs::create_dir_all(root.join("b")).unwrap();
        fs::write(root.join("b/c.c"), "int c;\n").unwrap();
        let files = walk(&root).unwrap().into_iter().collect();
        let nothing = PathBuf::new();
        let source = Source {
            root,
            files,
            targets: vec![],
            make: nothing.clone(),
            compiler: nothing,
            flags: String::new(),
        };
        let object = source.root.join("b/c.o");
        fs::write(&object, "one").unwrap();
        let one = source.objects().unwrap();
        fs::write(&object, "two").unwrap();
        let two = source.objects().unwrap();
        assert_eq!((one.count, two.count), (1, 1));
        assert_ne!(one, two);
        source.restore().unwrap();
        assert_eq!(source.objects().unwrap().count, 0);
        assert!(source.root.join("b/c.c").exists());
    }

    #[test]
    fn a_wrong_archive_is_not_taken() {
        let scratch = Scratch::new("archive-test").unwrap();
        fs::write(scratch.path().join(ARCHIVE), "no archive").unwrap();
        let why = fetched(scratch.path()).unwrap_err();
        assert!(why.ends_with("this is another file, remove it"), "{why}");
        assert!(mirrors().iter().any(|mirror| mirror.contains("://")));
    }
}
