"""Arrays larger than memory, by four ways to hold them: docs/experiments/arrays.md.

    arrays.py numpy|memmap|blosc2|zarr MIB [DIRECTORY]

MIB of eight columns of tables and models are filled, summed twice, and read at random, by elements
and by slices of 64 KiB. `numpy` is for `uzswap run`, the others have their own way. DIRECTORY is
where memmap has its files. Prints seconds and microseconds, and sums that must be the same by all.
"""

import sys
import time

import numpy as np

BLOCK = 1 << 20
ELEMENTS, SLICES, SLICE_BYTES = 20_000, 5_000, 64 << 10


def walk(rng, at):
    """Prices: what comes next is near, in cents."""
    return np.round(100 + np.cumsum(rng.normal(0, 0.01, BLOCK)), 2)


COLUMNS = {
    "time": lambda rng, at: at + np.arange(BLOCK) * 1000 + rng.integers(0, 200, BLOCK),
    "price": walk,
    "category": lambda rng, at: np.minimum(rng.zipf(1.5, BLOCK), 5000).astype(np.int32),
    "weight": lambda rng, at: rng.normal(0, 0.02, BLOCK).astype(np.float32),
    "count": lambda rng, at: rng.poisson(3, BLOCK).astype(np.int64),
    "sparse": lambda rng, at: np.where(rng.random(BLOCK) < 0.05, rng.random(BLOCK), 0.0),
    "key": lambda rng, at: np.sort(rng.integers(at, at + (1 << 40), BLOCK)),
    "pixel": lambda rng, at: (np.cumsum(rng.integers(-3, 4, BLOCK)) & 255).astype(np.int32),
}


def empty(way, name, length, dtype, directory):
    if way == "numpy":
        return np.empty(length, dtype)
    if way == "memmap":
        return np.memmap(f"{directory}/{name}.array", dtype, "w+", shape=length)
    if way == "blosc2":
        import blosc2

        return blosc2.empty((length,), dtype=dtype)
    import zarr

    return zarr.create_array(zarr.storage.MemoryStore(), shape=(length,), dtype=dtype)


def total(way, array):
    if way == "zarr":
        step = array.chunks[0]
        return sum(float(array[i : i + step].sum()) for i in range(0, array.shape[0], step))
    return float(array.sum(dtype=None if way == "blosc2" else np.float64))


def main():
    way, mib = sys.argv[1], int(sys.argv[2])
    directory = sys.argv[3] if len(sys.argv) > 3 else "."
    rng = np.random.default_rng(5)
    began = time.perf_counter()
    columns = []
    for name, make in COLUMNS.items():
        dtype = make(np.random.default_rng(0), 0).dtype
        length = (mib << 20) // len(COLUMNS) // dtype.itemsize
        array = empty(way, name, length, dtype, directory)
        for at in range(0, length, BLOCK):
            array[at : at + BLOCK] = make(rng, at)[: length - at]
        columns.append(array)
    print(f"{way}: filled in {time.perf_counter() - began:.1f} s", flush=True)
    for _ in range(2):
        began = time.perf_counter()
        sums = [total(way, array) for array in columns]
        print(f"{way}: summed in {time.perf_counter() - began:.2f} s", flush=True)
    seen = 0.0
    picks = np.random.default_rng(9).random((ELEMENTS, 2))
    began = time.perf_counter()
    for which, where in picks:
        array = columns[int(which * len(columns))]
        seen += float(np.asarray(array[int(where * array.shape[0])]))
    took = (time.perf_counter() - began) / ELEMENTS * 1e6
    print(f"{way}: {took:.1f} us an element", flush=True)
    began = time.perf_counter()
    for which, where in picks[:SLICES]:
        array = columns[int(which * len(columns))]
        count = SLICE_BYTES // array.dtype.itemsize
        at = int(where * (array.shape[0] - count))
        seen += float(np.asarray(array[at : at + count]).sum(dtype=np.float64))
    took = (time.perf_counter() - began) / SLICES * 1e6
    print(f"{way}: {took:.0f} us a slice", flush=True)
    print("sums", *(f"{value:.6e}" for value in [*sums, seen]))


main()
