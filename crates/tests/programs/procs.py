"""CPython with threads, subprocess, os.fork and multiprocessing over one large heap. Argument:
scale (1.0 is about 200 MiB)."""
import hashlib
import multiprocessing
import os
import subprocess
import sys
import threading

scale = float(sys.argv[1])
count = int(400_000 * scale)


def record(i):
    return "%08x:%s" % (i * 2654435761 % 2**32, "abcdefghij" * (3 + i % 7))


def digest(items):
    h = hashlib.sha256()
    for item in items:
        h.update(item.encode())
    return h.hexdigest()


heap = [record(i) for i in range(count)]
index = {item[:8]: i for i, item in enumerate(heap)}


def part(k, parts):
    return heap[len(heap) * k // parts : len(heap) * (k + 1) // parts]


# Threads: each sorts a part of its own.
sorted_parts = [None] * 4


def sort_part(k):
    sorted_parts[k] = digest(sorted(part(k, 4)))


threads = [threading.Thread(target=sort_part, args=(k,)) for k in range(4)]
for t in threads:
    t.start()
for t in threads:
    t.join()
print("threads", *sorted_parts)

# subprocess: a large text goes through pipes to a child and comes back.
text = "\n".join(heap[::3]).encode()
child = subprocess.run(
    [
        sys.executable,
        "-c",
        "import sys; d = sys.stdin.buffer.read(); sys.stdout.buffer.write(d[::-1])",
    ],
    input=text,
    stdout=subprocess.PIPE,
    check=True,
)
assert child.stdout == text[::-1]
print("subprocess", hashlib.sha256(child.stdout).hexdigest())
del text, child
print("shell", subprocess.check_output("echo $((6 * 7)); exit 0", shell=True).decode().strip())

# os.fork: the child reads everything that the parent built, and changes its own copy.
sys.stdout.flush()
read_end, write_end = os.pipe()
pid = os.fork()
if pid == 0:
    before = digest(heap)
    for i in range(0, len(heap), 5):
        heap[i] = "child" + heap[i]
    os.write(write_end, (before + " " + digest(heap)).encode())
    os._exit(0)
for i in range(0, len(heap), 7):
    heap[i] = "parent" + heap[i]
answer = os.read(read_end, 200).decode()
assert os.waitpid(pid, 0)[1] == 0
print("fork", answer, digest(heap))


# multiprocessing: workers inherit the heap by fork and send results back.
def work(k):
    found = sum(index[i[-60:][:8]] if i[-60:][:8] in index else 1 for i in part(k, 8))
    return digest(sorted(part(k, 8))), found


with multiprocessing.get_context("fork").Pool(2) as pool:
    for result in pool.map(work, range(8)):
        print("pool", *result)
print("end", len(index), digest(heap))
