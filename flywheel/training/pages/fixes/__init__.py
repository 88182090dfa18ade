"""Pages of fixes that need no training."""
