"""`python -m tests.helpers.names_of_files ARGUMENTS` trains, then prints every file of ours that has several names."""

import runpy
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

if __name__ == "__main__":
    runpy.run_module("pipeline.train", run_name="__main__", alter_sys=True)
    names = defaultdict(set)
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if (
            file
            and Path(file).resolve().is_relative_to(ROOT)
            and ".venv" not in file
            and name != "__main__"
        ):
            names[str(Path(file).resolve().relative_to(ROOT))].add(name)
    assert len(names) > 50, "the modules of ours were not found"
    for file, several in names.items():
        if (
            len(several) > 1 and file != "pipeline/__init__.py"
        ):  # which `python -m pipeline.train` itself imports
            print("SEVERAL NAMES:", file, *sorted(several))
