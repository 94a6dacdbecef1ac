# Odd offsets, the ends of the disk, flags, two connections. A bytearray is the model.
import os, random
import nbd
uri, size = os.environ["NBD_URI"], 4 << 20
seed = int(os.environ.get("UZSWAP_TEST_SEED", "1"))
print("seed", seed)
r = random.Random(seed)

def connect(structured=True):
    c = nbd.NBD()
    c.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
    c.set_request_structured_replies(structured)
    c.connect_uri(uri)
    # The server is to say what is wrong, not the library.
    c.set_strict_mode(0)
    return c

one, two, plain = connect(), connect(), connect(False)
assert one.get_size() == size and one.can_multi_conn() and one.can_df() and not plain.can_df()
model = bytearray(size)
for step in range(1500):
    c = r.choice((one, two, plain))
    at = r.randrange(size)
    n = min(r.choice((1, 7, 511, 512, 4096, 4097, 65536, 100_001)), size - at)
    if r.random() < 0.3:
        at -= at % 4096
    kind = r.randrange(6)
    if kind < 2:
        data = r.choice((os.urandom(n), bytes(n), bytes([step % 255 + 1]) * n))
        c.pwrite(data, at, r.choice((0, nbd.CMD_FLAG_FUA)))
        model[at:at + n] = data
    elif kind == 2:
        c.zero(n, at, r.choice((0, nbd.CMD_FLAG_NO_HOLE, nbd.CMD_FLAG_FAST_ZERO, nbd.CMD_FLAG_FUA)))
        model[at:at + n] = bytes(n)
    elif kind == 3 and r.random() < 0.3:
        at, n = at // 4096 * 4096, max(n // 4096 * 4096, 4096)
        c.trim(n, at)
        model[at:at + n] = bytes(n)
    elif kind == 4 and c.can_df():
        assert c.pread(n, at, nbd.CMD_FLAG_DF) == model[at:at + n], (step, at, n)
    else:
        assert c.pread(n, at) == model[at:at + n], (step, at, n)
    if step % 100 == 0:
        one.flush()
assert two.pread(size, 0) == model

def fails(errno, call):
    try:
        call()
    except nbd.Error as e:
        assert e.errno == errno, (e.errno, errno)
    else:
        raise AssertionError("it did not fail")

for c in (one, plain):
    fails("EINVAL", lambda: c.pread(1, size))
    fails("EINVAL", lambda: c.pread(2, size - 1))
    fails("EINVAL", lambda: c.trim(2, size - 1))
    fails("ENOSPC", lambda: c.pwrite(b"xx", size - 1))
    fails("ENOSPC", lambda: c.zero(2, size - 1))
    fails("EINVAL", lambda: c.pread(1, 2**63 - 1))
    fails("EINVAL", lambda: c.pread(0, 0))
    # It goes on after each.
    assert c.pread(1, size - 1) == model[-1:]

extents = []
def extent(context, offset, entries, error):
    extents.extend(zip(entries[::2], entries[1::2]))
    return 0
one.block_status(size, 0, extent)
assert sum(n for n, _ in extents) == size
at = 0
for n, flags in extents:
    assert flags & nbd.STATE_ZERO == 0 or not any(model[at:at + n])
    at += n
extents.clear()
one.block_status(size, 0, extent, nbd.CMD_FLAG_REQ_ONE)
assert len(extents) == 1
for c in (one, two, plain):
    c.shutdown()
print("done")
