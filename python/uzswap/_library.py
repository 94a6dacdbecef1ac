"""The library for C, libuzswap.so.1, by ctypes: where it is, and what its functions take.

The names and layouts are those of uzswap.h, which says what they mean.
"""

import ctypes
import os
from typing import Any, Dict, Iterator, List

from ._errors import Error

NAME = "libuzswap.so.1"
PAGE_BYTES = 4096

# Of enum uzswap_result.
OK, INVALID, NOT_FOUND, FULL, OUT_OF_RANGE, CORRUPT, FORKED, STORE, SYSTEM, COMPRESSOR = range(10)

UNENCRYPTED = 1


class Config(ctypes.Structure):
    """struct uzswap_config"""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("memory_bytes", ctypes.c_uint64),
        ("compressor", ctypes.c_char_p),
        ("store_directory", ctypes.c_char_p),
        ("flags", ctypes.c_uint64),
    ]


class Stats(ctypes.Structure):
    """struct uzswap_cache_stats"""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("memory_bytes", ctypes.c_uint64),
        ("used_bytes", ctypes.c_uint64),
        ("pages", ctypes.c_uint64),
        ("same_filled_pages", ctypes.c_uint64),
        ("memory_pages", ctypes.c_uint64),
        ("store_pages", ctypes.c_uint64),
        ("incompressible_pages", ctypes.c_uint64),
        ("compressed_bytes", ctypes.c_uint64),
        ("store_bytes", ctypes.c_uint64),
        ("stores", ctypes.c_uint64),
        ("failed_stores", ctypes.c_uint64),
        ("loads", ctypes.c_uint64),
        ("store_loads", ctypes.c_uint64),
        ("missing_loads", ctypes.c_uint64),
        ("read_errors", ctypes.c_uint64),
        ("corrupt_loads", ctypes.c_uint64),
        ("drops", ctypes.c_uint64),
        ("written_back_pages", ctypes.c_uint64),
        ("written_bytes", ctypes.c_uint64),
        ("read_bytes", ctypes.c_uint64),
        ("store_error", ctypes.c_int64),
    ]


def _candidates() -> Iterator[str]:
    named = os.environ.get("UZSWAP_LIBRARY")
    if named:
        yield named
        return
    # In the package, as the wheel has it, and where the loader looks.
    yield os.path.join(os.path.dirname(os.path.abspath(__file__)), NAME)
    yield NAME


def load() -> ctypes.CDLL:
    """The library. UZSWAP_LIBRARY names another."""
    tried: List[str] = []
    for path in _candidates():
        try:
            library = ctypes.CDLL(path, use_errno=True)
        except OSError as why:
            tried.append(f"{path}: {why}")
        else:
            _declare(library)
            return library
    raise Error(
        f"there is no {NAME} ({'; '.join(tried)}): "
        "install the package again, or name it with UZSWAP_LIBRARY"
    )


def _declare(library: ctypes.CDLL) -> None:
    cache, area, number = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64
    given = ctypes.POINTER(ctypes.c_uint64)
    functions: Dict[str, List[Any]] = {
        "open": [ctypes.POINTER(Config), ctypes.POINTER(cache)],
        "store": [cache, area, number, ctypes.c_char_p],
        "load": [cache, area, number, ctypes.c_void_p],
        "drop": [cache, area, number],
        "drop_area": [cache, area, given],
        "shrink": [cache, ctypes.c_uint64, given],
        "set_memory": [cache, ctypes.c_uint64, given],
        "stats": [cache, ctypes.POINTER(Stats)],
        "before_fork": [cache],
        "after_fork": [cache, ctypes.c_int64],
    }
    for name, types in functions.items():
        function = library[f"uzswap_cache_{name}"]
        function.argtypes, function.restype = types, ctypes.c_int
    library.uzswap_cache_close.argtypes = [cache]
    library.uzswap_cache_close.restype = None
    library.uzswap_strerror.argtypes = [ctypes.c_int]
    library.uzswap_strerror.restype = ctypes.c_char_p
