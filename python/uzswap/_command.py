"""Where the command `uzswap` is."""

import os
import shutil
import sysconfig
from typing import Iterator

from ._errors import Error

_NAME = "uzswap"


def _default_scheme() -> str:
    # Public since Python 3.10.
    find = getattr(sysconfig, "get_default_scheme", None)
    return str(find()) if find else "posix_prefix"


def _candidates() -> Iterator[str]:
    named = os.environ.get("UZSWAP_COMMAND")
    if named:
        yield named
        return
    # Beside the package: a plain installation, one of the user's, and `pip install --target`.
    for scheme in (_default_scheme(), f"{os.name}_user"):
        yield os.path.join(sysconfig.get_path("scripts", scheme), _NAME)
    yield os.path.join(os.path.dirname(os.path.dirname(__file__)), "bin", _NAME)
    found = shutil.which(_NAME)
    if found:
        yield found


def find_command() -> str:
    """The command's path. UZSWAP_COMMAND names another."""
    tried = []
    for path in _candidates():
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return path
        tried.append(path)
    raise Error(
        f"there is no command uzswap ({', '.join(tried)}): "
        "install the package again, or name it with UZSWAP_COMMAND"
    )
