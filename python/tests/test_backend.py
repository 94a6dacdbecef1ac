"""The build by pip: where uzswap cannot run it says so in one line, before anything is compiled."""

import pathlib
import sys
import tempfile
import unittest
from unittest import mock

# Behind all others: the package that other tests import is the installed one.
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))

import backend  # noqa: E402


def machine(system, processor, libc):
    """A machine, as far as the backend looks at it."""
    patched = mock.patch.multiple(
        backend.platform, machine=lambda: processor, libc_ver=lambda: (libc, "")
    )
    return mock.patch.object(backend.sys, "platform", system), patched


class Refusal(unittest.TestCase):
    def refusal(self, call, *here):
        """What a build says on such a machine, where nothing may be begun."""
        begins = AssertionError("something was begun")
        never = mock.Mock(side_effect=begins)
        begun = mock.patch.multiple(backend.builder, build=never, pack=never, version=never)
        system, platform = machine(*here)
        with tempfile.TemporaryDirectory() as out, begun, system, platform:
            with self.assertRaises(SystemExit) as ended:
                call(out)
            self.assertEqual(list(pathlib.Path(out).iterdir()), [])
        # Not a number: it is printed, and the exit code is 1.
        self.assertIsInstance(ended.exception.code, str)
        return ended.exception.code

    def test_another_machine_is_refused_in_one_line(self):
        on_linux = "uzswap runs on Linux on x86_64, not on "
        of_glibc = "uzswap takes over programs of glibc; this Python is of "
        for here, says in [
            (("darwin", "x86_64", ""), on_linux + "darwin on x86_64"),
            (("darwin", "arm64", ""), on_linux + "darwin on arm64"),
            (("win32", "AMD64", ""), on_linux + "win32 on AMD64"),
            (("linux", "aarch64", "glibc"), on_linux + "linux on aarch64"),
            (("linux", "x86_64", ""), of_glibc + "another libc"),
            (("linux", "x86_64", "musl"), of_glibc + "musl"),
        ]:
            for call in (backend.build_wheel, backend.prepare_metadata_for_build_wheel):
                with self.subTest(here=here, call=call.__name__):
                    self.assertEqual(self.refusal(call, *here), says)

    def test_what_was_compiled_elsewhere_is_refused_too(self):
        build = lambda out: backend.build_wheel(out, {"bin": "/compiled"})
        self.assertIn("not on linux on riscv64", self.refusal(build, "linux", "riscv64", "glibc"))

    def test_this_kind_of_machine_is_taken(self):
        system, platform = machine("linux", "x86_64", "glibc")
        with tempfile.TemporaryDirectory() as out, system, platform:
            made = backend.prepare_metadata_for_build_wheel(out)
            self.assertIn("Name: uzswap\n", pathlib.Path(out, made, "METADATA").read_text())


if __name__ == "__main__":
    unittest.main()
