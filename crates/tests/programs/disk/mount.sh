# A file system on the disk, through nbdfuse and a loop device, as root.
attach() { device=$(losetup --find --show fuse/nbd); }
detach() { [ -z "${device:-}" ] || losetup -d "$device"; }
mkdir fuse
nbdfuse fuse "$NBD_URI" &
for _ in $(seq 1200); do [ -e fuse/nbd ] && break; sleep 0.05; done
. "$PROGRAMS/ext4.sh"
