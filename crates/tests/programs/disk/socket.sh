# libnbd starts a disk itself, on a socket that it listens on already.
head -c 3000000 /dev/urandom >data
[ "$(nbdinfo --size [ "$UZSWAP" disk 5M ])" = 5242880 ]
nbdcopy data [ "$UZSWAP" disk 3M ]
