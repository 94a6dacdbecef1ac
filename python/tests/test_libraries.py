"""Libraries with allocators of their own, in half of the memory that they need: the same results.

What a program needs is found out by running it under uzswap with memory enough. Those that
`uzswap bench programs` measures take a minute: they run if UZSWAP_TEST_FULL is set, beside a small
one of pandas, which runs always.
"""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "crates/lab/src/programs/scripts"
# Apart from the script's directory, in which polars.py is not polars.
PYTHON = [sys.executable, "-I"]
PATIENCE_SECONDS = 900
# Scripts and their arguments.
LONG = {
    "pandas": ("frames.py", "object", "100"),
    "pandas on Arrow": ("frames.py", "arrow", "200"),
    "PyArrow": ("arrow.py", "400"),
    "polars": ("polars.py", "300"),
    "scikit-learn": ("forest.py", "40"),
}

# Needs 120 MiB. With less data, half of the need would be less than the libraries themselves use
# all the time, and the program would do little but page.
SMALL = """
import hashlib
import numpy, pandas

index = numpy.arange(1_200_000)
frame = pandas.DataFrame({
    "key": index * 7919 % 1009, "amount": index * 40503 % 9973, "price": index % 4096 / 8,
})
frame["cost"] = frame["amount"] * frame["price"]
by_key = frame.groupby("key").agg({"amount": "sum", "price": "max"})
dear = frame[frame["cost"] > 2_500_000].sort_values(["cost", "key", "amount"], kind="stable")
joined = dear.merge(by_key, left_on="key", right_index=True)
for table in (by_key, dear, joined):
    print(len(table), hashlib.sha256(table.to_numpy().tobytes()).hexdigest())
"""


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
    """Long tests are left out, not skipped: nothing is missing here."""
    if os.environ.get("UZSWAP_TEST_FULL"):
        return tests
    return unittest.TestSuite(map(loader.loadTestsFromTestCase, (Scripts, SmallProgram)))


class Scripts(unittest.TestCase):
    def test_the_programs_are_where_they_are_looked_for(self):
        # Here too, since the long tests run by night only.
        names = {script for script, *_ in LONG.values()}
        missing = [name for name in sorted(names) if not (SCRIPTS / name).is_file()]
        self.assertEqual(missing, [], SCRIPTS)


class HalfOfTheNeed:
    """How a program is tried, for the classes of tests below."""

    def check(self, program, packages):
        for package in packages:
            if importlib.util.find_spec(package) is None:
                self.skipTest(f"{package} is not installed")
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


class SmallProgram(HalfOfTheNeed, unittest.TestCase):
    def test_pandas(self):
        self.check(["-c", SMALL], ["pandas"])


class LongPrograms(HalfOfTheNeed, unittest.TestCase):
    def check_script(self, name, packages):
        script, *arguments = LONG[name]
        self.check([str(SCRIPTS / script), *arguments], packages)

    def test_pandas(self):
        self.check_script("pandas", ["pandas", "pyarrow"])

    def test_pandas_on_arrow(self):
        self.check_script("pandas on Arrow", ["pandas", "pyarrow"])

    def test_pyarrow(self):
        self.check_script("PyArrow", ["pyarrow"])

    def test_polars(self):
        self.check_script("polars", ["polars"])

    def test_scikit_learn(self):
        self.check_script("scikit-learn", ["sklearn"])


if __name__ == "__main__":
    unittest.main()
