"""Worlds that a team writes itself: tools as Python functions over a state."""
