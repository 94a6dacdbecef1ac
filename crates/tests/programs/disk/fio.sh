# fio's own verification: random sizes and places, many requests in flight, two jobs on parts of
# one disk.
cat >job.fio <<'F'
[global]
ioengine=nbd
uri=${NBD_URI}
thread
size=24m
offset_increment=24m
numjobs=2
verify=crc32c
verify_fatal=1
do_verify=1
iodepth=16
group_reporting
refill_buffers
buffer_compress_percentage=50
[sizes]
rw=randrw
bsrange=512-64k
blockalign=512
io_size=40m
[sequence]
stonewall
rw=write
bs=16k
verify_backlog=256
[trims]
stonewall
rw=randtrimwrite
bs=8k
verify=0
io_size=16m
F
fio --output=fio.log job.fio || { cat fio.log; exit 1; }
refused grep -q 'verify:' fio.log
