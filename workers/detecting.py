"""Detectors read trajectories that are new or have grown."""


def detect_waiting(project_id: int | None = None) -> int:
    """Read every unread trajectory (of one project); returns how many."""
    return 0
