"""The datasets of the Open Graph Benchmark that are read, by their kind."""

OGB_NODE_NAMES = ("ogbn-proteins", "ogbn-arxiv", "ogbn-products")
OGB_HETERO_NAMES = ("ogbn-mag",)
OGB_GRAPH_NAMES = ("ogbg-molhiv", "ogbg-molpcba", "ogbg-ppa")
OGB_LINK_NAMES = ("ogbl-collab", "ogbl-ppa", "ogbl-ddi", "ogbl-citation2")
