"""Beside the launch page: what would be learnt, and the ways for a version whose weights are elsewhere."""
