"""Rollouts that become training data: collected, chosen, written."""
