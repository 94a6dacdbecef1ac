"""uzswap from Python: programs in less memory than they need, seen and controlled from inside.

    python -m uzswap --memory 4G script.py ARGS     a script under uzswap, unchanged
    uzswap.restart(memory="50%")                    the same, from the head of the script
    uzswap.status()                                 what this process holds, and of what
    uzswap.set_memory("2G")                         another limit for its run
    uzswap.reclaim()                                all memory that is not used now
    uzswap.advise(array, "cold")                    what is known of one array
    uzswap.Cache("64M", store="/var/tmp")           pages under keys, compressed, in any process

A process is *managed* if it runs under uzswap. `status` answers None where it is not; what would
change something raises NotManaged. Nothing here is compiled: control goes over the run's socket,
advice is `madvise`, and Cache is the library for C, by ctypes.
"""

# A script that starts by this package waits for all that is imported here and on its way to exec
# (__main__, _command, _restart): nothing of the standard library that the interpreter has not
# loaded by itself. Type checkers know the name below.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._advice import Advice, advise
    from ._cache import Cache, CacheStats, Full
    from ._control import Process, Status, idle, reclaim, set_memory, status
    from ._errors import Error, NotManaged
    from ._managed import is_managed
    from ._restart import restart

__version__ = "0.1.0"
__all__ = [
    "Advice",
    "Cache",
    "CacheStats",
    "Error",
    "Full",
    "NotManaged",
    "Process",
    "Status",
    "advise",
    "idle",
    "is_managed",
    "reclaim",
    "restart",
    "set_memory",
    "status",
]

# Where each name is. They are imported when they are asked for.
_HOMES = {
    "_advice": ("Advice", "advise"),
    "_cache": ("Cache", "CacheStats", "Full"),
    "_control": ("Process", "Status", "idle", "reclaim", "set_memory", "status"),
    "_errors": ("Error", "NotManaged"),
    "_managed": ("is_managed",),
    "_restart": ("restart",),
}


def __getattr__(name: str) -> object:
    for module, names in _HOMES.items():
        if name in names:
            # Not by importlib, which itself has to be imported.
            home = __import__(f"{__name__}.{module}", fromlist=[name])
            found: object = getattr(home, name)
            globals()[name] = found
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_ipython_extension(shell: object) -> None:
    """`%load_ext uzswap` in IPython and notebooks: the magic `%uzswap`."""
    from . import _ipython

    _ipython.load(shell)
