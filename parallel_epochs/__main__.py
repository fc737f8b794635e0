"""The console command `parallel-epochs`: `parallel-epochs train ...` is `python -m pipeline.train ...`."""

import os
import runpy
import sys

COMMANDS = {
    "init": "pipeline.init",
    "train": "pipeline.train",
    "evaluate": "pipeline.evaluate",
    "predict": "pipeline.predict",
    "explain": "pipeline.explain",
    "prepare": "pipeline.prepare",
    "check": "pipeline.check",
    "baselines": "pipeline.baselines",
    "tune": "pipeline.tune",
    "serve": "pipeline.serve",
    "report": "scripts.report",
    "bench": "scripts.bench",
}


def main() -> None:
    """Run a command without a look into the current folder, which may have a parallel_epochs/ of its own."""
    usage = f"usage: parallel-epochs {' | '.join(COMMANDS)} ...; --help after it describes each"
    if {"--help", "-h"} & set(sys.argv[1:2]):
        print(usage)
        return
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        sys.exit(usage)
    # The processes that this one starts (ranks, Slurm jobs) shall not look there either.
    os.environ["PYTHONSAFEPATH"] = "1"
    runpy.run_module(
        f"parallel_epochs.{COMMANDS[sys.argv.pop(1)]}", run_name="__main__", alter_sys=True
    )


if __name__ == "__main__":
    main()
