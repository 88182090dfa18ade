"""Estimates of what was measured, and comparisons, that say when they cannot tell."""
