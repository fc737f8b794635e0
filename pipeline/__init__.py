"""Cluster-partition training of deep graph neural networks."""

import os

# How long (in turns of a loop, 0.2 ms in all) an OpenMP thread with nothing to do waits before it sleeps. libgomp's
# own 300,000 make a model's step ten times slower as soon as another process takes a core. Read once, when torch is
# imported.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")
