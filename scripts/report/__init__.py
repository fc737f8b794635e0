"""A self-contained HTML page about a run, or about several runs that are overlaid and compared."""
