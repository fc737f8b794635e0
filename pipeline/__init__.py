"""Cluster-partition training of deep graph neural networks."""
