"""pandas: merge, group, sort, reshape. Arguments: object or arrow (the kind of columns);
thousands of rows."""
import hashlib
import sys

import pandas as pd

kind, rows = sys.argv[1], int(sys.argv[2]) * 1000
text = {"object": object, "arrow": "string[pyarrow]"}[kind]
whole = {"object": object, "arrow": "int64[pyarrow]"}[kind]


def column(words, dtype):
    return pd.Series(list(words), dtype=dtype)


people = pd.DataFrame({
    "id": column((i * 7919 % rows for i in range(rows)), whole),
    "name": column((f"name-{i * 104729 % 1000003:07}" for i in range(rows)), text),
    "town": column((f"town-{i * 31 % 211}" for i in range(rows)), text),
})
orders = pd.DataFrame({
    "person": column((i * 15485863 % rows for i in range(rows * 2)), whole),
    "amount": column((i * 40503 % 9973 for i in range(rows * 2)), "int64"),
})


def show(name, frame):
    csv = frame.to_csv(index=False).encode()
    print(name, len(frame), hashlib.sha256(csv).hexdigest())


both = orders.merge(people, left_on="person", right_on="id", how="inner")
by = ["town", "name", "amount"]
show("sorted", both.sort_values(by, kind="stable").iloc[::50])
towns = both.groupby("town").agg(n=("amount", "size"), sum=("amount", "sum"), last=("name", "max"))
show("towns", towns.reset_index().sort_values("town"))
both["initial"] = both["name"].str.slice(5, 7)
table = both.pivot_table(index="initial", columns="town", values="amount", aggfunc="sum")
show("table", table.fillna(0).astype("int64").reset_index())
show("many", both[both["name"].str.endswith("7")].drop_duplicates("name").sort_values("name"))
