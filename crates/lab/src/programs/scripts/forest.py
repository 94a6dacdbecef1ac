"""scikit-learn: a random forest fitted by two threads. Argument: thousands of samples."""
import hashlib
import sys

import numpy as np
from sklearn.ensemble import RandomForestClassifier

samples = int(sys.argv[1]) * 1000
random = np.random.default_rng(5)
x = random.integers(0, 1000, (samples, 24)).astype(np.float32)
y = (x[:, 0] * 3 + x[:, 1] * x[:, 2] / 500 + random.integers(0, 900, samples) > 2200).astype(int)
forest = RandomForestClassifier(n_estimators=24, n_jobs=2, random_state=1)
forest.fit(x, y)
# Which leaf each sample falls into: a sum over trees would depend on which thread came first.
leaves = forest.apply(x[::5])
nodes = [tree.tree_.node_count for tree in forest.estimators_]
print(leaves.shape, sum(nodes), hashlib.sha256(np.ascontiguousarray(leaves)).hexdigest())
