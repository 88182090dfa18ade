"""Environments that begin where a recorded run was: a beginning, what is wanted from there, and how it goes on."""
