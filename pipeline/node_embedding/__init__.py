"""Node embeddings (trainer=node_embedding): a vector for each node, learned from random walks."""
