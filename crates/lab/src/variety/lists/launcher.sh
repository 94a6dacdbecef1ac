# What starts programs in another way: sandboxes, name spaces, dropped rights, first processes of
# containers, preloaded libraries. The program inside is perl with many small values.

#: bwrap bubblewrap
#: needs bwrap perl
perl_objects
#: run
bwrap --dev-bind / / --unshare-pid --proc /proc --die-with-parent perl objects.pl

#: bwrap-net bubblewrap
#: needs bwrap perl
perl_objects
#: run
bwrap --ro-bind / / --unshare-net --unshare-ipc --unshare-uts --dev /dev --new-session perl objects.pl

#: unshare util-linux
#: needs unshare perl
perl_objects
#: run
unshare --pid --fork --mount --mount-proc perl objects.pl

#: unshare-user util-linux
#: needs unshare perl
perl_objects
#: run
unshare --user --map-root-user --pid --fork perl objects.pl

#: fakeroot fakeroot
#: needs fakeroot perl
perl_objects
#: run
fakeroot sh -c 'touch f; chown 7:8 f; stat -c "%u %g" f; perl objects.pl; rm -f f'

#: proot proot
#: needs proot perl
perl_objects
#: run
proot -b /etc:/here perl objects.pl

#: tini tini
#: needs tini perl
perl_objects
#: run
tini -s -- perl objects.pl

#: setpriv util-linux
#: needs setpriv perl
perl_objects
#: run
setpriv --reuid 65534 --regid 65534 --clear-groups --no-new-privs --bounding-set -all perl objects.pl

#: runuser util-linux
#: needs runuser perl
perl_objects
chmod 755 .
#: run
runuser -u nobody -- perl objects.pl

#: su util-linux
#: needs su perl
perl_objects
chmod 755 .
#: run
su -s /bin/sh nobody -c 'perl objects.pl'

#: prlimit util-linux
#: needs prlimit perl
perl_objects
#: run
prlimit --nofile=20 --stack=1048576 --core=0 perl objects.pl

#: setarch util-linux
#: needs setarch perl
perl_objects
#: run
setarch -R perl objects.pl

#: env coreutils
#: needs env setsid perl
perl_objects
#: run
env -i setsid -w perl objects.pl

#: xargs findutils
#: needs xargs perl
perl_objects
#: run
seq 3 | xargs -P 3 -I N perl objects.pl 90000 N | sort

#: strace strace
#: needs strace perl
perl_objects
#: run
strace -f -o /dev/null perl objects.pl

#: gdb gdb
#: needs gdb perl
perl_objects
#: run
gdb -q -batch -ex 'handle SIGBUS SIGSEGV nostop noprint pass' -ex run -ex quit --args perl objects.pl |
    grep sum

#: valgrind valgrind
#: needs valgrind
#: run
valgrind -q gawk 'BEGIN { for (i = 0; i < 120000; i++) a[i] = "value " i
    for (r = 0; r < 2; r++) for (i = 0; i < 120000; i++) s = (s * 31 + length(a[i])) % 1000003
    print s }'

#: jemalloc libjemalloc2
#: needs /usr/lib/x86_64-linux-gnu/libjemalloc.so.2 perl
perl_objects
#: run
LD_PRELOAD=${LD_PRELOAD:+$LD_PRELOAD:}/usr/lib/x86_64-linux-gnu/libjemalloc.so.2 perl objects.pl

#: mimalloc libmimalloc2.0
#: needs /usr/lib/x86_64-linux-gnu/libmimalloc.so.2 perl
perl_objects
#: run
LD_PRELOAD=${LD_PRELOAD:+$LD_PRELOAD:}/usr/lib/x86_64-linux-gnu/libmimalloc.so.2 perl objects.pl

#: tcmalloc libtcmalloc-minimal4
#: needs /usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4 perl
perl_objects
#: run
LD_PRELOAD=${LD_PRELOAD:+$LD_PRELOAD:}/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4 \
    perl objects.pl

#: busybox busybox-static
#: needs busybox
#: run
busybox awk 'BEGIN { for (i = 0; i < 600000; i++) a[i] = "value " i
    for (r = 0; r < 2; r++) for (i = 0; i < 600000; i++) s = (s * 31 + length(a[i])) % 1000003
    print s }'
