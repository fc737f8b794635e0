"""The packages beside this file by a name of their own, and the console command `parallel-epochs`.

`models` and `pipeline` are names that another project may have too. There, write ``from parallel_epochs.models import
GENConv``: ``__path__`` is this folder, so that both names lead to the same files.
"""

import os
import runpy
import sys

__path__ = [os.path.dirname(os.path.abspath(__file__))]

COMMANDS = {"train": "pipeline.train", "evaluate": "pipeline.evaluate", "predict": "pipeline.predict",
            "prepare": "pipeline.prepare", "tune": "pipeline.tune", "report": "scripts.report",
            "bench": "scripts.bench"}


def main() -> None:
    """Run `parallel-epochs train ...` as `python -m pipeline.train ...`, without a look into the current folder."""
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        sys.exit(f"usage: parallel-epochs {' | '.join(COMMANDS)} ...; --help after it describes each")
    # The processes that this one starts (ranks, Slurm jobs) shall not find the folder's own models/ either.
    os.environ["PYTHONSAFEPATH"] = "1"
    runpy.run_module(COMMANDS[sys.argv.pop(1)], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
