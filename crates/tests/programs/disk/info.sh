# What nbdinfo reads of a disk: size, flags, contexts, block sizes, the list, the map.
nbdinfo --json "$NBD_URI" >info.json
python3 - info.json <<'PY'
import json, sys
info = json.load(open(sys.argv[1]))
assert info["structured"] is True and info["TLS"] is False, info
[export] = info["exports"]
names = "can_cache can_df can_fast_zero can_flush can_fua can_multi_conn can_trim can_zero"
for name in names.split():
    assert export[name] is True, (name, export)
assert export["is_rotational"] is False and export["is_read_only"] is False
assert export["export-size"] == 64 << 20
sizes = [export["block_size_" + name] for name in ("minimum", "preferred", "maximum")]
assert sizes == [1, 4096, 32 << 20], sizes
allocation = "base:allocation"
assert any(c == allocation or c.get("name") == allocation for c in export["contexts"]), export
PY
[ "$(nbdinfo --size "$NBD_URI")" = 67108864 ]
refused nbdinfo --is read-only "$NBD_URI"
nbdinfo --list "nbd+unix:///?socket=$SOCKET" | grep -q "export=\"$UZSWAP_DISK\""
# An export that is not there is refused.
refused nbdinfo "nbd+unix:///no?socket=$SOCKET" 2>/dev/null
# 1 MiB of data at 8 MiB, zeros that are kept after it: data, zero and hole.
nbdsh -u "$NBD_URI" -c 'h.pwrite(b"x" * (1 << 20), 8 << 20)' \
    -c 'h.zero(1 << 20, 9 << 20, nbd.CMD_FLAG_NO_HOLE)'
nbdinfo --map "$NBD_URI" | awk '{ print $1, $2, $3 }' >map
printf '%s\n' '0 8388608 3' '8388608 1048576 0' '9437184 1048576 2' '10485760 56623104 3' |
    cmp - map
nbdinfo --map --totals "$NBD_URI" | grep -q hole,zero
