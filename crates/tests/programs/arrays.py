"""NumPy: arrays, np.save, np.load, slices, matmul. Argument: scale (1.0 is about 200 MiB)."""
import hashlib
import os
import sys
import tempfile

import numpy as np

side = int(2000 * float(sys.argv[1]) ** 0.5)
rng = np.random.default_rng(11)


def show(name, array):
    array = np.ascontiguousarray(array)
    print(name, array.shape, array.dtype, hashlib.sha256(array).hexdigest())


a = rng.integers(0, 1000, (side, side))
b = rng.integers(-9, 9, (side, side), dtype=np.int16)
c = a * 3 + b.T
show("sum", c.sum(axis=0))
show("slices", a[::7, 3::5] - c[::7, 3::5])
f = a.astype(np.float64)
f[100:200] *= 0.5
f[:, ::2] += 1.25
show("matmul", f[:150] @ f[:, :170].copy())

with tempfile.TemporaryDirectory() as directory:
    path = os.path.join(directory, "f.npy")
    np.save(path, f)
    g = np.load(path)
    assert np.array_equal(f, g)
    m = np.load(path, mmap_mode="r")
    show("mapped", m[5::50, 7])
    np.savez_compressed(os.path.join(directory, "z.npz"), b=b[:500])
    show("z", np.load(os.path.join(directory, "z.npz"))["b"])

g.sort(axis=1)
show("sorted", g)
order = np.argsort(a.ravel(), kind="stable")
show("argsort", order[:: max(1, order.size // 100_000)])
show("unique", np.unique(a[a % 3 == 0]))
h = np.concatenate([c[:500].ravel(), b[:500].ravel()])
h.resize(h.size + 1000, refcheck=False)
show("end", h)
