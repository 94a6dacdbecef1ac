"""What the program knows of its memory: `madvise` on the pages of an array."""

import ctypes
import mmap
import os
from typing import Any, Iterator, List, Literal, Tuple

Advice = Literal["cold", "out", "need"]

# As the kernel numbers them.
_NUMBERS = {"need": 3, "cold": 20, "out": 21}
_PAGE = mmap.PAGESIZE
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class _Buffer(ctypes.Structure):
    """CPython's Py_buffer, the same since 3.0."""

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


def _itemsize(typestr: str) -> int:
    """The bytes of an element: the number behind the kind's letter. Of text ("<U10") it counts
    characters. A time has its unit behind it ("<M8[ns]"), an object ("|O") no number."""
    kind, number = typestr[1], typestr[2:].partition("[")[0]
    if not number:
        return ctypes.sizeof(ctypes.c_void_p)
    # NumPy's text is UCS-4.
    return int(number) * (4 if kind == "U" else 1)


def _bounds(interface: Any) -> Tuple[int, int]:
    """Where the bytes of an array lie, also of a view with steps or in another order."""
    start = interface["data"][0]
    low = high = start
    itemsize = _itemsize(interface["typestr"])
    shape = interface["shape"]
    if 0 in shape:
        return start, start
    strides = interface.get("strides")
    if strides is None:
        size = itemsize
        for n in shape:
            size *= n
        return start, start + size
    for n, stride in zip(shape, strides):
        if stride < 0:
            low += (n - 1) * stride
        else:
            high += (n - 1) * stride
    return low, high + itemsize


def _of_buffer(array: object) -> Tuple[int, int]:
    view, simple = _Buffer(), 0
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(array), ctypes.byref(view), simple)
    try:
        return view.buf or 0, (view.buf or 0) + view.len
    finally:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(view))


def _parts(array: Any) -> Iterator[Tuple[int, int]]:
    """Where the memory of an array lies, as addresses."""
    interface = getattr(array, "__array_interface__", None)
    if interface is not None:
        yield _bounds(interface)
    elif hasattr(array, "buffers") and callable(array.buffers):
        # An Arrow array, with its validity and offsets.
        for buffer in array.buffers():
            if buffer is not None:
                yield buffer.address, buffer.address + buffer.size
    elif hasattr(array, "chunks") and hasattr(array, "num_chunks"):
        for chunk in array.chunks:
            yield from _parts(chunk)
    elif hasattr(array, "itercolumns"):
        for column in array.itercolumns():
            yield from _parts(column)
    elif isinstance(array, (list, tuple)):
        for part in array:
            yield from _parts(part)
    else:
        try:
            yield _of_buffer(array)
        except (TypeError, BufferError) as why:
            raise TypeError(
                f"{type(array).__name__} does not say where its memory is: "
                "give NumPy or Arrow arrays, Arrow tables, buffers, or a list of them"
            ) from why


def _pages(start: int, end: int, outward: bool) -> Tuple[int, int]:
    """Whole pages: the neighbours on the first and the last come with an array, but do not go."""
    down, up = start // _PAGE * _PAGE, -(-end // _PAGE) * _PAGE
    return (down, up) if outward else (-(-start // _PAGE) * _PAGE, end // _PAGE * _PAGE)


def advise(array: object, advice: Advice) -> int:
    """Says of an array that it is cold, may go out at once, or is needed soon.

    What is "cold" goes before other memory. Of an array smaller than a page there may be nothing to
    say. Returns how many bytes the advice was about. It is given to the kernel where the process is
    not managed. "need" brings pages in while it is called, so call it in another thread to go on
    meanwhile.
    """
    number = _NUMBERS.get(advice)
    if number is None:
        raise ValueError(f'advice {advice!r} is none of "cold", "out" and "need"')
    # All of them first: an error leaves everything as it was.
    parts: List[Tuple[int, int]] = list(_parts(array))
    done = 0
    for low, high in parts:
        start, end = _pages(low, high, advice == "need")
        if start >= end:
            continue
        if _LIBC.madvise(start, end - start, number) != 0:
            error = ctypes.get_errno()
            raise OSError(error, f"madvise: {os.strerror(error)}")
        done += end - start
    return done
