"""Where recorded files of other tools lie, and what real instrumentation sent."""

from pathlib import Path

FILES = Path(__file__).parent / "files"
FIXTURES = Path(__file__).parent / "golden"
WORKBENCH = Path(__file__).parents[4] / "shared/data/workbench"
"""Recorded runs; not in every checkout."""
