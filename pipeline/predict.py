"""`python -m pipeline.predict run=DIR predictions=FILE output=TABLE`: what a checkpoint predicts, or its vectors."""

from parallel_epochs.pipeline.command import entry_points

if __name__ == "__main__":
    entry_points.call("predict")
