"""A notebook's kernel, started and driven as a notebook server does it."""

import json
import os
import queue
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
# For what ends by itself, on a machine that does much else.
PATIENCE_SECONDS = 120
MIB = 1 << 20


class Died(Exception):
    """The kernel ended while a cell ran."""


def eventually(what, is_true):
    until = time.monotonic() + PATIENCE_SECONDS
    while not is_true():
        assert time.monotonic() < until, f"never happened: {what}"
        time.sleep(0.02)


class Place:
    """A place for kernels and one for sockets, so that nothing of the user's is touched."""

    def __init__(self):
        self.directory = tempfile.TemporaryDirectory(prefix="uzswap-kernels-")
        self.name = self.directory.name
        os.environ.update(
            JUPYTER_PATH=self.name,
            JUPYTER_RUNTIME_DIR=f"{self.name}/runtime",
            XDG_RUNTIME_DIR=self.name,
            IPYTHONDIR=f"{self.name}/ipython",
        )
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        self.write("python3", {"argv": argv, "display_name": "Python 3", "language": "python"})

    def path(self, kernel):
        return f"{self.name}/kernels/{kernel}/kernel.json"

    def read(self, kernel):
        with open(self.path(kernel)) as spec:
            return json.load(spec)

    def write(self, kernel, spec):
        os.makedirs(os.path.dirname(self.path(kernel)), exist_ok=True)
        with open(self.path(kernel), "w") as file:
            json.dump(spec, file)

    def install(self, *options):
        """The kernel uzswap-python3, made by the command."""
        command = [UZSWAP, "jupyter", "install", *options, "python3"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def cleanup(self):
        self.directory.cleanup()


class Kernel:
    def __init__(self, name):
        self.manager = KernelManager(kernel_name=name, kernel_spec_manager=KernelSpecManager())
        self.client = None
        self.manager.start_kernel()
        self.connect()

    def connect(self):
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE_SECONDS)

    def restart(self):
        self.client.stop_channels()
        self.manager.restart_kernel(now=True)
        self.connect()

    def stop(self):
        self.client.stop_channels()
        if self.manager.has_kernel:
            self.manager.shutdown_kernel(now=True)

    @property
    def pid(self):
        return self.manager.provisioner.process.pid

    def interrupt(self):
        self.manager.interrupt_kernel()

    def run(self, code, while_running=None):
        """What a cell printed, and its error's name; `while_running` is called once it prints."""
        wanted = self.client.execute(code)
        printed, error = "", None
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            try:
                message = self.client.get_iopub_msg(timeout=1)
            except queue.Empty:
                if not self.manager.is_alive():
                    raise Died(printed)
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
        raise AssertionError(f"the cell did not end: {code}\n{printed}")

    def cell(self, code):
        printed, error = self.run(code)
        assert error is None, f"{error}: {printed}"
        return printed
