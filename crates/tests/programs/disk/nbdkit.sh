# nbdkit in front of the disk: a proxy that aligns, one that fails requests, and one that checks
# writes.
{ tar c -C /usr/lib/python3 . 2>/dev/null | head -c 10M; head -c 1M /dev/urandom; } >data
truncate -s 64M data
nbdkit -U - nbd "$NBD_URI" --filter=blocksize minblock=64k maxdata=256k --run 'nbdcopy data "$uri"'
nbdkit -U - nbd "$NBD_URI" --filter=blocksize maxdata=4k --run 'nbdcopy "$uri" back'
cmp data back
# Fails unless what is written is what is there.
nbdkit -U - nbd "$NBD_URI" --filter=checkwrite --run 'nbdcopy data "$uri"'
# One request in some fails on the way: whatever the client and the proxy make of it, what is there
# is unharmed.
nbdkit -U - nbd "$NBD_URI" --filter=error error=EIO error-pread-rate=5% \
    --run 'nbdcopy "$uri" null:' || true
nbdkit -U - nbd "$NBD_URI" --filter=nozero --filter=noextents --filter=fua fuamode=force \
    --run 'nbdcopy "$uri" back'
cmp data back
