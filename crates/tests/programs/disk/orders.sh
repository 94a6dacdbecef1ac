# zram's files and orders, by the command.
disk() { "$UZSWAP" disk "$UZSWAP_DISK" "$@"; }
stat() { disk stats | sed -n "s/^$1 //p"; }
resident() { awk '/^RssAnon/ { print $2 }' /proc/$PPID/status; }
# A first connection has its buffers, the allocator its arenas, and the store those of its reads and
# writes, half a MiB: they stay.
head -c 1M /dev/urandom >data
nbdcopy data "$NBD_URI"
disk idle all
disk writeback idle >/dev/null
nbdcopy "$NBD_URI" - | cmp -n $((1 << 20)) data -
nbdsh -u "$NBD_URI" -c 'h.trim(h.get_size(), 0)'
sleep 0.5
start=$(resident)
{ tar c -C /usr/lib/python3 . 2>/dev/null | head -c 20M; head -c 4M /dev/urandom; } >data
truncate -s 64M data
nbdcopy data "$NBD_URI"
"$UZSWAP" disk ls | grep -q "^$UZSWAP_DISK  *64 MiB"
"$UZSWAP" disk ls --json | python3 -c 'import json, sys
assert json.load(sys.stdin)["disks"][0]["stats"]["bytes"] == 64 << 20'
[ "$(disk mm_stat | wc -w) $(disk io_stat | wc -w) $(disk bd_stat | wc -w)" = "9 4 3" ]
[ "$(stat incompressible_pages)" -ge 1000 ]
disk idle all
disk recompress idle | grep -q 'smaller now'
[ "$(stat recompressed_pages)" -gt 100 ]
disk writeback idle | grep -q 'pages written back'
[ "$(stat pool_pages)" = 0 ]
disk compact >/dev/null
nbdcopy "$NBD_URI" - | cmp data -
disk set memory=20M
disk set compressor=lz4
disk set read_only=1
refused nbdcopy data "$NBD_URI" 2>/dev/null
disk set read_only=0
refused disk set compressor=gzip 2>/dev/null
refused disk fly 2>/dev/null
refused "$UZSWAP" disk nobody mm_stat 2>/dev/null
nbdcopy "$NBD_URI" - | cmp data -
# All of it trimmed: the memory is back.
nbdsh -u "$NBD_URI" -c 'h.trim(h.get_size(), 0)'
[ "$(stat stored_pages)" = 0 ]
for _ in $(seq 600); do
    [ "$(resident)" -le $((start + start / 20 + 512)) ] && exit 0
    sleep 0.1
done
echo "resident: $start kB at first, $(resident) kB after a trim of everything"
exit 1
