# A file system, and then swap, on the kernel's own client, as root.
device=/dev/nbd0 group=/sys/fs/cgroup/$UZSWAP_DISK-$$
refused nbd-client -c $device
# The disk is protected, this script beside it is not.
refused grep -qx -e -1000 /proc/self/oom_score_adj
attach() { nbd-client -unix "$SOCKET" $device -name "$UZSWAP_DISK" -C 2; }
detach() {
    [ ! -d "$group" ] || echo 1 >"$group/cgroup.kill"
    swapoff $device 2>/dev/null || true
    nbd-client -d $device
    [ ! -d "$group" ] || rmdir "$group"
}
. "$PROGRAMS/ext4.sh"
mkswap -q $device
swapon --discard $device
mkdir "$group"
# A quarter of what the program needs; in a guest that has less, all that there is.
[ "$(awk '/^MemTotal/ { print $2 }' /proc/meminfo)" -lt 600000 ] || echo 160M >"$group/memory.max"
(echo $BASHPID >"$group/cgroup.procs" && exec "$TOUCH" 640 2)
"$UZSWAP" disk "$UZSWAP_DISK" stats >stats
awk '{ of[$1] = $2 } END { exit of["written_bytes"] < 2e8 || of["failed_writes"] }' stats
swapoff $device
