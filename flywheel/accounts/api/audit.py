"""The audit log, for programs."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Query, Router, Schema

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.accounts.project_settings import audit_log
from flywheel.edge.answers import ListQuery, Ref, page_of, paginate

router = Router(tags=["accounts"])
admin = Key(Scope.ADMIN)


class EntryQuery(ListQuery):
    action: str = ""
    actor: str = ""
    q: str = ""


class EntryOut(Schema):
    id: int
    at: datetime
    actor: Ref
    through: str
    action: str
    subject: str
    reason: str
    data: dict[str, Any]


@router.get("/audit", auth=admin, response=page_of(EntryOut), summary="List who changed what, newest first")
def list_audit_entries(request: HttpRequest, query: Query[EntryQuery]) -> dict[str, Any]:
    """Filter by `action`, either an area such as `failures` or a single action such as `failures.confirm`. `q`
    matches text in the subject or the reason."""
    rows = audit_log.entries(keyed(request).project, action=query.action, actor=query.actor, text=query.q)
    return paginate(rows, query)
