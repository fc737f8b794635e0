"""Loaders: what a batch is, as a pure function of the seed, the round and the share."""
