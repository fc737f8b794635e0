"""Benchmarks and reports."""
