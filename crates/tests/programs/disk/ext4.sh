# A file system on $device, which `attach` makes and `detach` ends.
mkdir mnt
clean() {
    umount -q mnt || true
    detach || true
    umount -q fuse 2>/dev/null || true
}
trap clean EXIT
attach
mkfs.ext4 -q -E nodiscard "$device"
mount "$device" mnt
tar c -C /usr/lib/python3 . 2>/dev/null | head -c 16M >tree.tar || true
cp tree.tar mnt/copy
mkdir mnt/many
for n in $(seq 300); do echo "file $n" >mnt/many/$n; done
rm mnt/many/*5
sync
umount mnt
detach
attach
fsck.ext4 -fn "$device" >fsck.log || { cat fsck.log; exit 1; }
mount -o ro "$device" mnt
cmp tree.tar mnt/copy
[ "$(cat mnt/many/77)" = "file 77" ]
[ ! -e mnt/many/75 ]
umount mnt
