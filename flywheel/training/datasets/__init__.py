"""Datasets, which runs learn from: immutable rows, mixed from several, and held against what is held out."""
