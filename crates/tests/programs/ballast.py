"""Runs a module as `python3 -m MODULE ARGS...` does, with live memory beside it that keeps the
pager busy.

    ballast.py MIB MODULE ARGS...

Library tests are small: alone, most of them fit into any limit in which an interpreter can start.
So MIB of live objects are made first, and before each test a part of them is read, which pushes out
what the tests use. The objects are checked: a wrong one ends the run.
"""
import os
import runpy
import sys
import unittest

PARTS = 8
OBJECT_BYTES = 400  # a small object of the interpreter's own allocator, not a mapping


class Ballast:
    def __init__(self, mib):
        count = (mib << 20) // OBJECT_BYTES
        self.parts = [
            [b"%0360d" % (part * count + i) for i in range(count // PARTS)] for part in range(PARTS)
        ]
        self.firsts = [part * count for part in range(PARTS)]
        self.next = 0
        self.pid = os.getpid()

    def read(self):
        """Reads and checks the next part. Forked children leave it alone."""
        if os.getpid() != self.pid:
            return
        part, self.next = self.next, (self.next + 1) % PARTS
        first = self.firsts[part]
        for i, object in enumerate(self.parts[part]):
            if i % 8 == 0 and int(object) != first + i:  # some 3 KiB apart
                os.write(2, b"ballast: wrong bytes in object %d\n" % (first + i))
                os._exit(9)


def main():
    mib, module = int(sys.argv[1]), sys.argv[2]
    ballast = Ballast(mib)
    sys.argv[:3] = [module]
    if module == "pytest":
        import pytest

        class Plugin:
            @staticmethod
            def pytest_runtest_setup(item):
                ballast.read()

        sys.exit(pytest.main(sys.argv[1:], plugins=[Plugin]))

    run = unittest.TestCase.run

    def run_after_reading(self, result=None):
        ballast.read()
        return run(self, result)

    unittest.TestCase.run = run_after_reading
    sys.path[0] = os.getcwd()  # as with -m
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
