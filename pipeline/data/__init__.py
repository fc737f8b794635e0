"""Datasets: one reader a format, checked and prepared once, kept in a cache."""
