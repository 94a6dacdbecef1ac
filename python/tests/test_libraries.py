"""Libraries with allocators of their own, in half of the memory that they need: the same results.

The programs are those that `uzswap bench programs` measures. What each needs is found out by
running it under uzswap with memory enough. It takes a minute: it runs if UZSWAP_TEST_FULL is set.
"""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "crates/cli/src/bench/programs/scripts"
# Apart from the script's directory, in which polars.py is not polars.
PYTHON = [sys.executable, "-I"]
PATIENCE_SECONDS = 900


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}"
    return done.stdout


def managed(program, *options):
    """A program's output under uzswap, and what its run counted."""
    with tempfile.NamedTemporaryFile("r") as stats:
        options = ["--quiet", "--stats", stats.name, *options]
        return run([*PYTHON, "-m", "uzswap", *options, *program]), json.load(stats)


def load_tests(loader, tests, pattern):
    """Left out as other long tests are, not skipped: nothing is missing here."""
    return tests if os.environ.get("UZSWAP_TEST_FULL") else unittest.TestSuite()


class HalfOfTheNeed(unittest.TestCase):
    def check(self, script, *arguments, packages):
        for package in packages:
            if importlib.util.find_spec(package) is None:
                self.skipTest(f"{package} is not installed")
        program = [str(SCRIPTS / script), *arguments]
        expected = run([*PYTHON, *program])
        self.assertTrue(expected)
        same, ample = managed(program)
        self.assertEqual(same, expected)
        limit = ample["peak_needed_bytes"] // 2
        halved, counted = managed(program, "--memory", str(limit))
        self.assertEqual(halved, expected)
        # It was paged, and what it held is what it was given.
        self.assertGreater(counted["counters"]["evictions"], 0)
        self.assertLess(counted["peak_used_bytes"], limit * 1.1)

    def test_pandas(self):
        self.check("frames.py", "object", "100", packages=["pandas", "pyarrow"])

    def test_pandas_on_arrow(self):
        self.check("frames.py", "arrow", "200", packages=["pandas", "pyarrow"])

    def test_pyarrow(self):
        self.check("arrow.py", "400", packages=["pyarrow"])

    def test_polars(self):
        self.check("polars.py", "300", packages=["polars"])

    def test_scikit_learn(self):
        self.check("forest.py", "40", packages=["sklearn"])


if __name__ == "__main__":
    unittest.main()
