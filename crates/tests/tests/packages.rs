//! The packages that would be published: each crate packs from the tree's own files, with its
//! licences and without a stray file.
//!
//! Nothing is compiled: cargo checks the manifests and writes the archives.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// Crates that can be published, in the order in which they would be.
const CRATES: [&str; 5] = ["uzswap", "uzswap-disk", "uzswap-preload", "uzswap-cli", "uzswap-clib"];
/// Kinds of files that a crate has. One of another kind is wanted here, or does not belong there.
const KINDS: [&str; 11] = ["rs", "toml", "orig", "lock", "json", "c", "cc", "h", "sh", "css", "js"];
const LICENCES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];
/// The largest package that the registry takes.
const BYTES_MOST: u64 = 10 << 20;

fn cargo(arguments: &[&str]) -> String {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    command.current_dir(ROOT).args(["package", "--offline", "--allow-dirty", "--quiet"]);
    let output = command.args(arguments).output().expect("cargo runs the tests");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{command:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn packages_have_their_licences_and_no_stray_file() {
    let mut wrong: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for name in CRATES {
        let list = cargo(&["--list", "-p", name]);
        let files: Vec<&Path> = list.lines().map(Path::new).collect();
        assert!(files.contains(&Path::new("src/lib.rs")), "{name} has {files:?}");
        for licence in LICENCES {
            if !files.contains(&Path::new(licence)) {
                wrong.entry(name).or_default().push(format!("no {licence}"));
            }
        }
        let is_known = |file: &Path| {
            let kind = file.extension().and_then(|kind| kind.to_str());
            kind.map_or(LICENCES.iter().any(|own| file == Path::new(own)), |k| KINDS.contains(&k))
        };
        let stray = files.iter().filter(|file| !is_known(file));
        let stray: Vec<String> = stray.map(|file| format!("{}", file.display())).collect();
        if !stray.is_empty() {
            wrong.entry(name).or_default().extend(stray);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn packages_can_be_made() {
    let scratch: PathBuf =
        std::env::temp_dir().join(format!("uzswap-packages-{}", std::process::id()));
    let target = scratch.display().to_string();
    let mut arguments = vec!["--no-verify", "--target-dir", &target];
    CRATES.iter().for_each(|name| arguments.extend(["-p", name]));
    cargo(&arguments);
    for name in CRATES {
        let file = format!("package/{name}-{}.crate", env!("CARGO_PKG_VERSION"));
        let bytes = std::fs::metadata(scratch.join(&file)).expect("it was packed").len();
        assert!((1 << 10..BYTES_MOST).contains(&bytes), "{file} has {bytes} bytes");
    }
    std::fs::remove_dir_all(scratch).unwrap();
}
