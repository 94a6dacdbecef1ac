//! The packages that would be published: each crate packs from the tree's own files, with its
//! licences and without a stray file; the image is one that others can read; nothing is released
//! whose version, tag and list of changes do not agree.
//!
//! Nothing is compiled: cargo checks the manifests and writes the archives. `python/release.py`
//! compiles, and tries all of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// Crates that can be published, in the order in which they would be.
const CRATES: [&str; 5] = ["uzswap", "uzswap-disk", "uzswap-preload", "uzswap-cli", "uzswap-clib"];
/// Kinds of files that a crate has. One of another kind is wanted here, or does not belong there.
const KINDS: [&str; 11] = ["rs", "toml", "orig", "lock", "json", "c", "cc", "h", "sh", "css", "js"];
const LICENCES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];
/// The largest package that the registry takes.
const BYTES_MOST: u64 = 10 << 20;

/// An image of a package with one file, made by the builder of both; its path.
const MAKES_AN_IMAGE: &str = r#"
import lzma, pathlib, sys
sys.path.insert(0, sys.argv[1])
import build_deb, build_image
out = pathlib.Path(sys.argv[2])
data = build_deb.archive([("usr", out), ("usr/uzswap", b"odd")])
package = out / "one.deb"
package.write_bytes(build_deb.ar([("a", b"odd"), ("data.tar.xz", lzma.compress(data))]))
print(build_image.pack(package, out, "the commit"))
"#;
/// Files that a release looks at before it makes anything.
const ASKED: [&str; 4] =
    ["Cargo.toml", "CHANGELOG.md", "python/uzswap/__init__.py", "crates/clib/include/uzswap.h"];

/// A directory that goes with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let name = format!("uzswap-packages-{name}-{}", std::process::id());
        let place = std::env::temp_dir().join(name);
        fs::create_dir_all(&place).unwrap();
        Scratch(place)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_string()
}

/// Output of a program that succeeds.
fn said(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|why| panic!("{command:?}: {why}"));
    assert!(output.status.success(), "{command:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Whether the programs are here; a test without them says so.
fn have(programs: &[&str]) -> bool {
    let is_missing = |name: &&&str| Command::new(name).arg("--version").output().is_err();
    let missing = programs.iter().find(is_missing);
    missing.inspect(|name| println!("SKIPPED: {name} is not installed")).is_none()
}

fn cargo(arguments: &[&str]) -> String {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    command.current_dir(ROOT).args(["package", "--offline", "--allow-dirty", "--quiet"]);
    let output = command.args(arguments).output().expect("cargo runs the tests");
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
    let scratch = Scratch::new("crates");
    let target = scratch.0.display().to_string();
    let mut arguments = vec!["--no-verify", "--target-dir", &target];
    CRATES.iter().for_each(|name| arguments.extend(["-p", name]));
    cargo(&arguments);
    for name in CRATES {
        let file = format!("package/{name}-{}.crate", env!("CARGO_PKG_VERSION"));
        let bytes = fs::metadata(scratch.0.join(&file)).expect("it was packed").len();
        assert!((1 << 10..BYTES_MOST).contains(&bytes), "{file} has {bytes} bytes");
    }
}

/// `release.py` packs those whose manifest does not forbid it.
#[test]
fn all_that_may_be_published_is_packed_here() {
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let arguments = ["metadata", "--format-version=1", "--no-deps", "--offline"];
    let metadata = said(Command::new(cargo).args(arguments).current_dir(ROOT));
    let metadata: Value = serde_json::from_str(&metadata).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let published = packages.iter().filter(|package| package["publish"].is_null());
    let published: BTreeSet<_> = published.map(|p| p["name"].as_str().unwrap()).collect();
    assert_eq!(published, BTreeSet::from(CRATES));
}

// ---------------------------------------------------------------- images

/// The document's recipe is tested by `tests/contained.rs`.
#[test]
fn the_containerfile_is_the_recipe() {
    let lines = |text: &str| -> Vec<String> {
        let is_code = |line: &&str| !line.is_empty() && !line.starts_with('#');
        text.lines().filter(is_code).map(str::to_string).collect()
    };
    let document = fs::read_to_string(format!("{ROOT}/docs/containers.md")).unwrap();
    let (_, recipe) = document.split_once("```dockerfile\n").expect("the document has a recipe");
    let file = fs::read_to_string(format!("{ROOT}/Containerfile")).unwrap();
    assert_eq!(lines(&file), lines(recipe.split_once("```").unwrap().0));
}

/// Each blob is what its name and those that refer to it say, and the layer has the files.
#[test]
fn an_image_can_be_read_by_others() {
    if !have(&["python3", "sha256sum", "tar", "gzip"]) {
        return;
    }
    let scratch = Scratch::new("image");
    let make = || {
        let mut python = Command::new("python3");
        python.args(["-c", MAKES_AN_IMAGE]).arg(format!("{ROOT}/python")).arg(&scratch.0);
        PathBuf::from(said(python.env_remove("SOURCE_DATE_EPOCH")))
    };
    let image = make();
    let bytes = fs::read(&image).unwrap();
    assert!(fs::read(make()).unwrap() == bytes, "another image of the same package");
    let root = scratch.0.join("layout");
    fs::create_dir(&root).unwrap();
    said(Command::new("tar").arg("-xf").arg(&image).current_dir(&root));

    let json = |path: &Path| -> Value {
        serde_json::from_slice(&fs::read(path).unwrap()).expect("it is JSON")
    };
    let sum = |path: &Path| {
        let line = said(Command::new("sha256sum").arg(path));
        line.split(' ').next().unwrap().to_string()
    };
    let mut seen = BTreeSet::new();
    let mut blob = |entry: &Value| -> PathBuf {
        let digest = entry["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
        let path = root.join("blobs/sha256").join(digest);
        assert_eq!(sum(&path), digest);
        assert_eq!(entry["size"], fs::metadata(&path).unwrap().len());
        seen.insert(path.clone());
        path
    };
    assert_eq!(json(&root.join("oci-layout"))["imageLayoutVersion"], "1.0.0");
    let index = json(&root.join("index.json"));
    let manifest = json(&blob(&index["manifests"][0]));
    let config = json(&blob(&manifest["config"]));
    let layer = blob(&manifest["layers"][0]);
    assert_eq!(fs::read_dir(root.join("blobs/sha256")).unwrap().count(), seen.len());
    let annotation =
        |key: &str| &manifest["annotations"][format!("org.opencontainers.image.{key}")];
    assert_eq!(annotation("version"), env!("CARGO_PKG_VERSION"));
    assert_eq!(annotation("revision"), "the commit");

    let unpacked = scratch.0.join("layer.tar");
    fs::copy(&layer, unpacked.with_extension("tar.gz")).unwrap();
    said(Command::new("gzip").arg("-d").arg(unpacked.with_extension("tar.gz")));
    assert_eq!(config["rootfs"]["diff_ids"][0], format!("sha256:{}", sum(&unpacked)));
    let listed = said(Command::new("tar").arg("-tf").arg(&unpacked));
    assert_eq!(listed.lines().collect::<Vec<_>>(), ["./usr/", "./usr/uzswap"]);
    // Docker's own form names two of the blobs.
    let docker = &json(&root.join("manifest.json"))[0];
    assert_eq!(json(&root.join(docker["Config"].as_str().unwrap())), config);
    assert_eq!(root.join(docker["Layers"][0].as_str().unwrap()), layer);
}

// ---------------------------------------------------------------- releases

/// A repository with as much of the tree as `release.py --check` reads.
struct Checkout(Scratch);

impl Checkout {
    fn new() -> Checkout {
        let checkout = Checkout(Scratch::new("release"));
        let python = fs::read_dir(format!("{ROOT}/python")).unwrap();
        let python = python.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let scripts = python.filter(|name| name.ends_with(".py")).map(|n| format!("python/{n}"));
        for name in scripts.chain(ASKED.map(str::to_string)) {
            let to = checkout.0.0.join(&name);
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(Path::new(ROOT).join(&name), to).unwrap();
        }
        checkout.git(&["init", "--quiet"]);
        checkout
    }

    fn git(&self, arguments: &[&str]) -> String {
        let who =
            ["-c", "user.name=a", "-c", "user.email=a@localhost", "-c", "commit.gpgsign=false"];
        said(Command::new("git").args(who).args(arguments).current_dir(&self.0.0))
    }

    fn commit(&self) {
        self.git(&["add", "."]);
        self.git(&["commit", "--quiet", "--message", "All"]);
    }

    /// Puts other text into a file.
    fn edit(&self, name: &str, edited: impl Fn(&str) -> String) {
        let path = self.0.0.join(name);
        let before = fs::read_to_string(&path).unwrap();
        let after = edited(&before);
        assert_ne!(before, after, "{name}");
        fs::write(path, after).unwrap();
    }

    fn check(&self, options: &[&str]) -> Output {
        let mut python = Command::new("python3");
        // Compiled modules would be files that are not as committed.
        python.env("PYTHONDONTWRITEBYTECODE", "1").current_dir(&self.0.0);
        python.args(["python/release.py", "--check"]).args(options).output().unwrap()
    }

    /// Asserts that the release is refused in one line with all these words.
    fn is_refused(&self, words: &[&str]) {
        let output = self.check(&[]);
        let why = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{why}");
        assert_eq!(why.lines().count(), 1, "{why}");
        for word in words.iter().chain(&["--unchecked"]) {
            assert!(why.contains(word), "no {word:?} in: {why}");
        }
    }
}

#[test]
fn a_release_is_refused_until_all_agree() {
    if !have(&["python3", "git", "cargo", "cc", "strip"]) {
        return;
    }
    let version = env!("CARGO_PKG_VERSION");
    let checkout = Checkout::new();
    checkout.edit("python/uzswap/__init__.py", |text| text.replace(version, "77.0.0"));
    checkout.is_refused(&["__init__.py says version 77.0.0", version]);
    checkout.edit("python/uzswap/__init__.py", |text| text.replace("77.0.0", version));
    let changes = "# Changelog\n\n## Unreleased\n\n- One.\n- Two.\n\n## 0.0.1\n\n- Old.\n";
    checkout.edit("CHANGELOG.md", |_| changes.to_string());
    checkout.is_refused(&["2 unreleased changes", &format!("`## {version}`")]);
    checkout.edit("CHANGELOG.md", |text| text.replace("0.0.1", version));
    checkout.is_refused(&["2 unreleased changes", &format!("{version} has its section")]);
    checkout.edit("CHANGELOG.md", |text| text.replace(version, "0.0.1"));
    checkout.edit("CHANGELOG.md", |text| text.replace("## Unreleased\n\n- One.\n- Two.\n\n", ""));
    checkout.is_refused(&["0.0.1", &format!("give {version} a section")]);
    let section = format!("## Unreleased\n\n## [{version}] - 2026-01-01\n\n- One.\n\n## 0.0.1");
    checkout.edit("CHANGELOG.md", |text| text.replace("## 0.0.1", &section));
    checkout.is_refused(&["files that are not as committed", "commit them"]);
    checkout.commit();
    checkout.is_refused(&[&format!("git tag v{version}")]);
    checkout.git(&["tag", "v77.0.0"]);
    checkout.is_refused(&["only v77.0.0", &format!("git tag v{version}")]);
    checkout.git(&["tag", &format!("v{version}")]);
    let output = checkout.check(&[]);
    assert!(output.status.success(), "{}", text(&output.stderr));

    // A file more; and a commit after the tag.
    fs::write(checkout.0.0.join("new.txt"), "new").unwrap();
    checkout.is_refused(&["not as committed: 1, new.txt"]);
    checkout.commit();
    checkout.is_refused(&[&format!("git checkout v{version}")]);
    let output = checkout.check(&["--unchecked"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let let_pass = text(&output.stdout);
    assert!(
        let_pass.contains(&format!("unchecked: HEAD should have the tag v{version}")),
        "{let_pass}"
    );
}
