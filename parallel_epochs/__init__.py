"""The one name of this project's packages: ``from parallel_epochs.models import GENConv``.

In a checkout `models`, `pipeline`, `scripts` and `conf` in this folder are links to the folders beside it. Every import
of ours begins with ``parallel_epochs.``, so that no file is imported under two names, and an installation puts no other
name than this one into site-packages.
"""

import os

# How long (in turns of a loop, 0.2 ms in all) an OpenMP thread with nothing to do waits before it sleeps. libgomp's
# own 300,000 make a model's step ten times slower as soon as another process takes a core. Read once, when torch is
# imported.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")
