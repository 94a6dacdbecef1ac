# A file system on the disk, through nbdfuse and a loop device, as root.
mkdir -p fuse mnt
loop=
clean() {
    mountpoint -q mnt && umount mnt
    [ -z "$loop" ] || losetup -d "$loop"
    mountpoint -q fuse && fusermount3 -u fuse
    return 0
}
trap clean EXIT
nbdfuse fuse "$NBD_URI" &
for _ in $(seq 1200); do [ -e fuse/nbd ] && break; sleep 0.05; done
loop=$(losetup --find --show fuse/nbd)
mkfs.ext4 -q -E nodiscard "$loop"
mount "$loop" mnt
tar c -C /usr/lib/python3 . 2>/dev/null | head -c 16M >tree.tar || true
cp tree.tar mnt/copy
mkdir mnt/many
for n in $(seq 300); do echo "file $n" >mnt/many/$n; done
rm mnt/many/*5
sync
umount mnt
losetup -d "$loop"
loop=$(losetup --find --show fuse/nbd)
fsck.ext4 -fn "$loop" >fsck.log || { cat fsck.log; exit 1; }
mount -o ro "$loop" mnt
cmp tree.tar mnt/copy
[ "$(cat mnt/many/77)" = "file 77" ]
[ ! -e mnt/many/75 ]
