"""Shapes that several routers of this room take or answer."""

from datetime import datetime

from ninja import Schema


class FeedbackOut(Schema):
    span_id: str
    """Of the step that it is about; empty for the whole trajectory."""
    key: str
    value: bool | int | float | str | None
    score: float | None
    """The number, also where the value is a label."""
    comment: str
    source: str
    by: str
    at: datetime
    received_at: datetime
    current: bool
    """Whether it holds: the newest of its giver about this."""
