"""Holds data that it does not touch while others work: MIB, KIB, and a program with its arguments.
With LOCKED in the environment the data is locked in memory, and new memory is touched while the
program runs.

Runs the program again and again until this process has less than KIB of anonymous memory, but once
at least and 60 times at most. Prints what the program printed, once if it was always the same, and
a hash of the data, before and after. Exits with 3 if its memory did not become less."""
import ctypes
import hashlib
import os
import random
import subprocess
import sys
import time

PIECE_BYTES = 64 << 10

mib, kib, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
rng = random.Random(mib)
# Half of each piece is noise and half is text: it compresses, but not to nothing.
data = [
    rng.randbytes(PIECE_BYTES // 2) + b"%016d" % i * (PIECE_BYTES // 32)
    for i in range((mib << 20) // PIECE_BYTES)
]

if "LOCKED" in os.environ:
    MCL_CURRENT = 1
    assert ctypes.CDLL(None).mlockall(MCL_CURRENT) == 0


def digest():
    whole = hashlib.sha256()
    for piece in data:
        whole.update(piece)
    return whole.hexdigest()


def anonymous_kib():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon:"))


print(digest())
printed, runs, before = set(), 0, anonymous_kib()
while runs == 0 or anonymous_kib() >= kib > 0 and runs < 60:
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        while "LOCKED" in os.environ and other.poll() is None:
            bytearray(256 << 10)
            time.sleep(0.01)
        printed.add(other.stdout.read())
    assert other.returncode == 0
    runs += 1
after = anonymous_kib()
print(sorted(printed))
print(digest())
print(f"{before} KiB, then {after} KiB after {runs} runs", file=sys.stderr)
sys.exit(3 if after >= kib > 0 else 0)
