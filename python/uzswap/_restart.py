"""Running a script under uzswap from its own head."""

import os
import sys

from ._command import (
    execute,
    find_command,
    find_interpreter,
    original_arguments,
    split_interpreter,
)
from ._errors import Error
from ._managed import is_managed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional, Union

# Set for the restarted program, to its process id: where it cannot be managed it must not be
# started again and again. Programs that it starts have others.
_RESTARTED = "UZSWAP_PYTHON_RESTARTED"


def _obstacle() -> "Optional[str]":
    """Why this program cannot be started again from its beginning, and what to do instead."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return "this is a worker of pytest-xdist: start it all with 'python -m uzswap -m pytest'"
    if "ipykernel" in sys.modules:
        return (
            "this is a notebook's kernel: install one with 'uzswap jupyter install', and choose it"
        )
    if hasattr(sys, "ps1") or sys.flags.interactive:
        return "this is an interactive interpreter: start it with 'uzswap run -- python'"
    obstacle = _obstacle_of_name()
    if obstacle is not None:
        return obstacle
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        return "this is a worker of multiprocessing: restart in the program that starts it"
    # A program that has not imported it has started no thread by it.
    threading = sys.modules.get("threading")
    if threading is not None and threading.active_count() > 1:
        return "other threads run already: restart at the head of the program"
    return None


def _obstacle_of_name() -> "Optional[str]":
    """Why the interpreter would not find the program again by its command line."""
    _, program = split_interpreter(original_arguments())
    if program in ("-c", "-m") or os.path.isfile(program) or os.path.isdir(program):
        return None
    # Of a pipe nothing is left to be read.
    if program == "-" or os.path.exists(program):
        return "the program came from a stream: start it with 'uzswap run -- python'"
    return (
        f"there is no {program} here, as the program has left the directory where it was started: "
        "restart at its head"
    )


def restart(
    memory: "Union[int, str, None]" = None, *options: str, if_possible: bool = False
) -> bool:
    """Starts this program again under uzswap, as the same process. To be called at its head.

    `memory` is the limit: bytes, "4G", or "50%" of what it may have here; without it, what is free.
    `options` are others of 'uzswap run'. Returns True if it is managed already. Where the program
    cannot be started again Error says why, and what to do instead. With `if_possible` it goes on
    unmanaged then, and False is returned.
    """
    if is_managed():
        os.environ.pop(_RESTARTED, None)
        return True
    if os.environ.get(_RESTARTED) == str(os.getpid()):
        if if_possible:
            return False
        raise Error("uzswap did not take this process over (see 'uzswap doctor')")
    line = ["run", "--in-place"]
    if memory is not None:
        line += ["--memory", str(memory)]
    if if_possible:
        line.append("--if-possible")
    try:
        command, interpreter = find_command(), find_interpreter()
        obstacle = _obstacle()
        if obstacle is not None:
            raise Error(obstacle)
        os.environ[_RESTARTED] = str(os.getpid())
        execute([command, *line, *options, "--", interpreter, *original_arguments()[1:]])
    except Error:
        os.environ.pop(_RESTARTED, None)
        if if_possible:
            return False
        raise
