"""The audit log, for programs."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Query, Router, Schema

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.api.paging import Paged, page_of
from flywheel.accounts.models import AuditEntry, Scope
from flywheel.accounts.project_settings import audit_log

router = Router(tags=["accounts"])
admin = Key(Scope.ADMIN)


class EntryQuery(Paged):
    action: str = ""
    actor: str = ""
    q: str = ""


class EntryOut(Schema):
    id: int
    at: datetime
    actor: str
    through: str
    action: str
    subject: str
    reason: str
    data: dict[str, Any]

    @staticmethod
    def resolve_actor(row: AuditEntry) -> str:
        return row.actor.username


class EntryPage(Schema):
    items: list[EntryOut]
    next: str | None


@router.get(
    "/audit",
    auth=admin,
    response=EntryPage,
    operation_id="list_audit_entries",
    summary="Who changed what, newest first",
)
def list_audit_entries(request: HttpRequest, asked: Query[EntryQuery]) -> dict[str, Any]:
    """`action` is a room, `failures`, or one verb of it, `failures.confirm`; `q` stands in subject or reason."""
    rows = audit_log.entries(keyed(request).project, action=asked.action, actor=asked.actor, text=asked.q)
    return page_of(rows, asked)
