"""The audit log's filters, as the page and the API take them."""

from django.db.models import Q, QuerySet

from flywheel.accounts.models import AuditEntry, Project


def entries(project: Project, *, action: str = "", actor: str = "", text: str = "") -> QuerySet[AuditEntry]:
    """Find the changes in the project. `action` is a room or one verb of it; `text` stands in the subject or reason."""
    found = AuditEntry.objects.filter(project=project).select_related("actor")
    if action:
        found = found.filter(action=action) if "." in action else found.filter(action__startswith=f"{action}.")
    if actor:
        found = found.filter(actor__username=actor)
    if text:
        found = found.filter(Q(subject__icontains=text) | Q(reason__icontains=text))
    return found
