"""NumPy in memory: arithmetic, sorts, transposes, a product. Argument: side of the matrices (2400
needs about 250 MiB)."""
import hashlib
import sys

import numpy as np

side = int(sys.argv[1])
rng = np.random.default_rng(11)


def show(name, array):
    array = np.ascontiguousarray(array)
    print(name, array.shape, array.dtype, hashlib.sha256(array).hexdigest())


a = rng.integers(0, 1000, (side, side))
f = rng.integers(0, 100_000, (side, side)) / 8  # as measured values are: few digits
b = a * 3 + a.T
show("sum", b.sum(axis=0))
g = np.where(a % 3 == 0, f, a + f.T)
show("product", g[:100] @ g[:, :100].copy())
g.sort(axis=1)
show("sorted", g[::7])
order = np.argsort(a.ravel(), kind="stable")
show("order", order[:: max(1, order.size // 100_000)])
show("gathered", f.ravel()[order][::11])
for step in range(4):
    f += g * (step + 1)
    show("step", f[step::50])
show("unique", np.unique(b))
