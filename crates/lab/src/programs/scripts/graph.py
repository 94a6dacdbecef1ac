"""networkx: a random graph, walked and measured. Argument: thousands of nodes."""
import hashlib
import random
import sys

import networkx as nx

nodes = int(sys.argv[1]) * 1000
numbers = random.Random(4)
graph = nx.Graph()
graph.add_nodes_from(range(nodes))
for node in range(nodes):
    for _ in range(4):
        # Some nodes have many neighbours, as in graphs of people and pages.
        other = int(nodes * numbers.random() ** 2)
        if other != node:
            graph.add_edge(node, other, weight=1 + node * 31 % 17)


def show(name, values):
    print(name, hashlib.sha256(repr(values).encode()).hexdigest())


show("components", sorted(map(len, nx.connected_components(graph))))
show("cores", sorted(nx.core_number(graph).items()))
show("near", sorted(nx.single_source_shortest_path_length(graph, 0).items()))
show("far", sorted(nx.single_source_dijkstra_path_length(graph, nodes // 2).items()))
show("triangles", sum(nx.triangles(graph).values()))
tree = nx.minimum_spanning_edges(graph, algorithm="kruskal", data=False)
show("tree", sum(a ^ b for a, b in tree))
