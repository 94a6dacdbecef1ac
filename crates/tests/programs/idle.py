"""Holds MIB of data and does nothing until it is told to.

    idle.py MIB DIR

Makes DIR/orders, a fifo, and answers each line that comes there by the hash of its data, a line in
DIR/answers. The line "end" ends it. While it waits it neither runs nor touches anything.
"""
import hashlib
import os
import random
import sys

PIECE_BYTES = 64 << 10


def main():
    mib, directory = int(sys.argv[1]), sys.argv[2]
    rng = random.Random(mib)
    # Half of each piece is noise and half is text: it compresses, but not to nothing.
    data = [
        rng.randbytes(PIECE_BYTES // 2) + b"%016d" % i * (PIECE_BYTES // 32)
        for i in range((mib << 20) // PIECE_BYTES)
    ]
    os.mkfifo(directory + "/orders", 0o600)
    answers = open(directory + "/answers", "w")

    def answer():
        digest = hashlib.sha256()
        for piece in data:
            digest.update(piece)
        answers.write(digest.hexdigest() + "\n")
        answers.flush()

    answer()
    while True:
        with open(directory + "/orders") as orders:
            for line in orders:
                if line == "end\n":
                    print("ended as told")
                    return
                answer()


main()
