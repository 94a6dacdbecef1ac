"""python -m uzswap [OPTIONS OF uzswap run] SCRIPT ARGS | -m MODULE ARGS | -c CODE ARGS"""

import sys

from ._command import (
    execute,
    find_command,
    find_interpreter,
    original_arguments,
    split_interpreter,
)

_USAGE = """usage: python -m uzswap [OPTIONS] SCRIPT ARGS...
       python -m uzswap [OPTIONS] -m MODULE ARGS...
       python -m uzswap [OPTIONS] -c CODE ARGS...

Runs a Python program under uzswap, in less memory than it needs: --memory 4G, or 50%.
The options are those of 'uzswap run' (see 'uzswap help run')."""

# Options of `uzswap run` that have no value.
_SWITCHES = {"--if-possible", "--in-place", "--no-encrypt", "--no-turns", "--quiet", "--debug"}


def split(words: list[str]) -> tuple[list[str], list[str]]:
    """Options of uzswap, and what the interpreter gets."""
    at = 0
    while at < len(words) and words[at].startswith("--") and words[at] != "--":
        has_value = "=" not in words[at] and words[at] not in _SWITCHES
        at += 2 if has_value else 1
    options, program = words[:at], words[at:]
    if program[:1] == ["--"]:
        program = program[1:]
    return options, program


def interpreter_options() -> list[str]:
    """What this interpreter was given before `-m uzswap`."""
    options, program = split_interpreter(original_arguments())
    return options if program == "-m" else []


def main() -> int:
    words = sys.argv[1:]
    if words[:1] in (["-h"], ["--help"]):
        print(_USAGE)
        return 0
    options, program = split(words)
    if not program:
        print(f"uzswap: what to run? a script, -m MODULE or -c CODE\n{_USAGE}", file=sys.stderr)
        return 2
    try:
        command, interpreter = find_command(), find_interpreter()
        execute([command, "run", *options, "--", interpreter, *interpreter_options(), *program])
    except Exception as why:
        from ._errors import Error

        if not isinstance(why, Error):
            raise
        print(f"uzswap: {why}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
