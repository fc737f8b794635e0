"""Readers of datasets: one file for each format, which returns a graph."""
