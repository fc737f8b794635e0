"""Kinds: what is learned of a graph, one module for each."""
