"""A run directory: its specification, the hold of a trainer on it, its checkpoints, the words for what fails."""
