"""A memory group with a hard limit and no swap, for who is root; either version of groups."""

import errno
import os
import signal
import time

_V1 = "/sys/fs/cgroup/memory"
_V2 = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")


class Unavailable(Exception):
    """No group can be made here; says why."""


def _read(path):
    with open(path) as file:
        return file.read()


def _write(path, value):
    with open(path, "w") as file:
        file.write(str(value))


class Group:
    def __init__(self, name, limit):
        """A group of `limit` bytes."""
        if os.geteuid() != 0:
            raise Unavailable("memory groups need root")
        self.is_v1 = os.path.exists(f"{_V1}/memory.limit_in_bytes")
        root = _V1 if self.is_v1 else self._v2_root()
        self.directory = f"{root}/uzswap-test-{os.getpid()}-{name}"
        try:
            os.mkdir(self.directory)
        except OSError as why:
            raise Unavailable(f"no group can be made: {why}") from why
        try:
            self._limit(limit)
        except OSError as why:
            os.rmdir(self.directory)
            raise Unavailable(f"no group can be limited: {why}") from why

    @staticmethod
    def _v2_root():
        for root in _V2:
            try:
                if "memory" in _read(f"{root}/cgroup.controllers").split():
                    _write(f"{root}/cgroup.subtree_control", "+memory")
                    return root
            except OSError:
                continue
        raise Unavailable("there is no memory controller, neither of v1 nor of v2")

    def _limit(self, limit):
        if self.is_v1:
            names = {"memory.limit_in_bytes": limit, "memory.swappiness": 0}
            with_swap = {"memory.memsw.limit_in_bytes": limit}
        else:
            names, with_swap = {"memory.max": limit}, {"memory.swap.max": 0}
        for name, value in names.items():
            _write(f"{self.directory}/{name}", value)
        for name, value in with_swap.items():
            # Not there in a kernel without swap.
            if os.path.exists(f"{self.directory}/{name}"):
                _write(f"{self.directory}/{name}", value)

    @property
    def members_file(self):
        return f"{self.directory}/cgroup.procs"

    def members(self):
        return [int(pid) for pid in _read(self.members_file).split()]

    @property
    def kills(self):
        """How many processes the kernel has killed here for want of memory."""
        name = "memory.oom_control" if self.is_v1 else "memory.events"
        for line in _read(f"{self.directory}/{name}").splitlines():
            key, value = line.split()
            if key == "oom_kill":
                return int(value)
        raise AssertionError(f"{name} does not count kills")

    def close(self):
        """Ends who is left in it, and removes it."""
        until = time.monotonic() + 20
        while True:
            for pid in self.members():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            try:
                return os.rmdir(self.directory)
            except OSError as why:
                # Who was killed may still be on its way out.
                if why.errno != errno.EBUSY or time.monotonic() > until:
                    raise
                time.sleep(0.02)
