# A CPython heap: source text, syntax trees, records, what the interpreter itself keeps. Says so,
# then waits.
import ast, collections, glob, json, os, random, sys

random.seed(1)
library = os.path.dirname(os.__file__)
sources = sorted(glob.glob(library + "/*.py"))[:120]
trees, texts = [], []
for path in sources:
    with open(path, encoding="utf-8", errors="replace") as file:
        texts.append(file.read())
    if len(trees) < 60:
        trees.append(ast.parse(texts[-1]))
words = [w for text in texts for w in text.split()]
index = collections.defaultdict(list)
for place, word in enumerate(words[:300_000]):
    index[word].append(place)
records = [
    {"id": i, "name": random.choice(words), "score": random.random(),
     "tags": random.sample(words, 4), "parent": i // 7, "active": i % 3 == 0}
    for i in range(60_000)
]
document = json.dumps(records[:20_000])
again = json.loads(document)
counts = [0.0] * 500_000
table = bytearray(4 << 20)
print("ready", flush=True)
sys.stdin.readline()
