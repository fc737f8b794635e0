"""The keys of a search. Nothing here imports torch, so that ``--help`` answers at once."""

from dataclasses import dataclass

from pipeline.keys import key


@dataclass
class TuneConfig:
    """Keys of `python -m pipeline.tune`, beside those of a run."""

    study: str = key(..., "folder of the study: its file study.journal, and a run directory for each trial")
    trials: int = key(20, "trials of the study, those of other workers included", minimum=1)
    pruner: str = key("median", "which trials are stopped early: median, those below the median of the others at the "
                      "same epoch", choices=("median", "hyperband", "none"))
    startup_trials: int = key(5, "trials before the median prunes any", minimum=1)
    warmup_epochs: int = key(0, "epochs before the median prunes a trial", minimum=0)
    sampler_seed: int = key(0, "of the sampler (TPE)", minimum=0, below=2**31)
