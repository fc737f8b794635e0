"""Answers of a run after training: for its own rows, other data, new rows, pairs and rankings."""
