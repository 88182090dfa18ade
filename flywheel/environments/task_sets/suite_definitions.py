"""Regression suites of an agent: define one, change it, retire it.

    put(agent=…, name=…, …)     the suite of that name, a change of it as its next version
    retire(suite=…)             no candidate runs it any more
    present(agent)              those that every candidate runs
    left(agent, since=…)        those that were present then and are retired now

A suite's tasks are the held-out part of its set: they are never trained on, and whoever opens them stands in the
ledger, as for every held-out part. Who runs them, and what the gate makes of them:
`flywheel/promotions/suite_standings.py`.
"""

from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import Count, Q, QuerySet
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Project
from flywheel.agents.models import Agent
from flywheel.core.envs.kinds import KINDS
from flywheel.core.evidence.statistics.estimates import MIN_CLUSTERS
from flywheel.edge.refusals import Refused, Stale
from flywheel.environments.models import Split, Suite, TaskSet
from flywheel.environments.versions.environment_versions import check_name

MOST = 20
"""Present suites of one agent: each is two evals of every candidate."""
MAX_SAMPLES = 64
DEFAULT_RULE = {Suite.Kind.SAFETY: Suite.Rule.NO_BREAK, Suite.Kind.GENERAL: Suite.Rule.MEAN}
DEFAULT_MARGIN = 0.05


def present(*agents: Agent) -> QuerySet[Suite]:
    """The suites that bind a candidate of these agents now."""
    rows = Suite.objects.filter(agent__in=agents, retired_at=None).select_related(
        "agent", "created_by", "task_set__environment_version__environment", "task_set__project"
    )
    return rows.order_by("-kind", "name")


def left(agent: Agent, *, since: datetime) -> list[tuple[Suite, Suite | None]]:
    """List suites that bound a candidate of that moment and have retired since, each with its next version, if any."""
    rows = agent.suites.filter(created_at__lte=since, retired_at__gt=since).select_related("retired_by")
    gone = list(rows.order_by("-kind", "name", "version"))
    named = agent.suites.filter(name__in=[suite.name for suite in gone]) if gone else []
    numbered = {(suite.name, suite.version): suite for suite in named}
    return [(suite, numbered.get((suite.name, suite.version + 1))) for suite in gone]


def sets_for(project: Project) -> QuerySet[TaskSet]:
    """The frozen sets that a suite can be made of, newest first, each with its number of held-out `tasks_held_out`."""
    rows = project.task_sets.select_related("environment_version__environment").order_by("-pk")
    held_out = Count("members", filter=Q(members__split=Split.HELD_OUT))
    return rows.annotate(tasks_held_out=held_out).filter(tasks_held_out__gt=0)


@transaction.atomic
def put(
    *, agent: Agent, actor: Actor, name: str, reason: str = "", seen: int | None = None, **settings: Any
) -> tuple[Suite, bool]:
    """The agent's suite of that name with these settings, and whether it is new: equal content is one version.

    `settings` are `kind`, `task_set`, and what else `_checked` takes. A present one with other content is retired for
    it, which takes a reason. `seen` is the version of it that the actor had before them, 0 for none: no other is
    retired. Raises Refused.
    """
    content = _checked(agent, **settings)
    check_name(name)
    Agent.objects.select_for_update(no_key=True).get(pk=agent.pk)
    before = agent.suites.filter(name=name, retired_at=None).first()
    if before is not None and all(getattr(before, field) == value for field, value in content.items()):
        return before, False
    if seen is not None:
        _check_seen(name, seen, before)
    if before is not None:
        if not reason.strip():
            raise Refused(f"is missing: {before} changes, and with it what every candidate must pass", field="reason")
        _retire(before, actor, reason)
    elif agent.suites.filter(retired_at=None).count() >= MOST:
        raise Refused(f"{agent} has {MOST} suites already; retire one first", field="name")
    last = agent.suites.filter(name=name).order_by("-version").values_list("version", flat=True).first()
    made = Suite.objects.create(agent=agent, name=name, version=(last or 0) + 1, created_by=actor.user, **content)
    actor.record(
        project=agent.project,
        action="environments.put_suite",
        subject=f"{agent} {made}",
        reason=reason,
        before=str(before) if before else None,
        **{**content, "task_set": str(content["task_set"])},
    )
    return made, True


@transaction.atomic
def retire(*, suite: Suite, actor: Actor, reason: str) -> None:
    """Candidates do not run it any more. Raises Refused when it is not present any more or nobody says why."""
    if not reason.strip():
        raise Refused("is missing: say why no candidate needs to pass it any more", field="reason")
    Agent.objects.select_for_update(no_key=True).get(pk=suite.agent_id)
    row = Suite.objects.select_related("agent__project").get(pk=suite.pk)
    _check_seen(row.name, row.version, row.agent.suites.filter(name=row.name, retired_at=None).first())
    _retire(row, actor, reason)
    actor.record(
        project=row.agent.project, action="environments.retire_suite", subject=f"{row.agent} {row}", reason=reason
    )


def _check_seen(name: str, seen: int, present: Suite | None) -> None:
    """Raise Stale unless the version that was seen, 0 for none, is the present one."""
    if seen == (present.version if present else 0):
        return
    if not seen:
        raise Stale(f"is taken, {present} has it: change that one", field="name")
    now = f"{present} is" if present else "it is retired"
    raise Stale(f"{name}@{seen} is not present any more, {now}; look again", field="version")


def _retire(suite: Suite, actor: Actor, reason: str) -> None:
    suite.retired_at, suite.retired_by, suite.retired_why = timezone.now(), actor.user, reason.strip()
    suite.save(update_fields=["retired_at", "retired_by", "retired_why"])


def _checked(
    agent: Agent,
    *,
    kind: str,
    task_set: TaskSet,
    rule: str = "",
    measure: str = "",
    margin: float | None = None,
    samples: int = 1,
) -> dict[str, object]:
    """The content of a suite, with what was left out at its default. Raises Refused."""
    if kind not in Suite.Kind.values:
        raise Refused(f"{kind!r} is unknown; use {' or '.join(Suite.Kind.values)}", field="kind")
    if task_set.project_id != agent.project_id:
        raise Refused(f"{task_set} belongs to another project", field="task_set")
    is_general = kind == Suite.Kind.GENERAL
    _check_tasks(task_set, is_general)
    rule, measure = rule or DEFAULT_RULE[Suite.Kind(kind)], measure or Suite.Measure.SUCCESS
    wanted = [rule.value for rule in Suite.Rule if (rule == Suite.Rule.MEAN) == is_general]
    if rule not in wanted:
        raise Refused(f"{rule!r} is none of a {kind} suite; use {' or '.join(wanted)}", field="rule")
    if measure not in Suite.Measure.values or (is_general and measure != Suite.Measure.SUCCESS):
        known = [Suite.Measure.SUCCESS.value] if is_general else Suite.Measure.values
        raise Refused(f"{measure!r} is none of a {kind} suite; use {' or '.join(known)}", field="measure")
    environment = task_set.environment_version.environment
    if measure == Suite.Measure.SAFE and environment.kind in KINDS and not KINDS[environment.kind].tells_unsafe:
        raise Refused(f"{environment} never calls an attempt unsafe, so this would show nothing", field="measure")
    if not is_general and margin is not None:
        raise Refused("is only of a general suite; a safety suite allows none", field="margin")
    margin = DEFAULT_MARGIN if is_general and margin is None else margin
    if margin is not None and not 0 < margin <= 1:
        raise Refused(f"{margin} is not a share above 0 and up to 1, such as 0.05 for 5 points", field="margin")
    if not 1 <= samples <= MAX_SAMPLES:
        raise Refused(f"{samples} is not between 1 and {MAX_SAMPLES}", field="samples")
    content = {"kind": kind, "task_set": task_set, "rule": str(rule), "measure": str(measure)}
    return content | {"margin": margin, "samples": samples}


def _check_tasks(task_set: TaskSet, is_general: bool) -> None:
    held_out = task_set.members.filter(split=Split.HELD_OUT)
    clusters = held_out.order_by().values("task__cluster").distinct().count()
    if not clusters:
        raise Refused(f"{task_set} has no held-out task, and only those are a suite", field="task_set")
    if is_general and clusters < MIN_CLUSTERS:
        raise Refused(
            f"the held-out tasks of {task_set} come from {clusters} source{'' if clusters == 1 else 's'}; "
            f"a general suite needs {MIN_CLUSTERS} at least, or no interval can be said",
            field="task_set",
        )
