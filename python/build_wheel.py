#!/usr/bin/env python3
"""Builds the wheel: the command, both libraries and the Python package in one file for pip.

    python/build_wheel.py [--out DIR] [--zig] [--no-build] [--bin DIR]

    uzswap/                                        the package, for every Python from 3.9 on
    uzswap/libuzswap.so.1                          the library for C, which uzswap.Cache loads
    uzswap-VERSION.data/scripts/uzswap             -> bin/uzswap
    uzswap-VERSION.data/data/lib/uzswap/lib*.so    -> lib/uzswap/, where the command looks for it

The tag says which glibc the compiled files really need: that is read from them. Built on a
distribution it is that one's (2.34 on Debian 12); with --zig (pip install ziglang cargo-zigbuild)
it is 2.28. The same files give the same wheel: times are SOURCE_DATE_EPOCH's.
"""

import argparse
import base64
import hashlib
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "python" / "uzswap"
COMMAND = "uzswap"
# As cargo names them, and as packages and the loader do.
LIBRARY, LIBRARY_PACKED = "libuzswap_preload", "libuzswap_preload.so"
FOR_C, FOR_C_LOADED = "libuzswap.so", "libuzswap.so.1"
COMPILED = (COMMAND, LIBRARY, FOR_C)
ZIG_TARGET = "x86_64-unknown-linux-gnu"
ZIG_GLIBC = "2.28"
# What a manylinux wheel may need beside glibc's own libraries: PEP 600.
ALLOWED = {
    "ld-linux-x86-64.so.2",
    "libc.so.6",
    "libdl.so.2",
    "libgcc_s.so.1",
    "libm.so.6",
    "libpthread.so.0",
}
# The time of every file, if SOURCE_DATE_EPOCH does not say another: November 2023.
EPOCH = 1_700_000_000


def version():
    """The workspace's version, which the package repeats."""

    def find(path, name):
        return re.search(rf'^{name} = "([^"]+)"', path.read_text(), re.MULTILINE).group(1)

    found, said = find(ROOT / "Cargo.toml", "version"), find(PACKAGE / "__init__.py", "__version__")
    if said != found:
        sys.exit(f"python/uzswap/__init__.py says version {said}, Cargo.toml {found}")
    return found


def build(zig):
    """Compiles all three files; the directory where they are."""

    def cargo(verb, *arguments):
        subprocess.run(["cargo", verb, "--release", *arguments], cwd=ROOT, check=True)

    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    if not zig:
        cargo("build", "-p", "uzswap-cli", "-p", "uzswap-clib")
        return target / "release"
    # In a directory of its own: flags of one build would make the other compile everything again.
    old = ["--target", f"{ZIG_TARGET}.{ZIG_GLIBC}"]
    cargo("zigbuild", "-p", "uzswap-cli", "--bin", COMMAND, *old)
    cargo("zigbuild", "-p", "uzswap-clib", *old)
    # zig's linker cannot make it the first of a program, and it needs no glibc, old or new.
    cargo("build", "-p", "uzswap-cli", "--bin", LIBRARY)
    made = target / ZIG_TARGET / "release"
    shutil.copy(target / "release" / LIBRARY, made)
    return made


def needs(path):
    """The libraries that an ELF file needs, and the versions of their symbols."""
    data = path.read_bytes()
    assert data[:6] == b"\x7fELF\x02\x01", f"{path} is no 64-bit ELF file"
    offset, entry, count = *struct.unpack_from("<Q", data, 40), *struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, offset + i * entry) for i in range(count)]

    def text(table, at):
        return data[table[4] + at : data.index(b"\0", table[4] + at)].decode()

    libraries, versions = set(), set()
    for section in sections:
        kind, start, size, link, extra = section[1], section[4], section[5], section[6], section[7]
        if kind == 6:  # SHT_DYNAMIC
            for at in range(start, start + size, 16):
                tag, value = struct.unpack_from("<qQ", data, at)
                if tag == 1:  # DT_NEEDED
                    libraries.add(text(sections[link], value))
        elif kind == 0x6FFFFFFE:  # SHT_GNU_verneed
            at = start
            for _ in range(extra):
                _, parts, _, first, following = struct.unpack_from("<HHIII", data, at)
                part = at + first
                for _ in range(parts):
                    _, _, _, name, next_part = struct.unpack_from("<IHHII", data, part)
                    versions.add(text(sections[link], name))
                    part += next_part
                at += following
    return libraries, versions


def glibc_of(paths):
    """The oldest glibc that has all that the files need."""
    newest = (2, 17)
    for path in paths:
        libraries, versions = needs(path)
        foreign = libraries - ALLOWED
        if foreign:
            names = ", ".join(sorted(foreign))
            sys.exit(f"{path.name} needs {names}, which a manylinux wheel may not")
        for name in versions:
            found = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?", name)
            if found:
                newest = max(newest, tuple(map(int, found.groups())))
            elif name.startswith("GLIBC_"):
                sys.exit(f"{path.name} needs {name}, of which no manylinux tag knows")
    return newest


METADATA = """Metadata-Version: 2.4
Name: uzswap
Version: {version}
Summary: Programs in less memory than they need: cold pages are compressed, the coldest go to disk
License-Expression: MIT OR Apache-2.0
License-File: LICENSE-APACHE
License-File: LICENSE-MIT
Keywords: memory,compression,swap,zswap,notebook
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: 3
Classifier: Programming Language :: Rust
Classifier: Typing :: Typed
Requires-Python: >=3.9
Description-Content-Type: text/markdown

{description}"""


def moment():
    """The time of every file, in seconds since 1970."""
    return int(os.environ.get("SOURCE_DATE_EPOCH", EPOCH))


def metadata(number):
    return METADATA.format(
        version=number, description=(ROOT / "docs" / "python.md").read_text()
    )


def contents(bin_dir, number, tag):
    """Every file of the wheel but RECORD: its name, its bytes, whether it can be executed."""
    for path in sorted(PACKAGE.iterdir()):
        if path.suffix == ".py" or path.name == "py.typed":
            yield f"uzswap/{path.name}", path.read_bytes(), False
    yield f"uzswap/{FOR_C_LOADED}", (bin_dir / FOR_C).read_bytes(), True
    data, info = f"uzswap-{number}.data", f"uzswap-{number}.dist-info"
    yield f"{data}/scripts/{COMMAND}", (bin_dir / COMMAND).read_bytes(), True
    yield f"{data}/data/lib/uzswap/{LIBRARY_PACKED}", (bin_dir / LIBRARY).read_bytes(), True
    yield f"{info}/METADATA", metadata(number).encode(), False
    wheel = f"Wheel-Version: 1.0\nGenerator: uzswap\nRoot-Is-Purelib: false\nTag: {tag}\n"
    yield f"{info}/WHEEL", wheel.encode(), False
    for name in ("LICENSE-APACHE", "LICENSE-MIT"):
        yield f"{info}/licenses/{name}", (ROOT / name).read_bytes(), False


def write(path, files, record):
    """The archive, with the list of what is in it at its end."""
    lines = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:

        def add(name, data, executable):
            entry = zipfile.ZipInfo(name, time.gmtime(moment())[:6])
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if executable else 0o100644) << 16
            archive.writestr(entry, data)

        for name, data, executable in files:
            add(name, data, executable)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            lines.append(f"{name},sha256={digest},{len(data)}\n")
        add(record, "".join([*lines, f"{record},,\n"]).encode(), False)


def pack(bin_dir, out):
    """Makes the wheel of what is compiled; its path."""
    number = version()
    with tempfile.TemporaryDirectory() as scratch:
        stripped = pathlib.Path(scratch)
        for name in COMPILED:
            if not (bin_dir / name).is_file():
                sys.exit(f"{bin_dir} has no {name}: cargo build --release makes it")
            shutil.copy(bin_dir / name, stripped)
            subprocess.run(["strip", "--strip-unneeded", stripped / name], check=True)
        major, minor = glibc_of(stripped / name for name in COMPILED)
        tag = f"py3-none-manylinux_{major}_{minor}_x86_64"
        out.mkdir(parents=True, exist_ok=True)
        wheel = out / f"uzswap-{number}-{tag}.whl"
        write(wheel, contents(stripped, number, tag), f"uzswap-{number}.dist-info/RECORD")
    return wheel


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = options.add_argument
    add("--out", type=pathlib.Path, default=ROOT / "dist", help="where the wheel goes")
    add("--zig", action="store_true", help=f"build for glibc {ZIG_GLIBC}, by cargo-zigbuild")
    add("--no-build", action="store_true", help="take what was compiled before")
    add("--bin", type=pathlib.Path, help="where that is")
    given = options.parse_args()
    compiled = given.bin or (ROOT / "target" / "release" if given.no_build else None)
    print(pack(compiled or build(given.zig), given.out))


if __name__ == "__main__":
    main()
