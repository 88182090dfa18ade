"""Agents and their versions for programs."""
