"""The magic of notebooks and IPython.

%uzswap             what the kernel holds, and of what
%uzswap 4G          another limit
%uzswap reclaim     all memory that is not used now
"""

from typing import Any

from ._control import human, reclaim, set_memory, status
from ._errors import Error


def magic(line: str) -> None:
    """`%uzswap`: status; `%uzswap 4G`: limit; `%uzswap reclaim`: give back what is not used."""
    word = line.strip()
    try:
        if word == "reclaim":
            print(f"{human(reclaim())} freed")
        elif word:
            print(f"limit {human(set_memory(word))}")
        now = status()
        print(
            now
            if now is not None
            else "this kernel does not run under uzswap (see 'uzswap jupyter install')"
        )
    except Error as why:
        print(f"uzswap: {why}")


def load(shell: Any) -> None:
    shell.register_magic_function(magic, "line", "uzswap")
