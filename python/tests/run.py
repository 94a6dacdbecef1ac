"""Runs all tests here, and ends with one line as cargo's tests do, for who counts them."""

import os
import sys
import unittest

here = os.path.dirname(os.path.abspath(__file__))
suite = unittest.defaultTestLoader.discover(here)
result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2).run(suite)
for test, why in result.skipped:
    print(f"SKIPPED {test.id()}: {why}")
skipped = len(result.skipped)
failed = len(result.failures) + len(result.errors)
passed = result.testsRun - failed - skipped
word = "FAILED" if failed else "ok"
print(f"test result: {word}. {passed} passed; {failed} failed; {skipped} ignored")
sys.exit(failed > 0)
