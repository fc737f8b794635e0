"""Keeps what a run must not lose, and starts its ranks; knows no graph and no model."""
