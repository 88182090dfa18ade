"""Pages of runs side by side."""
