"""Arrays larger than memory, by four ways to hold them: docs/experiments/arrays.md.

    arrays.py make DIRECTORY
    arrays.py numpy|memmap|blosc2|zarr MIB DIRECTORY
    arrays.py all MIB DIRECTORY UZSWAP [ROUNDS]

`make` looks for real data in the files of this machine and writes a column of each kind: texts as
numbers of words, pictures as pixels, what the file system says of its files. A column for which
there is too little here is made up, and its line says so. The ways fill MIB of eight columns, sum
them twice, and read them at random, by elements and by slices of 64 KiB. A column that is shorter
is repeated. `numpy` is for `uzswap run`, the others have their own way. DIRECTORY is also where
memmap has its files. Prints seconds and microseconds, and sums that must be the same by all. `all`
runs the ways in turn, as root, in a memory group of half of MIB, and prints the table of medians.
"""

import collections
import hashlib
import itertools
import os
import pathlib
import re
import statistics
import subprocess
import sys
import sysconfig
import time

import numpy as np

BLOCK = 1 << 20
ELEMENTS, SLICES, SLICE_BYTES = 20_000, 5_000, 64 << 10
# The least of a column that counts as real: more than blosc2 and zarr compress as one, so that none
# finds the repetition. The most: to make it takes a minute, and it is a quarter of what is held.
LEAST_BYTES, MOST_BYTES = 2 << 20, 64 << 20
# Pictures that are smaller are icons, nearly empty.
PICTURE_LEAST_BYTES = 20 << 10
PLACES = ["/usr/share", "/usr/lib", sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")]

# ---------------------------------------------------------------- real data


def files(*suffixes):
    """Files below PLACES, in a fixed order; two with one content count as one."""
    seen = set()
    for place in dict.fromkeys(map(os.path.realpath, PLACES)):
        for directory, below, names in os.walk(place):
            below.sort()
            for name in sorted(names):
                path = pathlib.Path(directory, name)
                if path.suffix.lower() not in suffixes or path.is_symlink():
                    continue
                data = path.read_bytes()
                digest = hashlib.blake2b(data, digest_size=16).digest()
                if digest not in seen:
                    seen.add(digest)
                    yield path, data


def texts():
    """Words of programs and documents: their numbers by frequency, the places where they begin,
    the logarithms of their frequencies, and neighbours as one number."""
    words, begins, at, count = [], [], 0, 0
    for _, data in files(".py", ".txt", ".rst", ".md", ".html"):
        text = data.decode("utf-8", "replace")
        found = [(m.group(), m.start()) for m in re.finditer(r"\w+|[^\w\s]", text)]
        words += [word for word, _ in found]
        begins.append(np.array([start for _, start in found], np.int64) + at)
        at, count = at + len(text), count + 1
        if len(words) * 8 > MOST_BYTES:
            break
    ranked = collections.Counter(words).most_common()
    ranks = {word: rank for rank, (word, _) in enumerate(ranked)}
    tokens = np.fromiter((ranks[word] for word in words), np.int32, len(words))
    share = np.array([n for _, n in ranked] or [1.0]) / max(len(words), 1)
    origin = f"{count} texts"
    yield "word", tokens, origin
    yield "begin", np.concatenate(begins or [np.empty(0, np.int64)]), origin
    yield "frequency", np.log(share)[tokens], origin
    yield "pair", tokens[:-1].astype(np.int64) * len(ranked) + tokens[1:], origin


def pictures():
    """Pixels of pictures, and those as a model gets them: standardised floats."""
    try:
        from PIL import Image
    except ImportError:
        return
    parts, total = [], 0
    for path, data in files(".jpg", ".jpeg", ".png"):
        if len(data) < PICTURE_LEAST_BYTES:
            continue
        try:
            with Image.open(path) as picture:
                parts.append(np.asarray(picture.convert("RGB")).reshape(-1))
        except (OSError, ValueError):
            continue
        total += parts[-1].nbytes
        if total > MOST_BYTES:
            break
    pixels = np.concatenate(parts or [np.empty(0, np.uint8)])
    yield "pixel", pixels, f"{len(parts)} pictures"
    standard = (pixels[: MOST_BYTES // 4].astype(np.float32) / 255 - 0.449) / 0.226
    yield "standard", standard.astype(np.float32), f"{len(parts)} pictures"


def file_system():
    """Times and sizes of files, by directory."""
    times, sizes = [], []
    for directory, below, names in os.walk("/"):
        # Of another file system, /proc above all, the next run would see other ones.
        below[:] = sorted(d for d in below if not os.path.ismount(os.path.join(directory, d)))
        for name in names:
            try:
                found = os.lstat(os.path.join(directory, name))
            except OSError:
                continue
            times.append(found.st_mtime)
            sizes.append(found.st_size)
        if len(sizes) * 8 > MOST_BYTES:
            break
    # Seconds: the sum of as many nanoseconds is more than 64 bits hold.
    yield "changed", np.array(times, np.float64), f"{len(times)} files"
    yield "size", np.array(sizes, np.int64), f"{len(sizes)} files"


# In place of a column for which there is too little here.
MADE_UP = {
    "word": lambda rng: np.minimum(rng.zipf(1.5, BLOCK), 5000).astype(np.int32),
    "begin": lambda rng: np.cumsum(rng.poisson(3, BLOCK)).astype(np.int64),
    "frequency": lambda rng: np.log(1 / np.minimum(rng.zipf(1.5, BLOCK), 5000)),
    "pair": lambda rng: np.minimum(rng.zipf(1.3, BLOCK), 1 << 30).astype(np.int64),
    "pixel": lambda rng: (np.cumsum(rng.integers(-3, 4, 4 * BLOCK)) & 255).astype(np.uint8),
    "standard": lambda rng: rng.normal(0, 1, BLOCK).astype(np.float32),
    "changed": lambda rng: np.sort(rng.random(BLOCK)) * 1e9,
    "size": lambda rng: rng.lognormal(8, 2, BLOCK).astype(np.int64),
}


def make(directory):
    real = itertools.chain(texts(), pictures(), file_system())
    real = {name: (column, origin) for name, column, origin in real}
    lines = []
    for name, make_up in MADE_UP.items():
        column, origin = real.get(name, (np.empty(0), "nothing"))
        if column.nbytes < LEAST_BYTES:
            why = f"made up: {origin} found, and {column.nbytes >> 10} KiB are too little"
            column, origin = make_up(np.random.default_rng(5)), why
        np.save(directory / f"{name}.npy", column)
        line = f"{name}: {column.dtype}, {column.nbytes / 2**20:.1f} MiB, {origin}"
        lines.append(line)
        print(line, flush=True)
    (directory / "origins.txt").write_text("; ".join(lines))


# ---------------------------------------------------------------- ways to hold it


def empty(way, name, length, dtype, directory):
    if way == "numpy":
        return np.empty(length, dtype)
    if way == "memmap":
        return np.memmap(directory / f"{name}.array", dtype, "w+", shape=length)
    if way == "blosc2":
        import blosc2

        return blosc2.empty((length,), dtype=dtype)
    import zarr

    return zarr.create_array(zarr.storage.MemoryStore(), shape=(length,), dtype=dtype)


def blocks(path):
    """The column as many times as it is asked for, a part at a time."""
    column = np.load(path, mmap_mode="r")
    while True:
        for at in range(0, len(column), BLOCK):
            yield np.array(column[at : at + BLOCK])


def fill(array, path):
    at, length = 0, array.shape[0]
    for block in blocks(path):
        block = block[: length - at]
        array[at : at + len(block)] = block
        at += len(block)
        if at == length:
            return


def total(way, array):
    if way == "zarr":
        step = array.chunks[0]
        parts = (array[i : i + step] for i in range(0, array.shape[0], step))
        return sum(float(part.sum(dtype=np.float64)) for part in parts)
    return float(array.sum(dtype=np.float64))


def measure(way, mib, directory):
    began = time.perf_counter()
    columns = []
    for name in MADE_UP:
        path = directory / f"{name}.npy"
        dtype = np.load(path, mmap_mode="r").dtype
        length = (mib << 20) // len(MADE_UP) // dtype.itemsize
        columns.append(empty(way, name, length, dtype, directory))
        fill(columns[-1], path)
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


# ---------------------------------------------------------------- all of them


# What each way prints, in the order of the table's columns; the second of two sums.
FIGURES = [r"filled in ([\d.]+)", r"summed in ([\d.]+)", r"([\d.]+) us an el", r"(\d+) us a slice"]


def run(command, group):
    """The figures and sums of one run; the group's members are the command and what it starts."""
    if group is not None:
        enter = f'echo $$ >{group.members_file} && exec "$@"'
        command = ["/bin/sh", "-c", enter, "enter", *command]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    found = [re.findall(figure, done.stdout) for figure in FIGURES]
    if done.returncode != 0 or not all(found):
        return None, None
    return [float(each[-1]) for each in found], done.stdout.splitlines()[-1]


def compare(mib, directory, uzswap, rounds):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "python" / "tests"))
    from group import Group

    def words(way, *before):
        return [*before, sys.executable, __file__, way, str(mib), str(directory)]

    under = [uzswap, "run", "--quiet"]
    ways = {
        "NumPy, with all its memory": (words("numpy"), False),
        "NumPy by `uzswap run`": (words("numpy", *under, "--"), True),
        "NumPy by `uzswap run --store none`": (words("numpy", *under, "--store=none", "--"), True),
        "`np.memmap` on the disk": (words("memmap"), True),
        "blosc2": (words("blosc2"), True),
        "zarr in memory": (words("zarr"), True),
    }
    group = Group("arrays", mib << 19)
    seen, sums = {way: [] for way in ways}, set()
    try:
        for round_ in range(rounds):
            for way, (command, is_grouped) in ways.items():
                figures, said = run(command, group if is_grouped else None)
                print(f"round {round_ + 1}, {way}: {figures or 'failed'}", flush=True)
                if figures:
                    seen[way].append(figures)
                    sums.add(said)
    finally:
        group.close()
    print(f"\n| {(directory / 'origins.txt').read_text()} | fill, s | sum again, s | element, us |"
          " slice, us |\n|---|---|---|---|---|")
    for way, runs in seen.items():
        cells = [f"{statistics.median(each):g}" for each in zip(*runs)] or ["failed"] * 4
        print(f"| {way} | {' | '.join(cells)} |")
    if len(sums) > 1:
        sys.exit(f"the ways differ: {sums}")


def main():
    way = sys.argv[1]
    if way == "make":
        directory = pathlib.Path(sys.argv[2])
        directory.mkdir(parents=True, exist_ok=True)
        make(directory)
        return
    mib, directory = int(sys.argv[2]), pathlib.Path(sys.argv[3])
    if way == "all":
        compare(mib, directory, sys.argv[4], int(sys.argv[5]) if len(sys.argv) > 5 else 5)
    else:
        measure(way, mib, directory)


main()
