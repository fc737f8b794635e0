"""Benchmarks, reports and checks of the project itself."""
