"""What pip calls to build uzswap from its sources (PEP 517): `pip install .`, `pip wheel .`.

    --config-settings bin=DIR    takes what cargo has made before, and compiles nothing
    --config-settings zig=1      builds for an older glibc, by cargo-zigbuild

The work is build_wheel.py's.
"""

import gzip
import io
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tarfile

import build_wheel as builder

# Directories that what builds or tests leaves behind; no part of the sources.
_LEFT_BEHIND = {".git", "__pycache__", "bench-corpus", "bench-results", "dist"}


def _refuse_elsewhere():
    """Says before a long build that its result could not be used."""
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        sys.exit(f"uzswap runs on Linux on x86_64, not on {sys.platform} on {platform.machine()}")
    libc = platform.libc_ver()[0]
    if libc != "glibc":
        sys.exit(f"uzswap takes over programs of glibc; this Python is of {libc or 'another libc'}")


def _compiled(settings):
    """The directory of the compiled files."""
    if "bin" in settings:
        return pathlib.Path(settings["bin"]).resolve()
    for program, remedy in (("cargo", "install Rust, https://rustup.rs"), ("cc", "install gcc")):
        if shutil.which(program) is None:
            sys.exit(f"uzswap is built with {program}, which is not here: {remedy}")
    return builder.build(bool(settings.get("zig")))


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    _refuse_elsewhere()
    compiled = _compiled(config_settings or {})
    return builder.pack(compiled, pathlib.Path(wheel_directory)).name


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    """The name and version, for which nothing needs to be compiled."""
    _refuse_elsewhere()
    number = builder.version()
    info = pathlib.Path(metadata_directory, f"uzswap-{number}.dist-info")
    info.mkdir()
    (info / "METADATA").write_text(builder.metadata(number))
    return info.name


def _sources():
    """The files of the tree: those that git knows, or all where an archive was unpacked."""
    if (builder.ROOT / ".git").exists():
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=builder.ROOT, check=True, capture_output=True
        )
        names = os.fsdecode(listed.stdout).split("\0")
        return sorted(name for name in names if name and (builder.ROOT / name).is_file())
    found = []
    for directory, below, files in os.walk(builder.ROOT):
        is_source = lambda name: name not in _LEFT_BEHIND and not name.startswith("target")
        below[:] = filter(is_source, below)
        found += [os.path.relpath(os.path.join(directory, name), builder.ROOT) for name in files]
    # Made anew with each archive.
    return sorted(set(found) - {"PKG-INFO"})


def build_sdist(sdist_directory, config_settings=None):
    """The sources in one archive; the same files give the same archive."""
    number = builder.version()
    base = f"uzswap-{number}"
    path = pathlib.Path(sdist_directory, f"{base}.tar.gz")
    packed = gzip.GzipFile(path, "wb", mtime=builder.moment())
    with packed, tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:

        def add(name, data, mode):
            entry = tarfile.TarInfo(f"{base}/{name}")
            entry.size, entry.mode, entry.mtime = len(data), mode, builder.moment()
            archive.addfile(entry, io.BytesIO(data))

        for name in _sources():
            file = builder.ROOT / name
            add(name, file.read_bytes(), 0o755 if os.access(file, os.X_OK) else 0o644)
        add("PKG-INFO", builder.metadata(number).encode(), 0o644)
    return path.name
