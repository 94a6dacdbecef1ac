#!/usr/bin/env python3
"""Makes all that a release consists of from this checkout, and tries each in a clean place.

    python/release.py [--out DIR] [--zig] [--unchecked] [--check]

    uzswap-VERSION-py3-none-manylinux_*.whl    build_wheel.py   in a new environment, and by uvx
    uzswap-VERSION.tar.gz                      backend.py       pip compiles it, in another
    uzswap_VERSION_amd64.deb                   build_deb.py     installed in an empty root
    uzswap-VERSION-amd64.oci.tar               build_image.py   its layer as /, and read by skopeo
    NAME-VERSION.crate                         cargo package    compiled as packed
    SHA256SUMS                                 last: where it lies, all the others were tried

A release is a commit: the tree is clean, its tag is v and the version, and CHANGELOG.md has a
section of that version and nothing that is unreleased. Else it is refused, in one line; --check
asks no more than that, and --unchecked makes it all the same. A trial that cannot be made here says
SKIPPED, and why.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time

import backend
import build_deb
import build_image
import build_wheel as builder

ROOT = builder.ROOT
# Programs without which nothing can be made, and what brings them.
TOOLS = {
    "cargo": "install Rust, https://rustup.rs",
    "cc": "install gcc",
    "git": "install git",
    "strip": "install binutils",
}
# Places that repeat the workspace's version, the first of all.
VERSION = r'^version = "(.+)"'
VERSIONS = (
    ("Cargo.toml", r'^uzswap = .*version = "(.+?)"'),
    ("Cargo.toml", r'^uzswap-disk = .*version = "(.+?)"'),
    ("Cargo.toml", r'^uzswap-preload = .*version = "(.+?)"'),
    ("python/uzswap/__init__.py", r'^__version__ = "(.+)"'),
    ("crates/clib/include/uzswap.h", r'^#define UZSWAP_VERSION "(.+)"'),
)
# What would lead a trial to files of this tree.
HIDDEN = ("PYTHONPATH", "UZSWAP_PRELOAD", "UZSWAP_COMMAND", "UZSWAP_LIBRARY")
# A managed program has the library in it: without one `run` might start it all the same.
IS_MANAGED = ("grep", "-q", "/libuzswap_preload.so$", "/proc/self/maps")
SEEN_FROM_PYTHON = "import uzswap; assert uzswap.status(), 'not managed'"
# A guard against waiting for ever: pip may compile for many minutes on a small machine.
PATIENCE_S = 3600


def step(name):
    print(f"== {name} ({time.monotonic() - STARTED_S:.0f} s)", flush=True)


def skipped(name, why):
    print(f"SKIPPED {name}: {why}", flush=True)


def call(*command, **more):
    """Runs a command in its place, and returns what it says; one that fails ends the release."""
    more.setdefault("env", {k: v for k, v in os.environ.items() if k not in HIDDEN})
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        **more,
    )
    if done.returncode != 0:
        words = " ".join(map(str, command))
        sys.exit(f"{done.stdout}{done.stderr}\n{words}\nfailed with exit code {done.returncode}")
    return done.stdout


# ---------------------------------------------------------------- may this be released?


def git(*arguments):
    return call("git", "-C", ROOT, *arguments).strip()


def found_in(name, pattern):
    found = re.search(pattern, (ROOT / name).read_text(), re.MULTILINE)
    return found.group(1) if found else "nothing"


def changelog_obstacles(number):
    """What is wrong with the list of changes."""
    text = (ROOT / "CHANGELOG.md").read_text()
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    versions = [re.match(r"\[?([^] \n]*)", section).group(1) for section in sections]
    if versions[:1] == ["Unreleased"]:
        versions.pop(0)
        lines = [line for line in sections[0].splitlines() if line.startswith("- ")]
        remedy = f"give them a section `## {number}`"
        if number in versions:
            remedy = f"{number} has its section, so give them a later version"
        if lines:
            yield f"CHANGELOG.md has {len(lines)} unreleased changes: {remedy}"
    newest = versions[0] if versions else "nothing"
    if newest != number:
        yield f"CHANGELOG.md has {newest} as its newest version: give {number} a section above"


def obstacles():
    """What keeps this checkout from being a release, with what to do; the first things first."""
    number = found_in("Cargo.toml", VERSION)
    for name, pattern in VERSIONS:
        said = found_in(name, pattern)
        if said != number:
            yield f"{name} says version {said}, Cargo.toml {number}: make them one"
    yield from changelog_obstacles(number)
    if not (ROOT / ".git").exists():
        yield f"{ROOT} is no checkout of git: clone the repository, and release from there"
        return
    changed = git("status", "--porcelain").splitlines()
    if changed:
        first = changed[0].split()[-1]
        yield f"files that are not as committed: {len(changed)}, {first} first: commit them"
    tag, tags = f"v{number}", git("tag", "--points-at", "HEAD").split()
    if tag not in tags:
        others = f"only {', '.join(tags)}" if tags else "none"
        remedy = f"git checkout {tag}" if git("tag", "--list", tag) else f"git tag {tag}"
        yield f"HEAD should have the tag {tag}, and has {others}: {remedy}"


def revision():
    """The commit; one with more in its tree says so."""
    if not (ROOT / ".git").exists():
        return None
    changed = git("status", "--porcelain", "--untracked-files=no")
    return git("rev-parse", "HEAD") + ("-dirty" if changed else "")


# ---------------------------------------------------------------- what it consists of


def crates():
    """The names of what may be published."""
    said = call("cargo", "metadata", "--format-version=1", "--no-deps", "--offline", cwd=ROOT)
    return [each["name"] for each in json.loads(said)["packages"] if each["publish"] is None]


def pack_crates(out, scratch, is_checked):
    """Packs the crates; cargo compiles each as it is packed, with none of this tree beside it."""
    names = crates()
    options = ["--offline", "--quiet", "--target-dir", scratch]
    options += [] if is_checked else ["--allow-dirty"]
    for name in names:
        options += ["-p", name]
    call("cargo", "package", *options, cwd=ROOT)
    number = builder.version()
    files = [scratch / "package" / f"{name}-{number}.crate" for name in names]
    return [pathlib.Path(shutil.copy(file, out)) for file in files]


# ---------------------------------------------------------------- each in a clean place


def environment(place):
    """A new virtual environment: its directory of programs."""
    call(sys.executable, "-m", "venv", place)
    return place / "bin"


def try_installed(programs, scratch):
    """Runs the command and the package of an environment."""
    call(programs / "uzswap", "run", "--", "true", cwd=scratch)
    call(programs / "uzswap", "run", "--memory", "64M", "--", *IS_MANAGED, cwd=scratch)
    call(programs / "python", "-m", "uzswap", "-c", SEEN_FROM_PYTHON, cwd=scratch)


def pip(programs, *arguments, **more):
    command = [programs / "python", "-m", "pip", "--disable-pip-version-check"]
    return call(*command, *arguments, "--quiet", **more)


def try_wheel(wheel, scratch):
    programs = environment(scratch / "wheel")
    pip(programs, "install", "--no-index", wheel, cwd=scratch)
    try_installed(programs, scratch)


def try_uvx(wheel, scratch):
    """By uv, of which `uvx` is a short form: from pip, without anything of the user's."""
    programs = environment(scratch / "uv")
    got = subprocess.run(
        [programs / "python", "-m", "pip", "install", "--quiet", "--only-binary=:all:", "uv"],
        capture_output=True,
        text=True,
    )
    if got.returncode != 0:
        why = (got.stderr.strip().splitlines() or ["no reason"])[-1]
        return skipped("uvx", f"pip has no uv: {why}")
    own = {f"UV_{key}": str(scratch / f"uv-{key}") for key in ("CACHE_DIR", "TOOL_DIR")}
    own |= {"UV_PYTHON_DOWNLOADS": "never", "UV_NO_CONFIG": "1"}
    env = {k: v for k, v in os.environ.items() if k not in HIDDEN} | own
    from_wheel = [programs / "uvx", "--offline", "--from", wheel, "uzswap", "run", "--"]
    for program in (["true"], IS_MANAGED):
        call(*from_wheel, *program, cwd=scratch, env=env)


def try_sources(sources, scratch):
    """As pip does it with a registry's archive: it unpacks, compiles and installs."""
    programs = environment(scratch / "sources")
    env = {k: v for k, v in os.environ.items() if k not in HIDDEN}
    env["CARGO_TARGET_DIR"] = str(scratch / "sources-target")
    pip(programs, "install", "--no-index", sources, cwd=scratch, env=env)
    try_installed(programs, scratch)


def furnish(root, names):
    """Puts programs of this machine below `root`, and the libraries that they and ours need."""
    files = [pathlib.Path(shutil.which(name, path="/usr/bin:/bin")) for name in names]
    compiled = [*files, root / "usr/bin/uzswap", root / "usr/lib/uzswap" / builder.LIBRARY_PACKED]
    for file in compiled:
        files += map(pathlib.Path, re.findall(r"(/\S+) \(0x", call("ldd", file)))
    for file in {file for file in files if not file.is_relative_to(root)}:
        to = root / str(file).lstrip("/")
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, to)
    (root / "proc").mkdir(exist_ok=True)


def try_root(name, root):
    """Runs the command where `root` is /, as process 1: nothing of this machine can help."""
    furnish(root, ("grep", "true"))
    inside = ["unshare", "--mount", "--pid", "--fork", f"--root={root}", "--mount-proc=/proc"]
    if os.geteuid() != 0:
        inside.append("--map-root-user")
    env = {"PATH": "/usr/bin:/bin"}
    alone = subprocess.run([*inside, "true"], capture_output=True, text=True, env=env)
    if alone.returncode != 0:
        return skipped(name, f"this machine gives no root of one's own: {alone.stderr.strip()}")
    for program in (["true"], IS_MANAGED):
        call(*inside, "/usr/bin/uzswap", "run", "--in-place", "--", *program, env=env)


def try_deb(package, scratch):
    if shutil.which("dpkg") is None:
        return skipped("the Debian package", "dpkg is not installed")
    root = scratch / "installed"
    state = root / "var/lib/dpkg"
    for name in ("info", "updates", "triggers"):
        (state / name).mkdir(parents=True)
    (state / "status").touch()
    if os.geteuid() != 0:
        call("dpkg", "--extract", package, root)
    else:
        # Nothing is installed there that it could depend on.
        dpkg = ["dpkg", f"--root={root}", "--log=/dev/null", "--force-depends"]
        call(*dpkg, "--install", package)
        wrong = call(*dpkg, "--verify", "uzswap")
        if wrong:
            sys.exit(f"{package.name} does not install what it lists:\n{wrong}")
    try_root("the Debian package", root)


def try_image(image, scratch):
    manifest, _, layer = build_image.manifest_of(image)
    root = scratch / "image"
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(layer))) as tar:
        tar.extractall(root)
    try_root("the image", root)
    if shutil.which("skopeo") is None:
        return skipped("the image, read by others", "skopeo is not installed")
    # As the OCI has it, and as Docker's archives: both are the one layer.
    for kind in ("oci-archive", "docker-archive"):
        copy = scratch / kind
        call("skopeo", "copy", "--insecure-policy", f"{kind}:{image}", f"dir:{copy}")
        read = json.loads((copy / "manifest.json").read_text())
        if len(read["layers"]) != len(manifest["layers"]):
            sys.exit(f"{image.name} as {kind} has {len(read['layers'])} layers, and should have 1")


# ---------------------------------------------------------------- all of it


def sums(files):
    """The list that `sha256sum --check` reads."""
    named = sorted((file.name, hashlib.sha256(file.read_bytes()).hexdigest()) for file in files)
    return "".join(f"{digest}  {name}\n" for name, digest in named)


def release(out, zig, is_checked):
    out.mkdir(parents=True, exist_ok=True)
    (out / "SHA256SUMS").unlink(missing_ok=True)
    commit = revision()
    if commit:
        os.environ.setdefault("SOURCE_DATE_EPOCH", git("log", "-1", "--format=%ct"))
    step("compiling")
    compiled = builder.build(zig)
    step("packing")
    wheel = builder.pack(compiled, out)
    sources = out / backend.build_sdist(out)
    package = build_deb.pack(compiled, out)
    image = build_image.pack(package, out, commit)
    with tempfile.TemporaryDirectory(prefix="uzswap-release-") as place:
        scratch = pathlib.Path(place)
        step("the wheel")
        try_wheel(wheel, scratch)
        try_uvx(wheel, scratch)
        step("the Debian package")
        try_deb(package, scratch)
        step("the image")
        try_image(image, scratch)
        step("the crates")
        packed = pack_crates(out, scratch / "crates", is_checked)
        step("the sources")
        try_sources(sources, scratch)
    list_of_sums = sums([wheel, sources, package, image, *packed])
    (out / "SHA256SUMS").write_text(list_of_sums)
    step("done")
    print(list_of_sums, end="")
    print(f"uzswap@{build_image.manifest_of(image)[1]}")


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = options.add_argument
    add("--out", type=pathlib.Path, default=ROOT / "dist", help="where all of it goes")
    add("--zig", action="store_true", help=f"build for glibc {builder.ZIG_GLIBC}")
    add("--check", action="store_true", help="only say whether this can be released")
    add("--unchecked", action="store_true", help="make what is no release, for a trial")
    given = options.parse_args()
    for name, remedy in TOOLS.items():
        if shutil.which(name) is None:
            sys.exit(f"{name} is missing: {remedy}")
    is_right = True
    for obstacle in obstacles():
        if not given.unchecked:
            sys.exit(f"no release: {obstacle}; --unchecked makes it all the same")
        is_right = False
        print(f"unchecked: {obstacle}", flush=True)
    if not given.check:
        release(given.out.resolve(), given.zig, not given.unchecked)
    elif is_right:
        print(f"{builder.version()} can be released")


STARTED_S = time.monotonic()

if __name__ == "__main__":
    main()
