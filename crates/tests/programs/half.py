"""Pages of which half is random and half is not: any codec makes a half of them. Arguments: MiB,
seconds.

It holds them for so long, and ends without giving anything back, so that the last counters are
those of all of it."""
import mmap
import os
import sys
import time

PAGE = 4096
pages = int(sys.argv[1]) * 256
memory = mmap.mmap(-1, pages * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for page in range(pages):
    memory[page * PAGE : page * PAGE + PAGE // 2] = os.urandom(PAGE // 2)
time.sleep(float(sys.argv[2]))
sys.stdout.write("held\n")
sys.stdout.flush()
os._exit(7)
