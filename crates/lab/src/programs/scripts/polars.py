"""polars with two threads: join, group, sort. Argument: thousands of rows."""
import hashlib
import os
import sys

os.environ["POLARS_MAX_THREADS"] = "2"
import polars as pl

rows = int(sys.argv[1]) * 1000
index = pl.int_range(rows, eager=True)
people = pl.DataFrame({
    "id": index,
    "name": pl.select(pl.format("name-{}", index * 104729 % 1000003)).to_series(),
    "town": index * 31 % 211,
})
orders = pl.select(i=pl.int_range(rows * 3)).select(
    person=pl.col("i") * 15485863 % rows,
    amount=pl.col("i") * 40503 % 9973,
    note=pl.format("note {} of {}", pl.col("i") % 5003, pl.col("i") * 7 % 11),
)


def show(name, frame):
    digest = hashlib.sha256(frame.write_csv().encode()).hexdigest()
    print(name, frame.height, digest)


both = orders.join(people, left_on="person", right_on="id")
show("sorted", both.sort("note", "amount", "person").gather_every(20))
towns = both.group_by("town").agg(
    pl.len(), pl.col("amount").sum().alias("sum"), pl.col("name").max().alias("last")
)
show("towns", towns.sort("town"))
names = both.group_by("name", "note").agg(pl.col("amount").max(), pl.len())
show("names", names.sort("name", "note").gather_every(100))
