"""`python -m pipeline.baselines`: what simple methods reach on a dataset, before anything deep is trained on it."""

from parallel_epochs.pipeline.command import entry_points

if __name__ == "__main__":
    entry_points.call("baselines")
