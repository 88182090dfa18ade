"""Pages of rollouts to learn from."""
