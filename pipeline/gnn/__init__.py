"""Graph networks (trainer=gnn): labels of nodes, of links and of whole graphs, by mini-batches of a large graph."""
