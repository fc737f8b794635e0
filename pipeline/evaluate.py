"""`python -m pipeline.evaluate run=DIR`: the metrics of a checkpoint, by views or exactly, and its predictions."""

from parallel_epochs.pipeline.command import entry_points

if __name__ == "__main__":
    entry_points.call("evaluate")
