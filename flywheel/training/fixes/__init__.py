"""Fixes that need no training: what fails, examples of what is right, drafts that are asked, and what came of them."""
