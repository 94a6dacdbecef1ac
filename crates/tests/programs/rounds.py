"""Goes through its memory in order, a byte of each page, again and again. Arguments: MiB, rounds.
Half of each page is random."""
import mmap
import os
import sys

PAGE = 4096
pages = int(sys.argv[1]) * 256
memory = mmap.mmap(-1, pages * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for page in range(pages):
    memory[page * PAGE : page * PAGE + PAGE // 2] = bytes([page % 251]) + os.urandom(PAGE // 2 - 1)
print(sum(sum(memory[::PAGE]) for _ in range(int(sys.argv[2]))))
