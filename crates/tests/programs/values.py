"""Pages that are read again and again, each round compared with what they were.

Arguments: MiB, seconds[, pause]. Half of each page is random. After the first round it pauses for
so many seconds, if any. Prints what all of it is in the end; then, on a line of its own, the
longest time that one MiB of it took.
"""
import hashlib
import os
import random
import sys
import time

MIB = 1 << 20
count, seconds = int(sys.argv[1]), float(sys.argv[2])
pause = float(sys.argv[3]) if len(sys.argv) > 3 else 0
source = random.Random(7)


def piece():
    """Half of it by bytes that nothing compresses, in runs of 512."""
    return b"".join(source.randbytes(512) + bytes(512) for _ in range(MIB // 1024))


pieces = [bytearray(piece()) for _ in range(count)]
sums = [hashlib.sha256(p).digest() for p in pieces]
end, longest, rounds = time.monotonic() + seconds, 0.0, 0
while rounds < 2 or time.monotonic() < end:
    for p, s in zip(pieces, sums):
        before = time.monotonic()
        if hashlib.sha256(p).digest() != s:
            print("wrong bytes")
            sys.exit(1)
        longest = max(longest, time.monotonic() - before)
    if rounds == 0:
        time.sleep(pause)
    rounds += 1
print(hashlib.sha256(b"".join(sums)).hexdigest(), os.environ.get("UZSWAP_STORE_PASSWORD"))
print(f"the longest of {rounds} rounds took {longest * 1000:.0f} ms")
