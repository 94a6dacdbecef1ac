"""Pages under keys, compressed in memory, the coldest of them in a file: the library for C.

No thread and no signal is in it, and no uzswap need run: it is for programs that are not managed.
"""

import ctypes
import operator
import os
import re
import threading
import weakref
from dataclasses import dataclass, fields
from types import TracebackType
from typing import List, NoReturn, Optional, Type, Union

from . import _library as c
from ._errors import Error

PathLike = Union[str, "os.PathLike[str]"]

# Powers of 1024; of 1000 where a B alone follows (MB).
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}


class Full(Error):
    """Neither memory nor store has room for the page; an older one of its key is there still."""


@dataclass(frozen=True)
class CacheStats:
    """What a cache holds, and what it has done since it was opened."""

    #: the limit
    memory_bytes: int
    #: what it bounds: compressed pages and tables
    used_bytes: int
    #: stored pages
    pages: int
    #: of these, one word repeated
    same_filled_pages: int
    #: of these, compressed in memory
    memory_pages: int
    #: of these, in the store or on their way there
    store_pages: int
    #: of these, kept as they are
    incompressible_pages: int
    #: of the compressed pages in memory
    compressed_bytes: int
    #: disk space of the store
    store_bytes: int
    #: pages that were to be stored, taken or not
    stores: int
    #: of these, not taken
    failed_stores: int
    #: pages that were loaded
    loads: int
    #: of these, read from the store
    store_loads: int
    #: loads without a page
    missing_loads: int
    #: loads that the store failed
    read_errors: int
    #: loads of what is not what was written
    corrupt_loads: int
    #: pages dropped or replaced
    drops: int
    #: pages that went from memory to the store
    written_back_pages: int
    #: written to the store
    written_bytes: int
    #: read from it
    read_bytes: int
    #: errno of why writing to the store has stopped; 0: it has not
    store_error: int


def _bytes(size: Union[int, str]) -> int:
    """A size: bytes, or as the command takes it ("64M", "1.5 GiB")."""
    if isinstance(size, str):
        form = r"\s*(\d*)\.?(\d*)\s*(?:([kmgtp])(i?b)?|b?)\s*"
        found = re.fullmatch(form, size, re.IGNORECASE | re.ASCII)
        whole, part, unit, rest = found.groups("") if found else ("", "", "", "")
        if not whole and not part:
            raise ValueError(f'{size!r} is no size: give bytes, or "64M"')
        factor: int = (1000 if rest.lower() == "b" else 1024) ** _POWERS[unit.lower()]
        # Exact, as the command's are.
        number = int(whole + part or "0") * factor // 10 ** len(part)
    else:
        number = operator.index(size)
    # ctypes would take the lowest bits of others.
    if not 0 <= number < 1 << 64:
        raise ValueError(f"{size!r} is no size: it must be from 0 to 2**64 - 1 bytes")
    return number


class _Handle:
    """A cache of the library's, freed when nobody has the handle any more.

    Each call has it meanwhile, so that closing a cache beside a call frees nothing under it.
    """

    def __init__(self, config: c.Config) -> None:
        self.library = c.load()
        self.pointer = ctypes.c_void_p()
        result = self.library.uzswap_cache_open(ctypes.byref(config), ctypes.byref(self.pointer))
        if result != c.OK:
            self._fail(result, config)
        with _lock:
            _handles.add(self)

    def __del__(self) -> None:
        if getattr(self, "pointer", None):
            self.library.uzswap_cache_close(self.pointer)

    def _fail(self, result: int, config: Optional[c.Config] = None) -> NoReturn:
        said = self.library.uzswap_strerror(result).decode()
        if result == c.FULL:
            raise Full(said)
        if result in (c.STORE, c.SYSTEM):
            number = ctypes.get_errno()
            directory = config.store_directory if config else None
            raise OSError(number, f"{said}: {os.strerror(number)}", directory)
        if result == c.COMPRESSOR and config:
            raise ValueError(f"{said}: {config.compressor.decode(errors='replace')}")
        if result in (c.INVALID, c.OUT_OF_RANGE):
            raise ValueError(said)
        raise Error(said)

    def check(self, result: int) -> None:
        if result != c.OK:
            self._fail(result)


# All caches: a forked child is to have them, too. The lock is held from before a fork to after it,
# on both sides.
_handles: "weakref.WeakSet[_Handle]" = weakref.WeakSet()
_lock = threading.Lock()
_at_rest: List[_Handle] = []


def _before_fork() -> None:
    _lock.acquire()
    for handle in list(_handles):
        if handle.library.uzswap_cache_before_fork(handle.pointer) == c.OK:
            _at_rest.append(handle)


def _after_fork(pid: int) -> None:
    for handle in _at_rest:
        handle.library.uzswap_cache_after_fork(handle.pointer, pid)
    _at_rest.clear()
    _lock.release()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=lambda: _after_fork(1),
    after_in_child=lambda: _after_fork(0),
)


class Cache:
    """Pages of 4096 bytes under keys, in as much memory as is allowed.

        with uzswap.Cache("64M", store="/var/tmp") as cache:
            cache[17] = b"..."
            page = cache[17]

    `memory` bounds compressed pages and their tables. What finds no room there goes to an encrypted
    file without a name in the directory `store`, the least recently used first; without one, Full
    is raised. `compressor` is one of `uzswap help compressors`, as "zstd:level=3".

    A key is a page number below 2**32 - 1, of one of 31 areas. Numbers had better be dense: a table
    has four bytes for each up to the largest. Several threads may use a cache at once. Children of
    os.fork and multiprocessing have all pages and go on by themselves.
    """

    def __init__(
        self,
        memory: Union[int, str],
        *,
        compressor: Optional[str] = None,
        store: Optional[PathLike] = None,
        encrypt: bool = True,
    ) -> None:
        self._handle: Optional[_Handle] = None
        self._handle = _Handle(
            c.Config(
                size=ctypes.sizeof(c.Config),
                memory_bytes=_bytes(memory),
                compressor=None if compressor is None else compressor.encode(),
                store_directory=None if store is None else os.fsencode(store),
                flags=0 if encrypt else c.UNENCRYPTED,
            )
        )

    def _open(self) -> _Handle:
        handle = self._handle
        if handle is None:
            raise ValueError("the cache is closed")
        return handle

    @staticmethod
    def _key(area: int, number: int) -> None:
        # ctypes would take the lowest bits of others.
        if not 0 <= area < 1 << 32 or not 0 <= number < 1 << 64:
            raise ValueError("the area or the page number is too large")

    def put(self, number: int, page: "bytes | bytearray | memoryview", area: int = 0) -> None:
        """Stores a page under a key, in the place of an older one; zeros follow fewer than 4096
        bytes."""
        self._key(area, number)
        data = page if isinstance(page, bytes) else bytes(page)
        if len(data) != c.PAGE_BYTES:
            if len(data) > c.PAGE_BYTES:
                raise ValueError(f"a page has {c.PAGE_BYTES} bytes, not {len(data)}")
            data = data.ljust(c.PAGE_BYTES, b"\0")
        handle = self._open()
        handle.check(handle.library.uzswap_cache_store(handle.pointer, area, number, data))

    def get(self, number: int, area: int = 0) -> Optional[bytes]:
        """The page of a key, 4096 bytes, or None. It stays stored."""
        self._key(area, number)
        page = ctypes.create_string_buffer(c.PAGE_BYTES)
        handle = self._open()
        result = handle.library.uzswap_cache_load(handle.pointer, area, number, page)
        if result == c.NOT_FOUND:
            return None
        handle.check(result)
        return page.raw

    def drop(self, number: int, area: int = 0) -> bool:
        """Drops the page of a key; whether there was one."""
        self._key(area, number)
        handle = self._open()
        result = handle.library.uzswap_cache_drop(handle.pointer, area, number)
        if result != c.NOT_FOUND:
            handle.check(result)
        return bool(result == c.OK)

    def drop_area(self, area: int) -> int:
        """Drops all pages of an area; how many there were."""
        self._key(area, 0)
        handle, pages = self._open(), ctypes.c_uint64()
        dropped = handle.library.uzswap_cache_drop_area(handle.pointer, area, ctypes.byref(pages))
        handle.check(dropped)
        return pages.value

    def shrink(self, memory: Union[int, str] = 0) -> int:
        """Has all that is stored take at most so much memory, this once, by writing to the store
        and packing what stays; how much it takes afterwards."""
        handle, used = self._open(), ctypes.c_uint64()
        shrunk = handle.library.uzswap_cache_shrink
        handle.check(shrunk(handle.pointer, _bytes(memory), ctypes.byref(used)))
        return used.value

    def set_memory(self, memory: Union[int, str]) -> int:
        """Another limit from now on; how much memory is taken then."""
        handle, used = self._open(), ctypes.c_uint64()
        changed = handle.library.uzswap_cache_set_memory
        handle.check(changed(handle.pointer, _bytes(memory), ctypes.byref(used)))
        return used.value

    def stats(self) -> CacheStats:
        """What the cache holds, and what it has done."""
        handle, stats = self._open(), c.Stats(size=ctypes.sizeof(c.Stats))
        handle.check(handle.library.uzswap_cache_stats(handle.pointer, ctypes.byref(stats)))
        names = [field.name for field in fields(CacheStats)]
        return CacheStats(**{name: getattr(stats, name) for name in names})

    def close(self) -> None:
        """Frees all pages, once no other thread is in a call. It may be closed again."""
        self._handle = None

    def __enter__(self) -> "Cache":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def __setitem__(self, number: int, page: "bytes | bytearray | memoryview") -> None:
        self.put(number, page)

    def __getitem__(self, number: int) -> bytes:
        page = self.get(number)
        if page is None:
            raise KeyError(number)
        return page

    def __delitem__(self, number: int) -> None:
        if not self.drop(number):
            raise KeyError(number)

    def __len__(self) -> int:
        """Stored pages of all areas."""
        return self.stats().pages

    # Numbers are asked for, not gone through.
    __iter__ = None
    __contains__ = None
