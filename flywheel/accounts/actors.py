"""Who acts: a person, and by what if not by a page."""

from dataclasses import dataclass
from typing import Any

from flywheel.accounts.models import AuditEntry, Project, User


@dataclass(frozen=True)
class Actor:
    """A person who changes something; what they change is recorded in their name."""

    user: User
    through: str = ""
    """What the audit log calls the key, queue or command that acts for them; empty for a page."""

    @property
    def is_command(self) -> bool:
        """A command of the operator's: the person is the one whom its rows belong to, and did nothing."""
        return self.through.startswith("manage.py ")

    def record(self, *, project: Project | None, action: str, subject: object, reason: str = "", **data: Any) -> None:
        """Write one audit entry, in the transaction of the change that it tells of."""
        AuditEntry.objects.create(
            project=project,
            actor=self.user,
            through=self.through,
            action=action,
            subject=str(subject)[:200],
            reason=reason,
            data=data,
        )
