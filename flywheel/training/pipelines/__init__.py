"""Pipelines: launched once, then stage after stage by themselves, as long as their gates are passed."""
