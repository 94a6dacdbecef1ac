//! A directory for what the measured programs need: their input, their sockets. On a disk, and gone
//! with its owner.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use uzswap_cli::Failure;
use uzswap_cli::pages::Random;
use uzswap_cli::program::reason;

/// A directory that goes away again.
pub struct Scratch(PathBuf);

impl Scratch {
    /// One for each bench: `name` keeps two of them apart.
    pub fn new(name: &str) -> Result<Scratch, Failure> {
        // Not in /tmp, which is memory on many machines.
        let path = Path::new("/var/tmp").join(format!("uzswap-{name}-{}", std::process::id()));
        match fs::create_dir(&path) {
            Ok(()) => Ok(Scratch(path)),
            Err(e) => Err(Failure::environment(format!("{}: {}", path.display(), reason(&e)))),
        }
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A text to sort, 64 MiB.
    pub fn lines(&self) -> Result<PathBuf, String> {
        const LINES: u32 = 1_200_000;
        let mut random = Random(1);
        self.file("lines", |out| {
            for line in 0..LINES {
                writeln!(out, "{:016x} line {line:07} {:024x}", random.next(), random.next())?;
            }
            Ok(())
        })
    }

    /// A file with what `write` puts into it, made when it is wanted first.
    pub fn file(
        &self,
        name: &str,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<PathBuf, String> {
        let path = self.0.join(name);
        if !path.exists() {
            let made = File::create(&path).map(BufWriter::new).and_then(|mut out| {
                write(&mut out)?;
                out.flush()
            });
            made.map_err(|e| {
                // The next program would take a part of it for all.
                let _ = fs::remove_file(&path);
                format!("{}: {}", path.display(), reason(&e))
            })?;
        }
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_goes_away() {
        let scratch = Scratch::new("scratch-test").unwrap();
        let lines = scratch.lines().unwrap();
        assert!(fs::metadata(&lines).unwrap().len() > 60 << 20);
        assert!(Scratch::new("scratch-test").is_err(), "two owners of one directory");
        drop(scratch);
        assert!(!lines.exists() && !lines.parent().unwrap().exists());
    }

    #[test]
    fn a_file_is_made_once() {
        let scratch = Scratch::new("scratch-once").unwrap();
        let path = scratch.file("a", |out| out.write_all(b"first")).unwrap();
        scratch.file("a", |_| panic!("made again")).unwrap();
        assert_eq!(fs::read(path).unwrap(), b"first");
        let cut = |out: &mut dyn Write| out.write_all(b"ha").and(Err(io::Error::other("full")));
        assert!(scratch.file("cut", cut).unwrap_err().contains("full"));
        let path = scratch.file("cut", |out| out.write_all(b"half")).unwrap();
        assert_eq!(fs::read(path).unwrap(), b"half");
        let why = scratch.file("no/such", |_| Ok(())).unwrap_err();
        assert!(why.contains("no/such"), "{why}");
    }
}
