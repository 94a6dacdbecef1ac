"""CPython builds and sorts large dict, list and str structures. Argument: scale (1.0 is about 200
MiB)."""
import hashlib
import random
import sys

scale = float(sys.argv[1])
rng = random.Random(7)
count = int(100_000 * scale)

table = {}
for i in range(count):
    key = "key-%09d-%x" % (rng.randrange(10**9), i)
    table[key] = [i, i * 1.5, key[::-1], (i % 97, i % 89), (key + " ") * (30 + i % 40)]
names = sorted(table, key=lambda k: (k[-3:], k))
records = [table[k] for k in names]
records.sort(key=lambda r: (r[3][0], r[0]))
text = "\n".join(r[2] for r in records)

digest = hashlib.sha256(text.encode())
for record in records:
    digest.update(record[4].encode())
for name in names[:: max(1, count // 5000)]:
    digest.update(repr((name, table[name])).encode())
for key in names[: count // 2]:
    del table[key]
digest.update(repr(sum(v[0] for v in table.values())).encode())
print(len(table), len(text), digest.hexdigest())
