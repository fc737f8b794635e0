"""Layouts (trainer=layout): a position in two or three dimensions for each point."""
