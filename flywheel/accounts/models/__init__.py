"""Who may do what: users, projects, memberships, API keys, and the audit log of every change."""

from flywheel.accounts.models.audit import AuditEntry
from flywheel.accounts.models.keys import ApiKey
from flywheel.accounts.models.logins import LoginAttempt
from flywheel.accounts.models.notices import (
    InboxEntry,
    Notice,
    NoticeDelivery,
    NoticeEvent,
    NoticeTarget,
)
from flywheel.accounts.models.people import Membership, Project, User
from flywheel.accounts.models.permissions import GRANTS, Permission, Role, Scope, granted
from flywheel.accounts.models.prices import DevicePrice, ModelPrice
from flywheel.accounts.models.provider_keys import ProviderKey
from flywheel.accounts.models.pulses import Pulse, WorkerDevice
from flywheel.accounts.models.redaction import RedactionPolicy

__all__ = [
    "GRANTS", "ApiKey", "AuditEntry", "DevicePrice", "InboxEntry", "LoginAttempt", "Membership", "ModelPrice", "Notice",
    "NoticeDelivery", "NoticeEvent", "NoticeTarget", "Permission", "Project", "ProviderKey", "Pulse", "RedactionPolicy",
    "Role", "Scope", "User", "WorkerDevice", "granted",
]  # fmt: skip
