# Clients that are killed in the middle of a write, and the disk afterwards.
head -c 40M /dev/zero | tr '\0' 'k' >data
for wait in 0.02 0.05 0.1; do
    nbdcopy --connections=4 data "$NBD_URI" &
    client=$!
    sleep $wait
    kill -KILL $client 2>/dev/null || true
    wait $client || true
done
nbdcopy data "$NBD_URI"
nbdcopy "$NBD_URI" - | head -c 40M | cmp data -
for _ in $(seq 1200); do
    [ "$("$UZSWAP" disk "$UZSWAP_DISK" stats | sed -n 's/^clients //p')" = 0 ] && exit 0
    sleep 0.05
done
exit 1
