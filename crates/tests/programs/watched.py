"""A program to be watched: builds a heap, reads it over, starts others, then waits. Arguments: MiB,
directory.

It makes DIRECTORY/ready when there is nothing more to see, and ends when DIRECTORY/go is there."""
import hashlib
import os
import random
import subprocess
import sys
import time

mib, directory = int(sys.argv[1]), sys.argv[2]
rng = random.Random(7)
# Half noise, half one byte: compresses about twofold.
heap = [rng.randbytes(32 << 10) + bytes([i % 251]) * (32 << 10) for i in range(mib * 16)]
for _ in range(2):
    digest = hashlib.sha256()
    for piece in heap:
        digest.update(piece)
print(digest.hexdigest())

for _ in range(3):
    subprocess.run(["true"], check=True)

pid = os.fork()
if pid == 0:
    total = sum(piece[0] for piece in heap)
    os._exit(0 if total > 0 else 1)
assert os.waitpid(pid, 0)[1] == 0

open(os.path.join(directory, "ready"), "w").close()
while not os.path.exists(os.path.join(directory, "go")):
    time.sleep(0.02)
# To take the heap apart would be to bring all of it back.
sys.stdout.flush()
os._exit(0)
