"""This process's run: what it holds, and what is asked of it, over the run's socket.

The protocol is one line of JSON each way. The socket of each run lies in a directory that only the
user can enter; which run this process is in, the runs say.
"""

import contextlib
import json
import os
import socket
import stat
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Optional, Tuple, Union

from . import _advice
from ._errors import Error, NotManaged
from ._managed import is_managed

Memory = Union[int, str]

# A full table of processes is shorter.
_REPLY_BYTES = 4 << 20
# For a list, and for anything that waits until the run has done it.
_LIST_SECONDS = 5.0
_DONE_SECONDS = 300.0


@dataclass(frozen=True)
class Process:
    """A process of a run. Sizes are bytes."""

    pid: int
    name: str
    #: dormant (it fits, and is not paged), active, or waits (for its turn)
    state: str
    #: pages as they are, by the kernel's count
    resident: int
    #: compressed pages
    pool: int
    #: written to the disk so far
    written: int
    #: what counts against the limit
    used: int
    #: what it would hold without uzswap
    needed: int
    #: faults served so far
    faults: int


@dataclass(frozen=True)
class Status:
    """The run of this process. Sizes are bytes."""

    #: the number of the run: the process id of `uzswap run`
    run: int
    command: Tuple[str, ...]
    #: what all processes of the run may hold together
    limit: int
    #: what they hold
    used: int
    #: how long it has run
    seconds: float
    processes: Tuple[Process, ...]

    @property
    def own(self) -> Process:
        """This process."""
        return next(p for p in self.processes if p.pid == os.getpid())

    @property
    def ratio(self) -> float:
        """How many times more they would hold without uzswap."""
        needed = sum(p.needed for p in self.processes)
        return needed / self.used if self.used else 1.0

    def __str__(self) -> str:
        own = self.own
        return (
            f"{human(self.used)} of {human(self.limit)}: {human(own.resident)} as they are, "
            f"{human(own.pool)} compressed, {human(own.written)} written; {self.ratio:.1f}x"
        )


def human(size: int) -> str:
    """A size in a unit that people read."""
    value, unit = float(size), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{size} bytes" if unit == "bytes" else f"{value:.{1 if value < 10 else 0}f} {unit}"


def _directories() -> Iterator[str]:
    user = os.geteuid()
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(given):
        yield os.path.join(given, "uzswap")
    yield f"/run/user/{user}/uzswap"
    yield f"/tmp/uzswap-{user}"


def _sockets() -> Iterator[str]:
    for directory in dict.fromkeys(_directories()):
        try:
            found = os.lstat(directory)
            # In a directory that others may write to, anybody could answer.
            is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
            if not is_ours or found.st_mode & 0o077:
                continue
            names = os.listdir(directory)
        except OSError:
            continue
        for name in names:
            if name.endswith(".sock"):
                yield os.path.join(directory, name)


def _exchange(path: str, request: Dict[str, Any], seconds: float) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(seconds)
        line.connect(path)
        line.sendall(json.dumps(request).encode() + b"\n")
        reply = b""
        while not reply.endswith(b"\n"):
            piece = line.recv(65536)
            if not piece or len(reply) > _REPLY_BYTES:
                raise Error("the run broke off its answer")
            reply += piece
    return reply


def _ask(path: str, request: Dict[str, Any], seconds: float) -> Any:
    try:
        answer = json.loads(_exchange(path, request, seconds))
    except (OSError, ValueError) as why:
        # It has ended, or was stopped.
        raise Error(f"the run does not answer: {why}") from why
    if "error" in answer:
        raise Error(answer["error"])
    return answer["ok"]


# Where this process's run listens, once that was found out. A child of a fork is in the same run.
_known: Optional[str] = None


def _find_run() -> Tuple[str, Dict[str, Any]]:
    global _known
    if not is_managed():
        raise NotManaged(
            "this process does not run under uzswap: "
            "start it with 'python -m uzswap', or call uzswap.restart()"
        )
    for path in dict.fromkeys(filter(None, [_known, *_sockets()])):
        try:
            run = _ask(path, {"do": "list"}, _LIST_SECONDS)
        except Error:
            continue
        if any(p["pid"] == os.getpid() for p in run["processes"]):
            _known = path
            return path, run
    raise Error(
        "the run of this process does not answer: "
        "it cannot be seen or controlled, but runs as it did"
    )


def _process(p: Dict[str, Any]) -> Process:
    sizes = {key: p[f"{key}_bytes"] for key in ("resident", "pool", "written", "used", "needed")}
    return Process(pid=p["pid"], name=p["name"], state=p["state"], faults=p["faults"], **sizes)


def status() -> Optional[Status]:
    """What the run of this process holds; None if it is not managed."""
    if not is_managed():
        return None
    _, run = _find_run()
    return Status(
        run=run["run"],
        command=tuple(run["command"]),
        limit=run["limit_bytes"],
        used=sum(p["used_bytes"] for p in run["processes"]),
        seconds=run["seconds"],
        processes=tuple(_process(p) for p in run["processes"]),
    )


def set_memory(memory: Memory) -> int:
    """Changes the limit of this process's run, and returns it in bytes.

    It is bytes, "2G", or "50%" of what the run may have here. Whoever touches a page waits until
    the run is below a lower one.
    """
    path, _ = _find_run()
    return int(_ask(path, {"do": "set", "memory": str(memory)}, _LIST_SECONDS)["limit_bytes"])


def _anonymous_bytes() -> int:
    with open("/proc/self/statm", "rb") as statm:
        fields: List[int] = [int(field) for field in statm.read().split()]
    return (fields[1] - fields[2]) * os.sysconf("SC_PAGE_SIZE")


def reclaim(array: Optional[object] = None) -> int:
    """Takes memory that is not used now, of one array or of all of this process; how much, in
    bytes.

    All that was taken comes back as it is touched, compressed pages from memory or from the disk.
    """
    if array is not None:
        if not is_managed():
            raise NotManaged(
                "this process does not run under uzswap, so its memory has nowhere to go"
            )
        before = _anonymous_bytes()
        _advice.advise(array, "out")
        return max(before - _anonymous_bytes(), 0)
    path, _ = _find_run()
    [done] = _ask(path, {"do": "reclaim", "pid": os.getpid(), "amount": "all"}, _DONE_SECONDS)
    # Too small to be paged: there is nothing to free then.
    return max(int(done["before_bytes"]) - int(done["after_bytes"]), 0)


class idle(contextlib.ContextDecorator):
    """`with uzswap.idle():` or `@uzswap.idle()`, around a long wait.

    What is not touched inside gives its memory back. Without uzswap it does nothing.
    """

    def __enter__(self) -> "idle":
        if is_managed():
            # A run that does not answer is no reason not to wait.
            with contextlib.suppress(Error):
                reclaim()
        return self

    def __exit__(self, *_: object) -> None:
        return None
