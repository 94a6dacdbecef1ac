"""A notebook in a container's hard limit: the kernel that dies there lives under uzswap.

Both kernels run the same cells in memory groups of the same size, in which nothing is swapped. The
kernel with its supervisor, and all that the two hold, counts.
"""

import subprocess
import sys
import unittest

from group import Group, Unavailable
from kernels import MIB, Died, Kernel, Place

GROUP_MIB = 128
# What remains is the supervisor's, and the kernel's for files that both have open.
LIMIT_MIB = 96
DATA_MIB = 2 * GROUP_MIB

# Half of each piece is noise that no codec makes smaller: it has to go to the disk.
MAKE = (
    "import hashlib, random\n"
    "rng = random.Random(5)\n"
    f"data = [rng.randbytes(1 << 19) + bytes(1 << 19) for _ in range({DATA_MIB})]\n"
)
HASH = (
    "whole = hashlib.sha256()\n"
    "for piece in data: whole.update(piece)\n"
    "print(whole.hexdigest())\n"
)
# Touches all of the data until it is interrupted, and says how often that was: another interrupt
# would come in the second after it. All of it is in the try, since printing waits and can be
# interrupted, too.
LOOP = (
    "import time\n"
    "count = 0\n"
    "for turn in range(1000):\n"
    "    try:\n"
    "        if turn == 0: print('begins', flush=True)\n"
    "        for piece in data: piece.count(b'x')\n"
    "        if count: break\n"
    "    except KeyboardInterrupt:\n"
    "        count += 1\n"
    "        try: time.sleep(1)\n"
    "        except KeyboardInterrupt: count += 1\n"
    "print('count', count)\n"
)


class HardLimit(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = Place()
        cls.addClassCleanup(cls.place.cleanup)
        cls.place.install("--memory", f"{LIMIT_MIB}M")
        plain = subprocess.run(
            [sys.executable, "-c", MAKE + HASH], capture_output=True, text=True, check=True
        )
        cls.expected = plain.stdout

    def start(self, kernel):
        """A kernel in a group of its own; it is in there before it is anything else."""
        try:
            group = Group(kernel, GROUP_MIB * MIB)
        except Unavailable as why:
            self.skipTest(str(why))
        self.addCleanup(group.close)
        spec = self.place.read(kernel)
        enter = f'echo $$ >{group.members_file} && exec "$@"'
        spec["argv"] = ["/bin/sh", "-c", enter, "enter", *spec["argv"]]
        self.place.write(f"grouped-{kernel}", spec)
        started = Kernel(f"grouped-{kernel}")
        self.addCleanup(started.stop)
        self.assertIn(started.pid, group.members())
        return started, group

    def test_without_uzswap_the_kernel_dies(self):
        kernel, group = self.start("python3")
        with self.assertRaises(Died):
            kernel.run(MAKE + HASH)
        self.assertEqual(group.kills, 1)

    def test_under_uzswap_it_lives_is_interrupted_and_restarted(self):
        kernel, group = self.start("uzswap-python3")
        first = kernel.pid
        self.assertEqual(kernel.cell(MAKE + HASH), self.expected)
        # An interrupt in the midst of paging arrives once, and no byte is lost by it.
        self.assertEqual(kernel.run(LOOP, kernel.interrupt), ("begins\ncount 1\n", None))
        self.assertEqual(kernel.cell(HASH), self.expected)
        self.assertEqual(kernel.pid, first)
        kernel.restart()
        self.assertNotEqual(kernel.pid, first)
        self.assertIn(kernel.pid, group.members())
        self.assertEqual(kernel.run("data"), ("", "NameError"))
        self.assertEqual(kernel.cell(MAKE + HASH), self.expected)
        self.assertEqual(group.kills, 0)


if __name__ == "__main__":
    unittest.main()
