"""`python -m pipeline.explain run=DIR node=ID`: which columns, neighbours and edges carry a prediction."""

from parallel_epochs.pipeline.command import entry_points

if __name__ == "__main__":
    entry_points.call("explain")
