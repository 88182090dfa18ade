"""Runs that were launched: their files, their repeats, and several of them side by side."""
