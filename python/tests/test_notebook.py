"""Notebooks: a kernel made by `uzswap jupyter install`, driven as a notebook server drives it."""

import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import unittest

from kernels import MIB, Kernel, Place, eventually

LIMIT_MIB = 96
DOCUMENT = pathlib.Path(__file__).resolve().parents[2] / "docs/python.md"


def resident(pid):
    """Anonymous memory of a process, in bytes."""
    with open(f"/proc/{pid}/statm") as statm:
        _, all_pages, shared, *_ = map(int, statm.read().split())
    return (all_pages - shared) * os.sysconf("SC_PAGE_SIZE")


def load_tests(loader, tests, pattern):
    """Long tests are left out, not skipped: nothing is missing here."""
    if os.environ.get("UZSWAP_TEST_FULL"):
        return tests
    return loader.loadTestsFromTestCase(Notebook)


class Notebook(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = Place()
        cls.addClassCleanup(cls.place.cleanup)
        cls.place.install("--memory", f"{LIMIT_MIB}M", "--idle-after", "2s")
        cls.kernel = Kernel("uzswap-python3")
        cls.addClassCleanup(cls.kernel.stop)

    def test_a_kernel_is_called_as_the_document_says(self):
        text = DOCUMENT.read_text()
        [options] = re.findall(r"^uzswap jupyter install (.*)$", text, re.MULTILINE)
        [name] = re.findall(r'a kernel "(.*?)"', text)
        self.place.install(*shlex.split(options), "--name", "documented")
        self.assertEqual(self.place.read("documented")["display_name"], name)

    def test_a_cell_that_needs_twice_the_limit_gives_the_same(self):
        code = (
            "import hashlib, random\n"
            "rng = random.Random(5)\n"
            f"data = [rng.randbytes(1 << 19) + bytes(1 << 19) for _ in range({2 * LIMIT_MIB})]\n"
            "whole = hashlib.sha256()\n"
            "for _ in range(2):\n"
            "    for piece in data: whole.update(piece)\n"
            "print(whole.hexdigest())\n"
        )
        plain = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        self.assertEqual(self.kernel.cell(code), plain.stdout)
        self.assertLess(resident(self.kernel.pid), (LIMIT_MIB + 16) * MIB)
        self.kernel.cell("del data")

    def test_an_interrupt_arrives_once(self):
        code = (
            "import time\n"
            "count, said = 0, False\n"
            "while True:\n"
            "    try:\n"
            "        if not said:\n"
            "            said = True\n"
            "            print('begins', flush=True)\n"
            "        time.sleep(2 if count else 60)\n"
            "        break\n"
            "    except KeyboardInterrupt:\n"
            "        count += 1\n"
            "print('count', count)\n"
        )
        printed, error = self.kernel.run(code, self.kernel.interrupt)
        self.assertEqual((printed, error), ("begins\ncount 1\n", None))
        # And one that nobody catches ends the cell, not the kernel.
        code = "import time\nprint('begins', flush=True)\ntime.sleep(60)"
        self.assertEqual(self.kernel.run(code, self.kernel.interrupt)[1], "KeyboardInterrupt")
        self.assertEqual(self.kernel.cell("print(6 * 7)"), "42\n")

    def test_it_is_the_process_that_was_started(self):
        printed = self.kernel.cell("import os; print(os.getpid(), os.getppid())")
        self.assertEqual(printed, f"{self.kernel.pid} {os.getpid()}\n")

    def test_the_magic(self):
        self.kernel.cell("%load_ext uzswap")
        self.assertRegex(self.kernel.cell("%uzswap"), rf"of {LIMIT_MIB} MiB: .* compressed")
        self.assertIn("limit 80 MiB", self.kernel.cell("%uzswap 80M"))
        self.assertIn("freed", self.kernel.cell("%uzswap reclaim"))
        self.assertIn("'much'", self.kernel.cell("%uzswap much"))
        self.assertIn(f"limit {LIMIT_MIB} MiB", self.kernel.cell(f"%uzswap {LIMIT_MIB}M"))

    def test_an_idle_kernel_shrinks_and_has_its_bytes(self):
        hashed = self.kernel.cell(
            "import hashlib, random\n"
            "kept = bytearray(random.Random(9).randbytes(1 << 20) * 72)\n"
            "print(hashlib.sha256(kept).hexdigest())\n"
        )
        self.assertGreater(resident(self.kernel.pid), 56 * MIB)
        eventually("it shrinks", lambda: resident(self.kernel.pid) < 40 * MIB)
        self.assertEqual(self.kernel.cell("print(hashlib.sha256(kept).hexdigest())"), hashed)
        self.kernel.cell("del kept")

    def test_restarted_it_has_the_same_limit(self):
        before = self.kernel.pid
        self.kernel.restart()
        self.assertNotEqual(self.kernel.pid, before)
        self.assertEqual(
            self.kernel.cell("import uzswap; print(uzswap.status().limit)"), f"{LIMIT_MIB * MIB}\n"
        )

    def test_killed_it_leaves_nothing(self):
        run = f"{self.place.name}/uzswap/{self.kernel.pid}.sock"
        self.assertTrue(os.path.exists(run))
        os.kill(self.kernel.pid, signal.SIGKILL)
        eventually("the kernel is gone", lambda: not self.kernel.manager.is_alive())
        eventually("its supervisor is gone", lambda: not os.path.exists(run))
        self.kernel.restart()
        self.assertEqual(re.sub(r"\D", "", self.kernel.cell("print(1)")), "1")


# A quarter each of noise, lines, numbers, and pages that are half noise.
MIXED = r"""
import array, hashlib, random
rng, kept = random.Random(9), []
for n in range({quarter}):
    kept.append(rng.randbytes(1 << 20))
    lines = range(n << 15, n + 1 << 15)
    kept.append(b"".join(b"line %07d of a program's log\n" % line for line in lines))
    kept.append(array.array("q", range(n << 17, n + 1 << 17)))
    kept.append(b"".join(rng.randbytes(2048) + bytes(2048) for _ in range(256)))
"""
HASH = """
whole = hashlib.sha256()
for piece in kept: whole.update(piece)
print(whole.hexdigest())
"""


class LargeNotebook(unittest.TestCase):
    def test_a_gibibyte_goes_while_nobody_works_and_is_as_it_was(self):
        place = Place()
        self.addCleanup(place.cleanup)
        # With all of its memory: nothing is paged before it is idle.
        place.install("--memory", "2G", "--idle-after", "2s")
        kernel = Kernel("uzswap-python3")
        self.addCleanup(kernel.stop)
        kernel.cell(MIXED.format(quarter=256))
        hashed = kernel.cell(HASH)
        self.assertGreater(resident(kernel.pid), 1024 * MIB)
        eventually("it shrinks", lambda: resident(kernel.pid) < 40 * MIB)
        self.assertEqual(kernel.cell(HASH), hashed)
        self.assertGreater(resident(kernel.pid), 1024 * MIB)


if __name__ == "__main__":
    unittest.main()
