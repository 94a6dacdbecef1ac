# QEMU's block layer: images on the disk, patterns, discards, zeroes.
io() { qemu-io -f raw "$@" "$NBD_URI" | tee -a io.log; }
image="nbd+unix:///$UZSWAP_DISK?socket=$SOCKET"
{ tar c -C /usr/lib/python3 . 2>/dev/null | head -c 12M; head -c 2M /dev/urandom; } >data
truncate -s 24M data
qemu-img convert -n -f raw -O raw data "$image"
truncate -s 64M data
qemu-img compare -f raw -F raw data "$image"
io -c 'write -P 0xa5 1000 70000' -c 'read -P 0xa5 1000 70000' -c 'discard 8k 16k' \
   -c 'read -P 0 8k 16k' -c 'read -P 0xa5 1000 7192' -c 'read -P 0xa5 24k 45k' >/dev/null
io -c 'write -z -u 4097 10000' -c 'read -P 0 4097 10000' -c 'read -P 0xa5 1000 3097' \
   -c 'aio_write -P 0x11 1M 4M' -c 'aio_write -P 0x22 5M 4M' -c 'aio_flush' \
   -c 'aio_read -P 0x11 1M 4M' -c 'aio_read -P 0x22 5M 4M' -c 'aio_flush' \
   -c 'write -z 2M 1M' -c 'read -P 0 2M 1M' -c 'read -P 0x11 3M 2M' -c 'flush' >/dev/null
refused grep -iE 'failed|mismatch|error' io.log
# A qcow2 image on the disk, written, checked, compared.
head -c 24M data >source
qemu-img create -q -f qcow2 "$image" 40M
qemu-img convert -n -f raw -O qcow2 source "$image"
qemu-img check -q -f qcow2 "$image"
qemu-img compare -q -f raw -F qcow2 source "$image"
qemu-img bench -q -f qcow2 -w -c 300 -d 16 -s 16384 "$image" >/dev/null
qemu-img check -q -f qcow2 "$image"
