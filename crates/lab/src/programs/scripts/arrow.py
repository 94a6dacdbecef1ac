"""PyArrow with two threads: columns computed, encoded, grouped, joined, sorted. Argument:
thousands of rows."""
import hashlib
import sys

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

pa.set_cpu_count(2)
rows = int(sys.argv[1]) * 1000
index = np.arange(rows)
events = pa.table({
    "key": pa.array(index * 15485863 % (rows // 4)),
    "amount": pa.array(index * 40503 % 9973),
    "price": pa.array((index * 7919 % 100_000) / 8),
    "word": pc.binary_join_element_wise(
        pa.array(index * 104729 % 1000003).cast(pa.string()), "word", "-"
    ),
})


def show(name, table):
    digest = hashlib.sha256()
    for batch in table.combine_chunks().to_batches():
        for column in batch.columns:
            digest.update(repr(column.to_pylist()).encode())
    print(name, table.num_rows, digest.hexdigest())


def every(table, step):
    return table.take(pa.array(np.arange(0, table.num_rows, step)))


BY = [("word", "ascending"), ("price", "descending"), ("key", "ascending")]
order = pc.sort_indices(events, BY)
events = events.take(order)
show("sorted", every(events, 50))
groups = events.group_by("key").aggregate([("amount", "sum"), ("word", "max"), ("price", "max")])
groups = groups.sort_by("key")
show("groups", every(groups, 10))
joined = events.join(groups, "key").sort_by(BY)
show("joined", every(joined, 50))
codes = joined["word"].combine_chunks().dictionary_encode().indices
show("codes", pa.table({"code": codes.slice(0, 50_000)}))
