"""Access rights: permissions, the roles that grant them, and the scopes of API keys."""

from collections.abc import Iterable

from django.db import models


class Permission(models.TextChoices):
    """A permission that a URL or an API call may require. Every one of them belongs to a project."""

    VIEW = "view", "see the project"
    REVIEW = "review", "label failures"
    BUILD = "build", "make tasks, task sets and evals"
    TRAIN = "train", "launch and stop training"
    APPROVE = "approve", "approve and roll back promotions"
    ADMIN = "admin", "manage members, keys and settings"


class Role(models.TextChoices):
    VIEWER = "viewer"
    REVIEWER = "reviewer"
    BUILDER = "builder"
    TRAINER = "trainer"
    APPROVER = "approver"
    ADMIN = "admin"


GRANTS: dict[str, frozenset[str]] = {
    Role.VIEWER: frozenset({Permission.VIEW}),
    Role.REVIEWER: frozenset({Permission.VIEW, Permission.REVIEW}),
    Role.BUILDER: frozenset({Permission.VIEW, Permission.REVIEW, Permission.BUILD}),
    Role.TRAINER: frozenset({Permission.VIEW, Permission.REVIEW, Permission.BUILD, Permission.TRAIN}),
    Role.APPROVER: frozenset({Permission.VIEW, Permission.REVIEW, Permission.APPROVE}),
    # An admin runs the house but does not approve by default: who may promote is said by name.
    Role.ADMIN: frozenset({Permission.VIEW, Permission.REVIEW, Permission.BUILD, Permission.TRAIN, Permission.ADMIN}),
}


def granted(roles: Iterable[str]) -> frozenset[str]:
    """Return the permissions that these roles grant together."""
    return frozenset().union(*(GRANTS[role] for role in roles))


class Scope(models.TextChoices):
    """A permission of an API key. A key with `ingest` alone can neither read nor spend anything."""

    INGEST = "ingest", "send trajectories"
    GATEWAY = "gateway", "call models through the gateway, at the upstream's price"
    READ = "read", "read everything"
    REVIEW = "review", "label failures"
    BUILD = "build", "make tasks, task sets and evals"
    TRAIN = "train", "launch and stop training"
    APPROVE = "approve", "approve and roll back promotions"
    ADMIN = "admin", "manage members, keys and settings"
