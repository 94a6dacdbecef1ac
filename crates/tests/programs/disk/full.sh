# A disk that is full says so, and has what it acknowledged.
head -c 32M /dev/urandom >data
refused nbdcopy --requests=1 --connections=1 data "$NBD_URI" 2>nbdcopy.err
grep -qi 'no space' nbdcopy.err
python3 - <<'PY'
import os, nbd
h = nbd.NBD()
h.connect_uri(os.environ["NBD_URI"])
data = open("data", "rb").read()
stored = 0
for at in range(0, len(data), 4096):
    page = h.pread(4096, at)
    assert page in (data[at:at + 4096], bytes(4096)), at
    stored += page != bytes(4096)
assert 5 << 8 < stored < 8 << 8, stored
# What is there can be written again.
for at in range(0, 4 << 20, 4096):
    if h.pread(4096, at) != bytes(4096):
        h.pwrite(data[-at - 4096:][:4096], at)
        assert h.pread(4096, at) == data[-at - 4096:][:4096]
PY
"$UZSWAP" disk "$UZSWAP_DISK" set memory=64M
nbdcopy data "$NBD_URI"
nbdcopy "$NBD_URI" - | head -c 32M | cmp data -
