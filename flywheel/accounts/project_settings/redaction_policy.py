"""A project's redaction policy: which mode, which rules of its own, since when and by whom.

The key that makes equal secrets recognisable comes from the installation's secret key: it is in no table, so who steals
the database cannot try out card numbers against the placeholders.
"""

import functools
import hashlib
import hmac
import json
from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.db import transaction

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Project, RedactionPolicy
from flywheel.core.redaction import BadRule, Mode, Redactor, Rule, check
from flywheel.core.redaction.redaction_rules import MOST_RULES
from flywheel.system.sql import planned

DEFAULT = Mode.SECRETS


def policy_of(project: Project) -> RedactionPolicy:
    """Return the policy in force; unsaved, with number 0, for a project that never chose."""
    return project.redaction_policies.order_by("-number").first() or RedactionPolicy(
        project=project, number=0, mode=DEFAULT.value, rules=[]
    )


def redactor_of(project: Project) -> Redactor:
    """Return the redactor that every trace of this project passes before it is stored."""
    found = planned(  # with every request, so not by way of the ORM
        "SELECT mode, rules::text FROM accounts_redactionpolicy WHERE project_id = %s ORDER BY number DESC LIMIT 1",
        [project.pk],
    )
    mode, rules = found[0] if found else (DEFAULT.value, "[]")
    return _redactor(project.pk, mode, tuple(tuple(sorted(rule.items())) for rule in json.loads(rules)))


@transaction.atomic
def set_policy(*, project: Project, actor: Actor, mode: str, rules: Sequence[dict[str, str]]) -> RedactionPolicy:
    """Redact like this from now on. What is stored already stays; `manage.py redact` goes over it. Raises BadRule."""
    wanted = [checked(rule) for rule in rules]
    if len(wanted) > MOST_RULES:
        raise BadRule(f"a project has at most {MOST_RULES} rules")
    if len({rule["name"] for rule in wanted}) < len(wanted):
        raise BadRule("two rules have the same name")
    Project.objects.select_for_update().get(pk=project.pk)
    before = policy_of(project)
    if (before.mode, before.rules) == (mode, wanted):
        return before
    policy = RedactionPolicy.objects.create(
        project=project, number=before.number + 1, mode=Mode(mode).value, rules=wanted, made_by=actor.user
    )
    actor.record(
        project=project,
        action="accounts.set_redaction",
        subject=f"redaction policy {policy.number}",
        before={"mode": before.mode, "rules": before.rules},
        after={"mode": policy.mode, "rules": policy.rules},
    )
    return policy


def checked(rule: dict[str, str]) -> dict[str, str]:
    """The rule as it is stored. Raises BadRule."""
    row = {name: rule.get(name, "").strip() for name in ("name", "pattern", "kind")}
    try:
        check(Rule(**row))
    except BadRule as error:
        raise BadRule(f"rule {row['name']!r}: {error}") from None
    return row


def changes(project: Project, limit: int = 20) -> list[dict[str, Any]]:
    """The newest versions and what each changed, newest first."""
    found = list(project.redaction_policies.select_related("made_by").order_by("-number")[: limit + 1])
    rows = []
    for policy, before in zip(found, [*found[1:], RedactionPolicy(mode=DEFAULT.value, rules=[])], strict=False):
        was, now = {rule["name"]: rule for rule in before.rules}, {rule["name"]: rule for rule in policy.rules}
        told = [f"mode {before.mode} → {policy.mode}"] if before.mode != policy.mode else []
        told += [f"rule {name} removed" for name in was if name not in now]
        told += [f"rule {name} {'changed' if name in was else 'added'}" for name in now if was.get(name) != now[name]]
        rows.append({"policy": policy, "told": told})
    return rows[:limit]


@functools.lru_cache(maxsize=256)
def _redactor(project: int, mode: str, rules: tuple[tuple[tuple[str, str], ...], ...]) -> Redactor:
    key = hmac.digest(settings.SECRET_KEY.encode(), b"redaction:%d" % project, hashlib.sha256)
    return Redactor(Mode(mode), key, [Rule(**dict(rule)) for rule in rules])
