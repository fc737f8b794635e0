"""`python -m pipeline.check`: open a dataset as training would, train nothing, and say what was found."""

from parallel_epochs.pipeline.command import entry_points

if __name__ == "__main__":
    entry_points.call("check")
