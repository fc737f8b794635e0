"""Trainers: what a step is."""
