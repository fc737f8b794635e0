"""A self-contained HTML page about a run, or about several runs that are overlaid and compared."""

from parallel_epochs.scripts.report.pages import page
from parallel_epochs.scripts.report.runs import Run, find_runs, read_run

__all__ = ["Run", "find_runs", "page", "read_run"]
