"""The wheel for an older glibc, by zig's linker. All is compiled once more, so it is made only if
UZSWAP_TEST_FULL is set. Needs cargo, and `pip install ziglang cargo-zigbuild` in this
environment.
"""

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import venv

BUILDER = pathlib.Path(__file__).resolve().parents[1] / "build_wheel.py"
PROGRAMS = pathlib.Path(sys.executable).parent
IS_MANAGED = "import uzswap; assert uzswap.status(), 'not managed'"
HOLDS_A_PAGE = "import uzswap; c = uzswap.Cache('1M'); c[1] = b'x' * 4096; assert c[1][0] == 120"
# A guard against waiting for ever: a small machine compiles for many minutes.
PATIENCE_SECONDS = 3600


class Wheel(unittest.TestCase):
    def setUp(self):
        if not os.environ.get("UZSWAP_TEST_FULL"):
            self.skipTest("it compiles everything: UZSWAP_TEST_FULL=1 does")
        self.env = dict(os.environ, PATH=f"{PROGRAMS}:{os.environ.get('PATH', '')}")
        for program in ("cargo", "cargo-zigbuild"):
            if shutil.which(program, path=self.env["PATH"]) is None:
                self.skipTest(f"{program} is not installed")
        if importlib.util.find_spec("ziglang") is None:
            self.skipTest("ziglang is not installed")

    def call(self, *command, **more):
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=PATIENCE_SECONDS, **more,
        )
        self.assertEqual(done.returncode, 0, f"{command}\n{done.stdout}")
        return done.stdout

    def test_a_wheel_for_an_older_glibc_is_made_and_works(self):
        with tempfile.TemporaryDirectory() as place:
            out = pathlib.Path(place)
            # The interpreter of this environment, whose zig it is.
            self.call(sys.executable, BUILDER, "--zig", "--out", out, env=self.env)
            (wheel,) = out.glob("*.whl")
            self.assertTrue(wheel.name.endswith("-py3-none-manylinux_2_28_x86_64.whl"), wheel.name)
            venv.create(out / "env", with_pip=True)
            python = out / "env/bin/python"
            self.call(python, "-m", "pip", "install", "--quiet", "--no-index", wheel, cwd=out)
            self.call(out / "env/bin/uzswap", "run", "--memory", "64M", "--", "true", cwd=out)
            self.call(python, "-m", "uzswap", "-c", IS_MANAGED, cwd=out)
            self.call(python, "-c", HOLDS_A_PAGE, cwd=out)


if __name__ == "__main__":
    unittest.main()
