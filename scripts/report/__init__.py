"""One self-contained HTML page of a run, or of several, overlaid and compared."""

from scripts.report.pages import page
from scripts.report.runs import Run, find_runs, read_run

__all__ = ["Run", "find_runs", "page", "read_run"]
