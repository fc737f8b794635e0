"""Gives the packages beside this file a second name: ``from parallel_epochs.models import DeeperGCN``.

`models` and `pipeline` are names that another project may have too. In such a project import them through this module;
its ``__path__`` is this folder, so that both names lead to the same files.
"""

import os

__path__ = [os.path.dirname(__file__)]
