-- sqlite3 :memory: with joins, indices, updates and deletes. The table `scale` holds the number of rows.
CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT, value INTEGER, note TEXT);
INSERT INTO item
  WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < (SELECT rows FROM scale))
  SELECT i, printf('%08x-%d', i * 2654435761 % 4294967296, i), i * 7919 % 100003,
         replace(printf('%.*c', 6 + i % 9, 'x'), 'x', substr('the quick brown fox jumps over the lazy dog and runs away', 1 + i % 17, 20 + i % 23) || i) FROM n;
CREATE INDEX item_name ON item(name);
CREATE INDEX item_value ON item(value, name);
CREATE TABLE link AS SELECT id AS a, id * 31 % (SELECT rows FROM scale) + 1 AS b FROM item WHERE id % 3 = 0;
CREATE INDEX link_b ON link(b);
SELECT count(*), sum(value), min(name), max(name) FROM item;
SELECT value % 10 AS k, count(*), sum(id), max(note) FROM item GROUP BY k ORDER BY k;
SELECT count(*), sum(x.value * y.value % 1000) FROM link JOIN item x ON x.id = link.a JOIN item y ON y.id = link.b;
UPDATE item SET note = upper(note), value = value + 1 WHERE id % 5 = 0;
DELETE FROM item WHERE id % 7 = 0;
SELECT name, note FROM item ORDER BY note, name LIMIT 5 OFFSET 1000;
SELECT count(*), sum(value), sum(length(note)), sum(unicode(note)) FROM item;
PRAGMA integrity_check;
