"""The audit log, for programs."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Query, Router

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.accounts.project_settings import audit_log
from flywheel.edge.answers import ListQuery, Ref, page_of, paginate
from flywheel.edge.schemas import Schema

router = Router(tags=["accounts"])
admin = Key(Scope.ADMIN)


class EntryQuery(ListQuery):
    action: str = ""
    """An area such as `failures`, or one action such as `failures.confirm`; empty for all."""
    actor: str = ""
    """A username; empty for all."""
    q: str = ""
    """Text in the subject or the reason."""


class EntryOut(Schema):
    id: int
    at: datetime
    actor: Ref
    through: str
    """The API key, queue or command that acted for the person; empty for a click on a page."""
    action: str
    subject: str
    reason: str
    data: dict[str, Any]
    """Further details of the action."""


@router.get("/audit", auth=admin, response=page_of(EntryOut), summary="List who changed what, newest first")
def list_audit_entries(request: HttpRequest, query: Query[EntryQuery]) -> dict[str, Any]:
    """Filter by `action`, either an area such as `failures` or a single action such as `failures.confirm`. `q`
    matches text in the subject or the reason."""
    rows = audit_log.entries(keyed(request).project, action=query.action, actor=query.actor, text=query.q)
    return paginate(rows, query)
