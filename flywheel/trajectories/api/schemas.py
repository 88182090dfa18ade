"""Shapes that several routers of this room take or answer."""

from datetime import datetime

from flywheel.edge.schemas import Schema


class FeedbackOut(Schema):
    span_id: str
    """The step that it is about; empty for the whole trajectory."""
    key: str
    value: bool | int | float | str | None
    score: float | None
    """The number, even if the value is a label."""
    comment: str
    source: str
    """`human`, `end_user`, `model` or `code`."""
    by: str
    at: datetime
    received_at: datetime
    current: bool
    """Whether it is the newest of its author about this subject."""
