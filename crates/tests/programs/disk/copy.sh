# nbdcopy both ways, by several connections, and what is there is what was copied; holes stay holes.
{ tar c -C /usr/lib/python3 . 2>/dev/null | head -c 20M; head -c 4M /dev/urandom; } >data
truncate -s 64M data
nbdcopy --connections=4 --requests=16 data "$NBD_URI"
nbdcopy --connections=4 "$NBD_URI" back
cmp data back
nbdcopy --synchronous --no-extents "$NBD_URI" - | cmp data -
nbdcopy --allocated "$NBD_URI" back && cmp data back
# Over what is there, with zeros and trims where the source has holes.
truncate -s 0 data && truncate -s 64M data
printf end | dd of=data bs=1 seek=67108861 conv=notrunc status=none
nbdcopy --destination-is-zero data "$NBD_URI"
nbdcopy data "$NBD_URI"
nbdcopy "$NBD_URI" - | cmp data -
[ "$("$UZSWAP" disk "$UZSWAP_DISK" stats | sed -n 's/^stored_pages //p')" -le 1 ]
