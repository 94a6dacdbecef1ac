"""Notebooks: a kernel made by `uzswap jupyter install`, driven as a notebook server drives it."""

import os
import re
import signal
import subprocess
import sys
import unittest

from kernels import MIB, Kernel, Place, eventually

LIMIT_MIB = 96


def resident(pid):
    """Anonymous memory of a process, in bytes."""
    with open(f"/proc/{pid}/statm") as statm:
        _, all_pages, shared, *_ = map(int, statm.read().split())
    return (all_pages - shared) * os.sysconf("SC_PAGE_SIZE")


class Notebook(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = Place()
        cls.addClassCleanup(cls.place.cleanup)
        cls.place.install("--memory", f"{LIMIT_MIB}M", "--idle-after", "2s")
        cls.kernel = Kernel("uzswap-python3")
        cls.addClassCleanup(cls.kernel.stop)

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


if __name__ == "__main__":
    unittest.main()
