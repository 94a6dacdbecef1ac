"""The Debian package: installed in an empty root it has all that it says, and works there."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILT = pathlib.Path(os.environ.get("UZSWAP_BUILT", ROOT / "target" / "release"))
sys.path.insert(0, str(ROOT / "python"))

import build_deb  # noqa: E402

USES_THE_LIBRARY = """
#include <stdio.h>
#include <string.h>
#include <uzswap.h>
int main(void) {
    struct uzswap_config config = {.size = sizeof config, .memory_bytes = 1 << 20};
    uzswap_cache *cache;
    char page[4096] = "kept", back[4096];
    if (uzswap_cache_open(&config, &cache) || uzswap_cache_store(cache, 1, 2, page)) return 1;
    if (uzswap_cache_load(cache, 1, 2, back) || memcmp(page, back, sizeof page)) return 2;
    uzswap_cache_close(cache);
    return puts(back) < 0;
}
"""


def call(*command, **more):
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, **more)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done


@unittest.skipUnless(shutil.which("dpkg"), "dpkg is not installed")
@unittest.skipUnless((BUILT / "libuzswap.so").exists(), f"{BUILT} has no libuzswap.so")
class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        cls.place = pathlib.Path(scratch.name)
        cls.file = build_deb.pack(BUILT, cls.place / "one")
        cls.root = cls.place / "root"
        state = cls.root / "var/lib/dpkg"
        for name in ("info", "updates", "triggers"):
            (state / name).mkdir(parents=True)
        (state / "status").touch()
        cls.dpkg = ("dpkg", f"--root={cls.root}", "--log=/dev/null", "--force-depends")
        if os.geteuid() == 0:
            call(*cls.dpkg, "--install", str(cls.file))
        else:
            call("dpkg", "--extract", str(cls.file), str(cls.root))
        # Nothing of the source tree is found by accident.
        hidden = ("UZSWAP_PRELOAD", "UZSWAP_COMMAND", "UZSWAP_LIBRARY")
        cls.environment = {k: v for k, v in os.environ.items() if k not in hidden}

    def test_the_command_finds_its_library(self):
        command = self.root / "usr/bin/uzswap"
        maps = "print('lib/uzswap/libuzswap_preload.so' in open('/proc/self/maps').read())"
        done = call(
            command, "run", "--memory", "64M", "--", sys.executable, "-c", maps,
            env=self.environment, cwd=self.place,
        )
        self.assertEqual(done.stdout, "True\n")
        self.assertIn("of 64 MiB", done.stderr)

    def test_pages_completions_and_licences_are_there(self):
        share = self.root / "usr/share"
        self.assertIn("uzswap-run.1.gz", os.listdir(share / "man/man1"))
        for path in (*build_deb.COMPLETIONS.values(), "usr/share/doc/uzswap/copyright"):
            self.assertGreater((self.root / path).stat().st_size, 100, path)

    @unittest.skipUnless(shutil.which("cc"), "there is no C compiler")
    @unittest.skipUnless(shutil.which("pkg-config"), "pkg-config is not installed")
    def test_a_program_in_c_is_built_and_runs(self):
        libraries = self.root / "usr" / build_deb.LIBRARIES
        environment = {
            **self.environment,
            "PKG_CONFIG_SYSROOT_DIR": str(self.root),
            "PKG_CONFIG_LIBDIR": str(libraries / "pkgconfig"),
            "LD_LIBRARY_PATH": str(libraries),
        }
        flags = call("pkg-config", "--cflags", "--libs", "uzswap", env=environment).stdout.split()
        source, program = self.place / "uses.c", self.place / "uses"
        source.write_text(USES_THE_LIBRARY)
        call("cc", source, "-o", program, *flags, env=environment)
        self.assertEqual(call(program, env=environment).stdout, "kept\n")
        self.assertIn("libuzswap.so.1", build_deb.builder.needs(program)[0])

    def test_the_package_is_well_formed_and_the_same_again(self):
        field = call("dpkg-deb", "--field", str(self.file), "Version", "Depends").stdout
        self.assertIn(f"Version: {build_deb.builder.version()}\n", field)
        self.assertRegex(field, r"libc6 \(>= 2\.\d+\)")
        again = build_deb.pack(BUILT, self.place / "two")
        self.assertEqual(again.read_bytes(), self.file.read_bytes())

    @unittest.skipUnless(os.geteuid() == 0, "only root installs packages")
    def test_files_are_as_listed_and_go_again(self):
        verified = call(*self.dpkg, "--verify", "uzswap").stdout
        self.assertEqual(verified, "")
        other = self.place / "other"
        shutil.copytree(self.root, other, symlinks=True)
        dpkg = [word.replace(str(self.root), str(other)) for word in self.dpkg]
        call(*dpkg, "--purge", "uzswap")
        left = [path for path in other.rglob("*") if "dpkg" not in path.parts and not path.is_dir()]
        self.assertEqual(left, [])


if __name__ == "__main__":
    unittest.main()
