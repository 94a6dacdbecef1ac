"""Where the command `uzswap` is, and how this process becomes it."""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, NoReturn, Optional, Sequence

_NAME = "uzswap"


def _candidates() -> "Iterator[str]":
    named = os.environ.get("UZSWAP_COMMAND")
    if named:
        yield named
        return
    packages = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    # PREFIX/lib/python3.N/site-packages and PREFIX/bin: how nearly every installation lies, without
    # a question to sysconfig, which takes longer than all else before the program starts.
    library = os.path.dirname(os.path.dirname(packages))
    if os.path.basename(library) in ("lib", "lib64"):
        yield os.path.join(os.path.dirname(library), "bin", _NAME)
    yield from _by_scheme()
    # Of `pip install --target`.
    yield os.path.join(packages, "bin", _NAME)
    import shutil

    found = shutil.which(_NAME)
    if found:
        yield found


def _by_scheme() -> "Iterator[str]":
    """Where Python puts programs: of a plain installation, and of one of the user's."""
    import sysconfig

    # Public since Python 3.10.
    find = getattr(sysconfig, "get_default_scheme", None)
    for scheme in (str(find()) if find else "posix_prefix", f"{os.name}_user"):
        yield os.path.join(sysconfig.get_path("scripts", scheme), _NAME)


def find_command() -> str:
    """The command's path. UZSWAP_COMMAND names another."""
    tried = []
    for path in _candidates():
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return path
        if path not in tried:
            tried.append(path)
    from ._errors import Error

    raise Error(
        f"there is no command uzswap ({', '.join(tried)}): "
        "install the package again, or name it with UZSWAP_COMMAND"
    )


def original_arguments() -> list[str]:
    """The command line of this interpreter, as it was given."""
    arguments: "Optional[Sequence[str]]" = getattr(sys, "orig_argv", None)
    if arguments is None:
        # Python 3.9.
        with open("/proc/self/cmdline", "rb") as line:
            arguments = [os.fsdecode(word) for word in line.read().split(b"\0")[:-1]]
    return list(arguments)


def split_interpreter(words: "Sequence[str]") -> "tuple[list[str], str]":
    """A command line of Python's: the options before the program, and what names that: "-c", "-m",
    or a file; "-" where it comes from a stream."""
    at = 1
    while at < len(words):
        word = words[at]
        if word == "--":
            at += 1
            break
        if word == "-" or word[:1] != "-":
            break
        if word.startswith("--"):
            # One of these has a value.
            at += 2 if word == "--check-hash-based-pycs" else 1
            continue
        # Letters, and behind one of these its value: the rest, or the next word.
        for i, letter in enumerate(word[1:], 1):
            if letter in "cm":
                before = [word[:i]] if i > 1 else []
                return [*words[1:at], *before], f"-{letter}"
            if letter in "WX":
                at += word[i + 1 :] == ""
                break
        at += 1
    return list(words[1:at]), words[at] if at < len(words) else "-"


def find_interpreter() -> str:
    """The path of this interpreter."""
    if sys.executable:
        return sys.executable
    from ._errors import Error

    raise Error(
        "Python does not know its own path (sys.executable is empty): "
        "start it with 'uzswap run -- PYTHON', by a path"
    )


def execute(command: "Sequence[str]") -> "NoReturn":
    """Becomes another program."""
    for stream in (sys.stdout, sys.stderr):
        # Nothing waits in one that is closed.
        if stream is not None and not getattr(stream, "closed", False):
            stream.flush()
    try:
        os.execv(command[0], list(command))
    except OSError as why:
        from ._errors import Error

        raise Error(f"{command[0]} cannot be executed: {why.strerror}") from why
