# Compressors and archivers with large windows: made and unpacked again, the sum of both printed.

#: 7zip p7zip-full
#: needs 7z
lines 200000 >text
#: run
rm -f t.7z
7z a -mx=1 -m0=lzma2:d=12m -mmt=1 -bso0 -bsp0 t.7z text
7z e -so t.7z text | sha256sum

#: zstd-long zstd
#: needs zstd
lines 500000 >text
#: run
zstd -q -f -5 --long=27 --single-thread -k text -o t.zst
sha256sum t.zst
zstd -q -d --long=27 -c t.zst | sha256sum

#: brotli brotli
#: needs brotli
lines 200000 >text
#: run
brotli -f -k -q 5 --large_window=24 text -o t.br
sha256sum t.br
brotli -d --large_window=24 -c t.br | sha256sum

#: bzip3 bzip3
#: needs bzip3
lines 110000 >text
#: run
bzip3 -e -f -b 16 text t.bz3
sha256sum t.bz3
bzip3 -d -c t.bz3 | sha256sum

#: lrzip lrzip
#: needs lrzip
lines 100000 >text
#: run
rm -f t.lrz
lrzip -q -p 1 -L 5 -w 2 text -o t.lrz >/dev/null
lrzip -q -d -f -o back t.lrz >/dev/null
sha256sum back

#: lzip lzip
#: needs lzip
lines 60000 >text
#: run
lzip -f -k -8 text
sha256sum text.lz
lzip -d -c text.lz | sha256sum

#: xz-threads xz-utils
#: needs xz
lines 150000 >text
#: run
xz -f -k -5 -T2 --block-size=5MiB text
sha256sum text.xz
xz -T2 -d -c text.xz | sha256sum

#: squashfs squashfs-tools
#: needs mksquashfs unsquashfs
mkdir -p tree
for i in 1 2 3 4; do lines 70000 | tr 0-9 "$i-9x0-9" >tree/$i; done
#: run
rm -rf t.sqfs back
mksquashfs tree t.sqfs -comp xz -b 1M -processors 2 -no-progress -quiet -mkfs-time 0 -all-time 0 >&2
unsquashfs -q -n -d back t.sqfs >&2
cat back/* | sha256sum

#: borg borgbackup
#: needs borg
lines 60000 >text
#: run
export BORG_BASE_DIR=$PWD/base BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK=yes
rm -rf repo base
borg init -e none repo
borg create -C zstd,3 repo::a text
borg extract --stdout repo::a text | sha256sum

#: restic restic
#: needs restic
lines 200000 >text
#: run
export RESTIC_PASSWORD=x
rm -rf repo cache
restic -q --cache-dir cache -r repo init
restic -q --cache-dir cache -r repo backup text
restic -q --cache-dir cache -r repo dump latest /text | sha256sum
