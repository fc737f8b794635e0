"""Makes the imports of ranks in the process that they are forked from: see :func:`pipeline.run.launch.launch`.

It starts no thread and touches no GPU. Nothing else may import it, as whoever does ignores signals and dies with its
parent.
"""

import atexit
import gc
import os

import parallel_epochs.pipeline.command.cli  # noqa: F401 - for the ranks
import parallel_epochs.pipeline.training  # noqa: F401
from parallel_epochs.pipeline.run.launch import follow_parent

follow_parent()
# Where the launcher ends during the imports above, this process ends by itself. Do so at once: nanobind would report
# at length what is not freed.
atexit.register(os._exit, 0)
gc.freeze()  # the collector of a rank leaves these objects alone, and their pages stay shared
