#!/usr/bin/env python3
"""Builds the Debian package: what the wheel brings, where Debian has it, and the library for C.

    python/build_deb.py [--out DIR] [--no-build] [--bin DIR]

    usr/bin/uzswap, usr/lib/uzswap/libuzswap_preload.so     the command, and where it looks
    usr/lib/x86_64-linux-gnu/libuzswap.so.1, pkgconfig/     by crates/clib/install.sh
    usr/include/uzswap.h
    usr/share/man/man1/uzswap*.1.gz, and completions        by `uzswap generate`
    usr/share/doc/uzswap/                                   licences, changes

A .deb is an `ar` archive of two tar files: written here, so that any machine with Python can. It
depends on the glibc that the compiled files need, which is read from them. The same files give the
same package: times are SOURCE_DATE_EPOCH's.
"""

import argparse
import gzip
import hashlib
import io
import lzma
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile

import build_wheel as builder

ROOT = builder.ROOT
# Where Debian has libraries of this processor.
LIBRARIES = "lib/x86_64-linux-gnu"
# How an `ar` archive begins, and what stands before each member: name, time, ..., size.
MAGIC, HEAD_BYTES = b"!<arch>\n", 60
# The member with all that is installed.
DATA = "data.tar.xz"

CONTROL = """Package: uzswap
Version: {version}
Architecture: amd64
Maintainer: uzswap <uzswap@users.noreply.github.com>
Installed-Size: {kib}
Depends: libc6 (>= {glibc}), libgcc-s1
Section: utils
Priority: optional
Homepage: https://github.com/uzswap/uzswap
Description: programs in less memory than they need, without root
 Cold pages of a program, or of a tree of programs, are compressed in RAM; the
 coldest go to disk, encrypted. It is zswap in user space: no module of the
 kernel, no right and no change to the program is needed.
 .
 The cache of compressed pages is a library, too (libuzswap.so.1, uzswap.h).
"""

COPYRIGHT = """Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: uzswap
Source: https://github.com/uzswap/uzswap

Files: *
Copyright: the authors of uzswap
License: MIT or Apache-2.0
Comment: The texts are LICENSE-MIT and LICENSE-APACHE beside this file.
"""

# What `uzswap generate` makes for each shell, and where that looks for it.
COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/uzswap",
    "zsh": "usr/share/zsh/vendor-completions/_uzswap",
    "fish": "usr/share/fish/vendor_completions.d/uzswap.fish",
}


def pressed(data):
    """By gzip, without a time in it."""
    return gzip.compress(data, 9, mtime=0)


def stage(bin_dir, tree):
    """Puts all files into `tree` as they are to lie below /; the oldest glibc that has enough."""
    for name in builder.COMPILED:
        if not (bin_dir / name).is_file():
            sys.exit(f"{bin_dir} has no {name}: cargo build --release makes it")

    def put(path, data, mode=0o644):
        path = tree / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(mode)

    for name, path in (
        (builder.COMMAND, "usr/bin/uzswap"),
        (builder.LIBRARY, f"usr/lib/uzswap/{builder.LIBRARY_PACKED}"),
    ):
        # Static programs are started by the library: it can be executed, too.
        put(path, (bin_dir / name).read_bytes(), 0o755)
        subprocess.run(["strip", "--strip-unneeded", tree / path], check=True)
    for_c = ["sh", ROOT / "crates/clib/install.sh", "/usr", "--built", bin_dir]
    environment = {**os.environ, "DESTDIR": str(tree)}
    subprocess.run(
        [*for_c, "--libdir", LIBRARIES],
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    # Ten times as large as all else, for a few who link it statically: they have install.sh.
    (tree / "usr" / LIBRARIES / "libuzswap.a").unlink()

    command = tree / "usr/bin/uzswap"
    with tempfile.TemporaryDirectory() as pages:
        subprocess.run([command, "generate", "man", pages], check=True)
        for page in pathlib.Path(pages).iterdir():
            put(f"usr/share/man/man1/{page.name}.gz", pressed(page.read_bytes()))
    for shell, path in COMPLETIONS.items():
        put(path, subprocess.run([command, "generate", shell], check=True, stdout=-1).stdout)
    documents = "usr/share/doc/uzswap"
    put(f"{documents}/copyright", COPYRIGHT.encode())
    put(f"{documents}/changelog.gz", pressed((ROOT / "CHANGELOG.md").read_bytes()))
    for name in ("LICENSE-APACHE", "LICENSE-MIT", "README.md"):
        put(f"{documents}/{name}", (ROOT / name).read_bytes())
    compiled = [command, tree / "usr/lib/uzswap" / builder.LIBRARY_PACKED]
    compiled.append(tree / "usr" / LIBRARIES / builder.FOR_C_LOADED)
    return builder.glibc_of(compiled)


def files_of(tree):
    """Every directory, file and link of a tree, parents first."""
    return sorted(tree.rglob("*"), key=lambda path: path.relative_to(tree).parts)


def archive(entries):
    """A tar file of (name, path or bytes), all root's."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, content in entries:
            entry = tarfile.TarInfo(f"./{name}")
            entry.mtime, entry.mode = builder.moment(), 0o644
            entry.uname = entry.gname = "root"
            if isinstance(content, bytes):
                data = content
            elif content.is_symlink():
                entry.type, entry.mode, data = tarfile.SYMTYPE, 0o777, b""
                entry.linkname = os.readlink(content)
            elif content.is_dir():
                entry.type, entry.mode, data = tarfile.DIRTYPE, 0o755, b""
            else:
                data = content.read_bytes()
                entry.mode = 0o755 if os.access(content, os.X_OK) else 0o644
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def control_of(tree, number, glibc):
    """The files that say what the package is."""
    files = [path for path in files_of(tree) if path.is_file() and not path.is_symlink()]
    sizes = sum(-(-path.stat().st_size // 1024) for path in files)
    text = CONTROL.format(version=number, kib=sizes, glibc=".".join(map(str, glibc)))
    md5 = lambda path: hashlib.md5(path.read_bytes()).hexdigest()
    sums = "".join(f"{md5(path)}  {path.relative_to(tree)}\n" for path in files)
    # The loader's cache is made anew, as for any library.
    triggers = "activate-noawait ldconfig\n"
    return {"control": text, "md5sums": sums, "triggers": triggers}


def ar(members):
    """An archive of named members, as `ar` and dpkg read it."""
    packed = MAGIC
    for name, data in members:
        head = f"{name:<16}{builder.moment():<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n"
        packed += head.encode() + data + b"\n" * (len(data) % 2)
    return packed


def data_of(package):
    """The tar file of what a package installs: what an image has of it, too."""
    packed, at = package.read_bytes(), len(MAGIC)
    while at < len(packed):
        name, size = packed[at : at + 16].decode().strip(), int(packed[at + 48 : at + 58])
        at += HEAD_BYTES
        if name == DATA:
            return lzma.decompress(packed[at : at + size])
        at += size + size % 2
    sys.exit(f"{package} has no {DATA}: python/build_deb.py makes one that has")


def pack(bin_dir, out):
    """Makes the package of what is compiled; its path."""
    number = builder.version()
    with tempfile.TemporaryDirectory() as scratch:
        tree = pathlib.Path(scratch)
        glibc = stage(bin_dir, tree)
        control = control_of(tree, number, glibc)
        data = archive((path.relative_to(tree), path) for path in files_of(tree))
    out.mkdir(parents=True, exist_ok=True)
    package = out / f"uzswap_{number}_amd64.deb"
    inner = archive((name, text.encode()) for name, text in sorted(control.items()))
    members = [("debian-binary", b"2.0\n"), ("control.tar.gz", pressed(inner))]
    package.write_bytes(ar([*members, (DATA, lzma.compress(data))]))
    return package


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = options.add_argument
    add("--out", type=pathlib.Path, default=ROOT / "dist", help="where the package goes")
    add("--no-build", action="store_true", help="take what was compiled before")
    add("--bin", type=pathlib.Path, help="where that is")
    given = options.parse_args()
    if shutil.which("strip") is None:
        sys.exit("strip is missing: install binutils")
    compiled = given.bin or (ROOT / "target" / "release" if given.no_build else None)
    print(pack(compiled or builder.build(False), given.out))


if __name__ == "__main__":
    main()
