# Loops of the kind that CPython is measured with. Each prints its name, its seconds, and those of
# the processor.
import json, re, time

def nbody():
    bodies = [[0.1 * i, 0.2 * i + 1, 0.3 * i - 1, 0.0, 0.01 * i, 0.0, 1.0 + i] for i in range(5)]
    for _ in range(12000):
        for i in range(5):
            x, y, z, vx, vy, vz, m = a = bodies[i]
            for b in bodies[i + 1:]:
                dx, dy, dz = x - b[0], y - b[1], z - b[2]
                f = 0.001 / ((dx * dx + dy * dy + dz * dz) ** 1.5 + 0.01)
                for k, d in ((3, dx), (4, dy), (5, dz)):
                    a[k] -= d * b[6] * f
                    b[k] += d * m * f
        for b in bodies:
            for k in range(3):
                b[k] += 0.001 * b[k + 3]

def json_loop():
    document = {
        "users": [
            {"id": i, "name": "user%d" % i, "tags": ["a", "b", str(i)], "score": i / 7}
            for i in range(800)
        ]
    }
    for _ in range(110):
        json.loads(json.dumps(document))

def dicts():
    for _ in range(9):
        table = {}
        for i in range(120000):
            table[str(i)] = i
        sum(table[k] for k in table)
        for i in range(0, 120000, 2):
            del table[str(i)]

def regex():
    text = "From: Ann Example <ann.example@mail.example.org>, 2026-11-21 23:21:34, id=4711; " * 300
    address, date = re.compile(r"[\w.]+@[\w.]+\.\w+"), re.compile(r"(\d{4})-(\d\d)-(\d\d)")
    for _ in range(60):
        address.findall(text)
        date.sub(r"\3.\2.\1", text)

def strings():
    for i in range(45):
        words = ["word%d" % (i * j % 977) for j in range(12000)]
        " ".join(words).upper().replace("WORD", "w").split(" ")

for loop in nbody, json_loop, dicts, regex, strings:
    wall, cpu = time.perf_counter(), time.process_time()
    loop()
    print(loop.__name__, time.perf_counter() - wall, time.process_time() - cpu)
