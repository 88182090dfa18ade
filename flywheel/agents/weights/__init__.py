"""Weights on their way: from a hub, merged, and as downloads in one archive."""
