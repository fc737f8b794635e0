"""`python -m pipeline.prepare`: download and prepare everything that a run needs, and say how long it took."""

from parallel_epochs.pipeline.command import entry_points

if __name__ == "__main__":
    entry_points.call("prepare")
