"""Notebooks: a kernel made by `uzswap jupyter install`, driven as a notebook server drives it."""

import json
import os
import queue
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import unittest

try:
    import ipykernel  # noqa: F401
    from jupyter_client import KernelManager
    from jupyter_client.kernelspec import KernelSpecManager
except ImportError as why:
    raise unittest.SkipTest(f"{why}: pip install ipykernel jupyter_client")

UZSWAP = os.path.join(sysconfig.get_path("scripts"), "uzswap")
PATIENCE = 120
MIB = 1 << 20
LIMIT_MIB = 96


def resident(pid):
    """Anonymous memory of a process, in bytes."""
    with open(f"/proc/{pid}/statm") as statm:
        _, all_pages, shared, *_ = map(int, statm.read().split())
    return (all_pages - shared) * os.sysconf("SC_PAGE_SIZE")


def eventually(what, is_true):
    until = time.monotonic() + PATIENCE
    while not is_true():
        assert time.monotonic() < until, f"never happened: {what}"
        time.sleep(0.02)


class Kernel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # A place for kernels and one for sockets, so that nothing of the user's is touched.
        cls.place = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.place.cleanup)
        os.environ.update(
            JUPYTER_PATH=cls.place.name,
            JUPYTER_RUNTIME_DIR=f"{cls.place.name}/runtime",
            XDG_RUNTIME_DIR=cls.place.name,
            IPYTHONDIR=f"{cls.place.name}/ipython",
        )
        kernels = f"{cls.place.name}/kernels/python3"
        os.makedirs(kernels)
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        with open(f"{kernels}/kernel.json", "w") as spec:
            json.dump({"argv": argv, "display_name": "Python 3", "language": "python"}, spec)
        options = ["--memory", f"{LIMIT_MIB}M", "--idle-after", "2s", "python3"]
        subprocess.run(
            [UZSWAP, "jupyter", "install", *options], check=True, stdout=subprocess.DEVNULL
        )
        cls.manager = KernelManager(
            kernel_name="uzswap-python3", kernel_spec_manager=KernelSpecManager()
        )
        cls.manager.start_kernel()
        cls.addClassCleanup(cls.stop)
        cls.connect()

    @classmethod
    def stop(cls):
        cls.client.stop_channels()
        if cls.manager.has_kernel:
            cls.manager.shutdown_kernel(now=True)

    @classmethod
    def connect(cls):
        cls.client = cls.manager.client()
        cls.client.start_channels()
        cls.client.wait_for_ready(timeout=PATIENCE)

    @property
    def pid(self):
        return self.manager.provisioner.process.pid

    def run_cell(self, code, while_running=None):
        """What a cell printed, and its error's name; `while_running` is called once it prints."""
        wanted = self.client.execute(code)
        printed, error = "", None
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            try:
                message = self.client.get_iopub_msg(timeout=1)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != wanted:
                continue
            content = message["content"]
            if message["msg_type"] == "stream":
                printed += content["text"]
                if while_running:
                    while_running()
                    while_running = None
            elif message["msg_type"] == "error":
                error = content["ename"]
            elif message["msg_type"] == "status" and content["execution_state"] == "idle":
                return printed, error
        self.fail(f"the cell did not end: {code}\n{printed}")

    def cell(self, code):
        printed, error = self.run_cell(code)
        self.assertIsNone(error, printed)
        return printed

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
        self.assertEqual(self.cell(code), plain.stdout)
        self.assertLess(resident(self.pid), (LIMIT_MIB + 16) * MIB)
        self.cell("del data")

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
        printed, error = self.run_cell(code, self.manager.interrupt_kernel)
        self.assertEqual((printed, error), ("begins\ncount 1\n", None))
        # And one that nobody catches ends the cell, not the kernel.
        code = "import time\nprint('begins', flush=True)\ntime.sleep(60)"
        self.assertEqual(self.run_cell(code, self.manager.interrupt_kernel)[1], "KeyboardInterrupt")
        self.assertEqual(self.cell("print(6 * 7)"), "42\n")

    def test_it_is_the_process_that_was_started(self):
        printed = self.cell("import os; print(os.getpid(), os.getppid())")
        self.assertEqual(printed, f"{self.pid} {os.getpid()}\n")

    def test_the_magic(self):
        self.cell("%load_ext uzswap")
        self.assertRegex(self.cell("%uzswap"), rf"of {LIMIT_MIB} MiB: .* compressed")
        self.assertIn("limit 80 MiB", self.cell("%uzswap 80M"))
        self.assertIn("freed", self.cell("%uzswap reclaim"))
        self.assertIn("'much'", self.cell("%uzswap much"))
        self.assertIn(f"limit {LIMIT_MIB} MiB", self.cell(f"%uzswap {LIMIT_MIB}M"))

    def test_an_idle_kernel_shrinks_and_has_its_bytes(self):
        hashed = self.cell(
            "import hashlib, random\n"
            "kept = bytearray(random.Random(9).randbytes(1 << 20) * 72)\n"
            "print(hashlib.sha256(kept).hexdigest())\n"
        )
        self.assertGreater(resident(self.pid), 56 * MIB)
        eventually("it shrinks", lambda: resident(self.pid) < 40 * MIB)
        self.assertEqual(self.cell("print(hashlib.sha256(kept).hexdigest())"), hashed)
        self.cell("del kept")

    def test_restarted_it_has_the_same_limit(self):
        before = self.pid
        self.client.stop_channels()
        self.manager.restart_kernel(now=True)
        self.connect()
        self.assertNotEqual(self.pid, before)
        self.assertEqual(
            self.cell("import uzswap; print(uzswap.status().limit)"), f"{LIMIT_MIB * MIB}\n"
        )

    def test_killed_it_leaves_nothing(self):
        run = f"{self.place.name}/uzswap/{self.pid}.sock"
        self.assertTrue(os.path.exists(run))
        os.kill(self.pid, signal.SIGKILL)
        eventually("the kernel is gone", lambda: not self.manager.is_alive())
        eventually("its supervisor is gone", lambda: not os.path.exists(run))
        self.client.stop_channels()
        self.manager.restart_kernel(now=True)
        self.connect()
        self.assertEqual(re.sub(r"\D", "", self.cell("print(1)")), "1")


if __name__ == "__main__":
    unittest.main()
