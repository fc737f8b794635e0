"""Simple methods: the least that a trained model should be better than, and where it may begin."""
