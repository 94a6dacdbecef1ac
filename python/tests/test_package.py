"""The package: what runs, what it sees and changes of itself, and what it refuses."""

import array
import ctypes
import mmap
import os
import re
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import unittest

import uzswap
from uzswap import _advice, _control
from uzswap.__main__ import _SWITCHES, split
from uzswap._command import find_command, split_interpreter

try:
    import numpy
except ImportError:
    numpy = None
try:
    import pyarrow
except ImportError:
    pyarrow = None

# The programs below hold about twice as much.
LIMIT = "64M"


def python(*words, code=None, **more):
    """A Python program to its end: its output, or a failure that shows all of it."""
    command = [sys.executable, *words]
    if code is not None:
        command += ["-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, **more)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def managed(code, *options):
    return python("-m", "uzswap", "--memory", LIMIT, "--quiet", *options, code=code)


def command_that_shows(test):
    """A command in the place of uzswap that shows its words."""
    directory = tempfile.TemporaryDirectory()
    test.addCleanup(directory.cleanup)
    path = os.path.join(directory.name, "show")
    with open(path, "w") as file:
        file.write('#!/bin/sh\nfor word; do echo "$word"; done\n')
    os.chmod(path, 0o700)
    return path


class Columns:
    """Arrow's arrays and tables, as far as they say where their memory is. Each buffer is memory
    of its own, which begins with a page."""

    class Buffer:
        def __init__(self, size):
            self.memory = mmap.mmap(-1, size or 1, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
            self.size = size

    class Array:
        def __init__(self, *sizes):
            """`None`: a buffer that this array does not have, as one for validity."""
            self.all = [None if size is None else Columns.Buffer(size) for size in sizes]

        def buffers(self):
            return self.all

    class Chunked:
        def __init__(self, *chunks):
            self.chunks, self.num_chunks = list(chunks), len(chunks)

    class Table:
        def __init__(self, *columns):
            self.columns = columns

        def itercolumns(self):
            return iter(self.columns)


class Command(unittest.TestCase):
    def test_options_end_where_the_program_begins(self):
        for words, options, program in [
            ("a.py --memory 1G", "", "a.py --memory 1G"),
            ("--memory 1G a.py -x", "--memory 1G", "a.py -x"),
            ("--memory=1G --quiet -m m --quiet", "--memory=1G --quiet", "-m m --quiet"),
            ("--in-place -c pass", "--in-place", "-c pass"),
            ("--quiet -- --odd.py", "--quiet", "--odd.py"),
        ]:
            self.assertEqual(split(words.split()), (options.split(), program.split()), words)

    def test_options_of_the_interpreter_end_where_its_program_begins(self):
        for words, options, program in [
            ("-m uzswap -I", "", "-m"),
            ("-muzswap", "", "-m"),
            ("-I -X dev -m uzswap", "-I -X dev", "-m"),
            ("-Im uzswap a.py", "-I", "-m"),
            ("-OOIc pass", "-OOI", "-c"),
            ("-cpass", "", "-c"),
            ("-Xm -Werror::cm -W -m a.py -c", "-Xm -Werror::cm -W -m", "a.py"),
            ("-bX m -- -c", "-bX m --", "-c"),
            ("--check-hash-based-pycs -m -u a.py", "--check-hash-based-pycs -m -u", "a.py"),
            ("-u - -c", "-u", "-"),
            ("-i", "-i", "-"),
            ("-X", "-X", "-"),
            ("", "", "-"),
        ]:
            split_words = split_interpreter(["python", *words.split()])
            self.assertEqual(split_words, (options.split(), program), words)

    def test_the_interpreter_starts_again_with_its_options(self):
        show = command_that_shows(self)
        env = {**os.environ, "UZSWAP_COMMAND": show}
        for words in (["-X", "dev", "-OOm", "uzswap"], ["-X", "dev", "-OO", "-muzswap"]):
            line = ["run", "--", sys.executable, "-X", "dev", "-OO", "-c", "pass"]
            shown = python(*words, "-c", "pass", env=env)
            self.assertEqual(shown.splitlines(), line, words)

    def test_the_options_without_a_value_are_the_commands(self):
        command = find_command()
        text = subprocess.run([command, "run", "--help"], stdout=subprocess.PIPE, check=True).stdout
        shown = re.findall(r"^ +(?:-\w, )?(--[a-z-]+)( <.+>)?", text.decode(), re.MULTILINE)
        self.assertIn(("--memory", " <SIZE|PERCENT>"), shown)
        switches = {name for name, value in shown if not value} - {"--help"}
        # Help leaves it out: it is for who works on uzswap.
        hidden = {"--debug"}
        self.assertEqual(_SWITCHES, switches | hidden)
        for name in hidden:
            subprocess.run([command, "run", "--quiet", name, "true"], check=True, timeout=60)

    def test_a_script_a_module_and_a_text_run_as_without(self):
        show = "import sys; print(sys.argv, sys.flags.dev_mode, __name__)"
        plain = python("-X", "dev", "-c", show, "a", "b")
        self.assertEqual(
            python("-X", "dev", "-m", "uzswap", "--quiet", "-c", show, "a", "b"), plain
        )
        module = ["-m", "calendar", "2024", "2"]
        self.assertEqual(python("-m", "uzswap", "--quiet", *module), python(*module))

    def test_the_exit_code_is_the_programs(self):
        command = [sys.executable, "-m", "uzswap", "--quiet", "-c", "raise SystemExit(7)"]
        self.assertEqual(subprocess.run(command, timeout=60).returncode, 7)

    def test_a_program_waits_for_no_import(self):
        code = """
            import sys
            before = set(sys.modules)
            import uzswap{more}
            print(*sorted(set(sys.modules) - before))
        """
        for more, modules in [
            (
                ".__main__; uzswap._command.find_command()",
                "uzswap uzswap.__main__ uzswap._command",
            ),
            (
                "; uzswap.restart",
                "uzswap uzswap._command uzswap._errors uzswap._managed uzswap._restart",
            ),
        ]:
            self.assertEqual(python(code=code.format(more=more)), modules + "\n")

    def test_without_a_program_it_says_how(self):
        done = subprocess.run(
            [sys.executable, "-m", "uzswap", "--memory", "1G"], capture_output=True, text=True
        )
        self.assertEqual(done.returncode, 2)
        self.assertIn("what to run?", done.stderr)


class Unmanaged(unittest.TestCase):
    def test_nothing_is_known_and_nothing_breaks(self):
        self.assertFalse(uzswap.is_managed())
        self.assertIsNone(uzswap.status())
        with uzswap.idle():
            pass
        self.assertEqual(uzswap.idle()(divmod)(7, 3), (2, 1))
        with self.assertRaisesRegex(uzswap.NotManaged, "does not run under uzswap"):
            uzswap.set_memory("1G")
        with self.assertRaisesRegex(uzswap.NotManaged, "does not run under uzswap"):
            uzswap.reclaim()

    def test_a_run_that_does_not_answer_is_an_error_of_the_package(self):
        with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX) as run:
            path = os.path.join(directory, "1.sock")
            ask = lambda: _control._ask(path, {"do": "list"}, 0.05)
            for _ in range(2):
                # Nobody is there, then nobody listens.
                self.assertRaisesRegex(uzswap.Error, "the run does not answer: ", ask)
                if not os.path.exists(path):
                    run.bind(path)
            run.listen()
            self.assertRaisesRegex(uzswap.Error, "the run does not answer: timed out", ask)

            def answer():
                with run.accept()[0] as line:
                    line.recv(100)
                    line.sendall(b"no JSON\n")

            other = threading.Thread(target=answer)
            # The connection of before, which nobody has taken, is the first.
            run.accept()[0].close()
            other.start()
            ask = lambda: _control._ask(path, {"do": "list"}, 60)
            self.assertRaisesRegex(uzswap.Error, "the run does not answer: ", ask)
            other.join()

    def test_advice_about_whole_pages_of_any_buffer(self):
        data = bytearray(1 << 20)
        for advice in ("cold", "out", "need"):
            self.assertAlmostEqual(uzswap.advise(data, advice), len(data), delta=8192)
        self.assertEqual(uzswap.advise(b"short", "out"), 0)
        numbers = array.array("q", range(100_000))
        self.assertAlmostEqual(uzswap.advise(numbers, "cold"), 800_000, delta=8192)
        self.assertGreater(uzswap.advise([data, (numbers,)], "need"), 1_800_000)
        self.assertEqual(numbers[99_999], 99_999)

    @unittest.skipUnless(numpy, "NumPy is not installed")
    def test_advice_about_views(self):
        whole = numpy.zeros((1000, 1000))
        for view, size in [
            (whole, 8_000_000),
            (whole[100:200], 800_000),
            (whole[::-1], 8_000_000),
            (whole.T, 8_000_000),
            (whole[:, ::10], 8_000_000),
            (whole[:0], 0),
        ]:
            self.assertAlmostEqual(uzswap.advise(view, "cold"), size, delta=8192)

    def test_advice_knows_how_large_an_element_is(self):
        for typestr, size in [
            ("<f8", 8),
            ("|b1", 1),
            ("|S10", 10),
            ("<U10", 40),
            ("<M8[ns]", 8),
            (">m8[25us]", 8),
            ("|O", ctypes.sizeof(ctypes.c_void_p)),
            ("|V24", 24),
        ]:
            interface = {"data": (4096, False), "typestr": typestr, "shape": (3, 5)}
            self.assertEqual(_advice._bounds(interface), (4096, 4096 + 15 * size), typestr)

    def test_advice_about_arrays_and_tables_of_arrow(self):
        page = mmap.PAGESIZE
        one = Columns.Array(None, 8 * page)
        # Of the last page a part is its; an empty buffer may have any address.
        other = Columns.Array(page, 0, 3 * page + 100)
        column = Columns.Chunked(one, other)
        table = Columns.Table(column, Columns.Chunked(), Columns.Chunked(Columns.Array(2 * page)))
        bounds = lambda array: [(b.address, b.address + b.size) for b in array.buffers() if b]
        self.assertEqual(list(_advice._parts(one)), bounds(one))
        self.assertEqual(list(_advice._parts(column)), bounds(one) + bounds(other))
        for array, whole, touched in [
            (one, 8, 8),
            (other, 4, 5),
            (column, 12, 13),
            (Columns.Chunked(), 0, 0),
            (table, 14, 15),
            ([table, (one,)], 22, 23),
        ]:
            self.assertEqual(uzswap.advise(array, "cold"), whole * page)
            self.assertEqual(uzswap.advise(array, "need"), touched * page)

        if pyarrow:
            numbers = pyarrow.array(range(100_000))
            twice = pyarrow.chunked_array([numbers, numbers])
            table = pyarrow.table({"n": twice, "m": twice})
            self.assertAlmostEqual(uzswap.advise(numbers, "cold"), 800_000, delta=8192)
            self.assertAlmostEqual(uzswap.advise(twice, "cold"), 1_600_000, delta=16384)
            self.assertAlmostEqual(uzswap.advise(table, "cold"), 3_200_000, delta=32768)

        class NoBuffers:
            buffers = []

        with self.assertRaisesRegex(TypeError, "NoBuffers does not say where its memory is"):
            uzswap.advise([table, Columns.Table(NoBuffers())], "cold")

    def test_what_is_no_memory_is_refused(self):
        with self.assertRaisesRegex(TypeError, "int does not say where its memory is"):
            uzswap.advise(5, "cold")
        with self.assertRaisesRegex(ValueError, "'warm' is none of"):
            uzswap.advise(b"", "warm")


class Managed(unittest.TestCase):
    @unittest.skipUnless(numpy, "NumPy is not installed")
    def test_a_program_that_needs_twice_as_much_gives_the_same(self):
        code = """
            import hashlib, numpy as np
            a = np.random.default_rng(7).integers(0, 1000, 16_000_000)
            order = np.argsort(a[:2_000_000], kind="stable")
            for i in range(3):
                a += i
            print(hashlib.sha256(a).hexdigest(), hashlib.sha256(order).hexdigest())
        """
        self.assertEqual(managed(code), python(code=code))

    def test_it_sees_and_changes_its_own_run(self):
        code = """
            import os, uzswap
            data = bytearray(os.urandom(32) * (1 << 20))      # 32 MiB
            s = uzswap.status()
            assert uzswap.is_managed() and s.limit == 64 << 20, s
            assert s.own.pid == os.getpid() and s.own.used > len(data), s
            assert "64 MiB" in str(s), str(s)
            assert uzswap.set_memory("48M") == 48 << 20 and uzswap.status().limit == 48 << 20
            freed = uzswap.reclaim(data)
            assert freed > len(data) // 2, freed
            assert data[:32] * (1 << 20) == data
            freed = uzswap.reclaim()
            assert freed > len(data) // 2, freed
            assert uzswap.status().own.resident < 24 << 20, uzswap.status()
            with uzswap.idle():
                pass
            assert data[:32] * (1 << 20) == data
            try:
                uzswap.set_memory("much")
            except uzswap.Error as why:
                print(why)
        """
        self.assertIn("'much'", managed(code))

    def test_memory_is_out_while_a_decorated_function_waits(self):
        code = """
            import hashlib, os, uzswap
            data = bytearray(os.urandom(64) * (1 << 19))      # 32 MiB
            resident = lambda: uzswap.status().own.resident
            digest = hashlib.sha256(data).digest()
            @uzswap.idle()
            def wait(word, *, fails):
                "Waits."
                if fails:
                    raise ValueError(word, resident())
                return word, resident()
            assert (wait.__name__, wait.__doc__) == ("wait", "Waits.")
            for fails in (False, True, False):
                before = resident()
                try:
                    word, inside = wait("a", fails=fails)
                    assert not fails
                except ValueError as why:
                    word, inside = why.args
                    assert fails
                assert word == "a" and before - inside > 24 << 20, (word, before, inside)
                assert hashlib.sha256(data).digest() == digest
                assert resident() - inside > 24 << 20, (resident(), inside)
        """
        python("-m", "uzswap", "--memory", "160M", "--quiet", code=code)

    def test_advice_is_followed(self):
        code = """
            import os, uzswap
            data = bytearray(os.urandom(64) * (1 << 19))      # 32 MiB
            resident = lambda: uzswap.status().own.resident
            before = resident()
            uzswap.advise(data, "out")
            out = resident()
            uzswap.advise(data, "need")
            back = resident()
            assert before - out > 24 << 20 and back - out > 24 << 20, (before, out, back)
            assert data[:64] * (1 << 19) == data
        """
        python("-m", "uzswap", "--memory", "160M", "--quiet", code=code)

    def test_children_are_in_the_same_run(self):
        code = """
            import multiprocessing, os, uzswap
            def child(queue):
                s = uzswap.status()
                queue.put((s.run, s.own.pid == os.getpid()))
            if __name__ == "__main__":
                context = multiprocessing.get_context("fork")
                run, queue = uzswap.status().run, context.Queue()
                process = context.Process(target=child, args=(queue,))
                process.start()
                assert queue.get() == (run, True)
                process.join()
        """
        managed(code)


class Restart(unittest.TestCase):
    def script(self, text):
        file = tempfile.NamedTemporaryFile("w", suffix=".py")
        self.addCleanup(file.close)
        file.write(textwrap.dedent(text))
        file.flush()
        return file.name

    def test_a_script_starts_again_as_the_same_process(self):
        name = self.script("""
            import os, sys, uzswap
            print("begins", os.getpid(), sys.argv[1:], flush=True)
            assert uzswap.restart("64M", "--store", "none") is True
            assert uzswap.status().limit == 64 << 20
            print("goes on", os.getpid())
        """)
        lines = python(name, "a", "b").splitlines()
        pid = lines[0].split()[1]
        self.assertEqual(lines, [f"begins {pid} ['a', 'b']"] * 2 + [f"goes on {pid}"])

    def started(self, *words, code=None, input=None, command=None, cwd=None, **variables):
        """What a program that restarts becomes, word by word, by a command that shows them; or the
        error that it says."""
        command = command or command_that_shows(self)
        line = [sys.executable, *words, *([] if code is None else ["-c", textwrap.dedent(code)])]
        done = subprocess.run(
            line,
            input=input,
            capture_output=True,
            text=True,
            timeout=60,
            cwd=cwd,
            env={**os.environ, "UZSWAP_COMMAND": command, **variables},
        )
        return done.stdout + "".join(done.stderr.splitlines()[-1:])

    def test_a_restart_is_that_of_one_process(self):
        code = "import uzswap; uzswap.restart('64M', '--quiet')"
        line = ["run", "--in-place", "--memory", "64M", "--quiet", "--", sys.executable, "-c", code]
        self.assertEqual(self.started("-c", code).splitlines(), line)
        # As where a restarted program starts others outside of its run.
        other = {"UZSWAP_PYTHON_RESTARTED": str(os.getpid())}
        self.assertEqual(self.started("-c", code, **other).splitlines(), line)
        again = "import os; os.environ['UZSWAP_PYTHON_RESTARTED'] = str(os.getpid()); " + code
        self.assertIn("did not take this process over", self.started("-c", again))
        managed = """
            import os
            from uzswap import _restart
            _restart.is_managed = lambda: True
            os.environ["UZSWAP_PYTHON_RESTARTED"] = "1"
            print(_restart.restart(), "UZSWAP_PYTHON_RESTARTED" in os.environ)
        """
        self.assertEqual(self.started(code=managed), "True False\n")

    def test_what_is_in_the_command_line_starts_again_and_a_stream_does_not(self):
        code = "import uzswap; uzswap.restart()"
        line = ["run", "--in-place", "--", sys.executable]
        for words in (["-c", code, "-"], [f"-c{code}"], ["-Bc", code]):
            self.assertEqual(self.started(*words).splitlines(), line + words)
        for words in ([], ["-"], ["-", "-c"], ["/dev/stdin"]):
            self.assertIn("came from a stream", self.started(*words, input=code), words)

    def test_a_script_that_would_not_be_found_again_says_so(self):
        name = self.script("""
            import os, sys, uzswap
            if sys.argv[1:]:
                os.chdir(sys.argv[1])
            uzswap.restart()
        """)
        directory, file = os.path.split(name)
        line = ["run", "--in-place", "--", sys.executable]
        for words in ([file], [f"./{file}", "."], [name, "/"]):
            shown = self.started(*words, cwd=directory)
            self.assertEqual(shown.splitlines(), line + words)
        for word in (file, f"./{file}"):
            said = self.started(word, "/", cwd=directory)
            self.assertIn(f"there is no {word} here, as the program has left the directory", said)
        profiled = ["-m", "cProfile", file]
        self.assertEqual(self.started(*profiled, cwd=directory).splitlines(), line + profiled)

    def test_what_cannot_be_executed_is_said_and_leaves_no_mark(self):
        code = """
            import os, sys, uzswap
            sys.executable = {executable}
            for if_possible in (True, False):
                try:
                    print(uzswap.restart(if_possible=if_possible))
                except uzswap.Error as why:
                    print(why, "UZSWAP_PYTHON_RESTARTED" in os.environ)
        """
        here = self.started(code=code.format(executable="None"))
        self.assertRegex(here, "^False\n.*sys.executable is empty.*uzswap run -- .* False\n$")
        with tempfile.NamedTemporaryFile("w", delete=False) as file:
            self.addCleanup(os.unlink, file.name)
            file.write("no program")
        os.chmod(file.name, 0o700)
        here = self.started(code=code.format(executable="sys.executable"), command=file.name)
        self.assertRegex(here, f"^False\n{file.name} cannot be executed: .* False\n$")
        module = subprocess.run(
            [sys.executable, "-m", "uzswap", "-c", "pass"],
            capture_output=True,
            text=True,
            env={**os.environ, "UZSWAP_COMMAND": file.name},
        )
        self.assertEqual(module.returncode, 2)
        self.assertRegex(module.stderr, f"^uzswap: {file.name} cannot be executed: .*\n$")

    def test_a_closed_stream_is_not_written_to(self):
        code = "import sys, uzswap; sys.stderr.close(); sys.stdout.{}; uzswap.restart()"
        for last in ("flush()", "close()"):
            text = code.format(last)
            self.assertEqual(self.started("-c", text).splitlines()[-1:], [text], last)

    def test_a_text_starts_again(self):
        code = "import uzswap; uzswap.restart('64M'); print(uzswap.is_managed())"
        self.assertEqual(python("-c", code), "True\n")

    def test_what_cannot_start_again_says_what_to_do(self):
        code = (
            "import uzswap; print(uzswap.restart('64M', if_possible=True)); uzswap.restart('64M')"
        )
        stream = subprocess.run(
            [sys.executable], input=code, capture_output=True, text=True, timeout=60
        )
        self.assertEqual((stream.stdout, stream.returncode), ("False\n", 1))
        self.assertIn("uzswap run -- python", stream.stderr)
        threads = """
            import threading, uzswap
            threading.Thread(target=threading.Event().wait, daemon=True).start()
            try:
                uzswap.restart("64M")
            except uzswap.Error as why:
                print(why)
        """
        self.assertIn("at the head of the program", python(code=threads))
        worker = python(
            "-c",
            "import uzswap; print(uzswap.restart(if_possible=True))",
            env={**os.environ, "PYTEST_XDIST_WORKER": "gw0"},
        )
        self.assertEqual(worker, "False\n")

    def test_without_the_command_it_says_where_it_looked(self):
        code = "import uzswap\ntry: uzswap.restart()\nexcept uzswap.Error as why: print(why)"
        said = python("-c", code, env={**os.environ, "UZSWAP_COMMAND": "/no/uzswap"})
        self.assertIn("/no/uzswap", said)


if __name__ == "__main__":
    unittest.main()
