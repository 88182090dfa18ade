"""Carry out an eval run."""

from flywheel.jobs import Lease


def evaluate(lease: Lease) -> None:
    """Ask the version, judge its answers, store every rollout."""
