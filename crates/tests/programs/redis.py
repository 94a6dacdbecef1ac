"""redis-server, filled over its unix socket, changed during BGSAVE (fork), reloaded; digests
compared.

Argument: scale (1.0 is about 200 MiB). Speaks the protocol itself: no client library is needed.
"""
import os
import socket
import subprocess
import sys
import tempfile
import time

scale = float(sys.argv[1])
directory = tempfile.mkdtemp()
path = os.path.join(directory, "s")


class Server:
    def __init__(self):
        options = {"port": "0", "save": "", "appendonly": "no", "enable-debug-command": "yes"}
        options |= {"loglevel": "warning", "unixsocket": path, "dir": directory}
        command = ["redis-server"] + [word for k, v in options.items() for word in ("--" + k, v)]
        self.log = open(os.path.join(directory, "log"), "a+")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        while True:
            self.socket = socket.socket(socket.AF_UNIX)
            try:
                self.socket.connect(path)
                break
            except OSError:
                self.socket.close()
                if self.process.poll() is not None:
                    self.log.seek(0)
                    why = self.process.returncode, self.log.read()
                    sys.exit("redis-server ended: %s\n%s" % why)
                time.sleep(0.02)
        self.file = self.socket.makefile("rb")
        while True:
            try:
                self.ask("PING")
                break
            except RuntimeError:  # LOADING
                time.sleep(0.05)

    def send(self, *words):
        words = [w if isinstance(w, bytes) else str(w).encode() for w in words]
        return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)

    def reply(self):
        line = self.file.readline()
        if not line:
            raise EOFError("the server closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise RuntimeError(rest.decode())
        if kind == b"$":
            return None if rest == b"-1" else self.file.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return [self.reply() for _ in range(int(rest))]
        return rest.decode()

    def ask(self, *words):
        self.socket.sendall(self.send(*words))
        return self.reply()

    def pipeline(self, commands):
        commands = list(commands)
        for i in range(0, len(commands), 500):
            batch = commands[i : i + 500]
            self.socket.sendall(b"".join(self.send(*c) for c in batch))
            for _ in batch:
                self.reply()

    def info(self, key):
        for line in self.ask("INFO", "persistence").decode().splitlines():
            if line.startswith(key + ":"):
                return line.split(":")[1]

    def end(self):
        try:
            self.ask("SHUTDOWN", "NOSAVE")
        except EOFError:
            pass
        if self.process.wait() != 0:
            sys.exit("redis-server: exit %s" % self.process.returncode)


def value(i):
    return ("%x" % (i * 2654435761 + 7) * 600)[: 2000 + i % 3000]


strings, lists = int(40_000 * scale), int(500 * scale)
server = Server()
for first in range(0, strings, 20_000):
    some = range(first, min(strings, first + 20_000))
    server.pipeline(("SET", "string:%d" % i, value(i)) for i in some)
server.pipeline(
    ("RPUSH", "list:%d" % i, *[value(i * 100 + j) for j in range(15)]) for i in range(lists)
)
server.pipeline(
    ("HSET", "hash:%d" % i, *[x for j in range(5) for x in (j, value(i + j))]) for i in range(lists)
)
before = server.ask("DEBUG", "DIGEST")
print("filled", server.ask("DBSIZE"), before)

# While the child saves, the parent goes on changing what it saves.
server.ask("BGSAVE")
server.pipeline(("SETRANGE", "string:%d" % i, 3, "changed") for i in range(0, strings, 50))
while server.info("rdb_bgsave_in_progress") != "0":
    time.sleep(0.02)
assert server.info("rdb_last_bgsave_status") == "ok", "BGSAVE failed"
print("changed", server.ask("DEBUG", "DIGEST"))
server.end()

server = Server()
after = server.ask("DEBUG", "DIGEST")
print("reloaded", server.ask("DBSIZE"), after)
assert after == before, "the saved data differs"
server.end()
