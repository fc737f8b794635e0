"""The one name of this project's packages: ``from parallel_epochs.models import GENConv``.

In a checkout `models`, `pipeline`, `scripts` and `conf` in this folder are links to the folders beside it. Every import
of ours begins with ``parallel_epochs.``, so that no file is imported under two names, and an installation puts no other
name than this one into site-packages.

    import parallel_epochs as pe

    result = pe.train(data, num_layers=7)      # a torch_geometric Data
    probabilities = result.model.predict(other_data)

``train`` and ``embed`` are in :mod:`parallel_epochs.pipeline.api`, ``load`` in :mod:`parallel_epochs.pipeline.model`.
They are imported when they are first used, as torch and PyG take seconds.
"""

import os
import warnings
from typing import Any

# How long (in turns of a loop, 0.2 ms in all) an OpenMP thread with nothing to do waits before it sleeps. libgomp's
# own 300,000 make a model's step ten times slower as soon as another process takes a core. Read once, when torch is
# imported.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")
# PyG calls torch.jit.script when it is imported. torch 2.14 warns that it is deprecated, which no user of PyG can mend.
warnings.filterwarnings("ignore", r"`torch\.jit\.\w+` is ", FutureWarning)

_MODULES = {
    "api": ("Stopped", "embed", "train"),
    "model": ("Model", "Result", "evaluate", "load", "predict"),
    "library": ("ClusterLoader", "GradientSync", "NeighborLoader", "partition"),
}
_API = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _API:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"parallel_epochs.pipeline.{_API[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_API])
