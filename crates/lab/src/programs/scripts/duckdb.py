"""DuckDB in memory with two threads. Arguments: join, sort or group; thousands of rows."""
import hashlib
import sys

import duckdb

what, rows = sys.argv[1], int(sys.argv[2]) * 1000
# The memory limit that DuckDB would take from the machine would make it another program in each.
settings = {"threads": 2, "memory_limit": "8GB", "temp_directory": ""}
db = duckdb.connect(config=settings)
# A query that takes longer than two seconds draws one into the output, if Python runs a string.
db.execute("set enable_progress_bar = false")
db.execute(f"""create table events as select i as id, (i * 2654435761) % {rows // 8} as customer,
    (i * 40503) % 9973 as amount, 'item-' || ((i * 7919) % 100003) as item
    from range({rows}) t(i)""")
QUERIES = {
    "join": f"""select c.region, count(*), sum(e.amount), min(e.item), max(c.name)
        from events e join (select i as id, 'customer-' || (i * 31 % 1000003) as name,
            i % 97 as region from range({rows // 4}) t(i)) c on e.customer = c.id
        join (select customer as id, sum(amount) as spent from events group by 1) s
            on s.id = c.id
        group by 1 order by 1""",
    "sort": "select id, customer, item from events order by item, amount, id",
    "group": """select customer, item[1:8] as kind, count(*), sum(amount), max(id)
        from events group by 1, 2 order by 1, 2""",
}
result = db.execute(QUERIES[what])
digest, lines = hashlib.sha256(), 0
while chunk := result.fetchmany(50_000):
    # Some of the rows, by their places: all of them would be a benchmark of Python.
    digest.update(repr(chunk[::97]).encode())
    lines += len(chunk)
print(what, lines, digest.hexdigest())
