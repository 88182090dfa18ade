"""Carry out a training run: start the trainer, follow its run directory."""

from flywheel.jobs import Lease


def train(lease: Lease) -> None:
    """Supervise one trainer."""
