"""Change what the gate asks for: always a new version, so that an old verdict still says by which rules it came."""

from typing import Any

from django.db import transaction

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Project
from flywheel.core.evidence.gate import gate_power
from flywheel.core.evidence.gate.decision import Policy as Rules
from flywheel.edge.refusals import Refused
from flywheel.environments.models import TaskSet
from flywheel.environments.task_sets.set_power import measured_scope
from flywheel.promotions.models import Policy


def current_policy(project: Project, actor: Actor) -> Policy:
    """The project's newest gate policy; the default one is written down when there is none yet."""
    newest = project.policies.order_by("-version").first()
    return newest or Policy.objects.create(project=project, version=1, rules=Rules().to_dict(), created_by=actor.user)


@transaction.atomic
def change_policy(*, project: Project, actor: Actor, rules: dict[str, Any], reason: str) -> Policy:
    """The next version of the policy, or the present one when nothing changed. Raises ValueError for bad rules, Refused
    for a strict policy that the project's task set cannot satisfy."""
    Project.objects.select_for_update().get(pk=project.pk)
    before = current_policy(project, actor)
    wanted = Rules.from_dict(rules)
    if wanted.to_dict() == before.rules:
        return before
    refuse_unsatisfiable(project, wanted)
    made = Policy.objects.create(
        project=project, version=before.version + 1, rules=wanted.to_dict(), created_by=actor.user
    )
    actor.record(
        project=project,
        action="promotions.change_policy",
        subject=made,
        reason=reason,
        before=before.rules,
        after=made.rules,
    )
    return made


def refuse_unsatisfiable(project: Project, rules: Rules) -> None:
    """Raise Refused for a strict policy by which the set that decides here would stop most of what is truly better.

    Without such a set any policy may be saved.
    """
    task_set = deciding_set(project) if rules.strict else None
    measured = measured_scope(task_set) if task_set else None
    found = gate_power.objection(rules, measured.scope) if measured else None
    if found is not None:
        raise Refused(f"{task_set} cannot satisfy this: {found.words}", field=found.field)


def with_planned_margins(project: Project, rules: dict[str, Any]) -> dict[str, Any]:
    """Rules whose margins are as wide as the set that decides here needs; unchanged without such a set. Raises
    ValueError for bad rules."""
    task_set = deciding_set(project)
    measured = measured_scope(task_set) if task_set else None
    wanted = Rules.from_dict(rules)
    return gate_power.with_planned_margins(wanted, measured.scope).to_dict() if measured else rules


def deciding_set(project: Project) -> TaskSet | None:
    """Return the set by which candidates are judged now: the newest version of the one that the newest candidate was
    measured by; before the first candidate the set most often meant."""
    newest = project.candidates.select_related("version_eval__task_set").order_by("-pk").first()
    sets = TaskSet.objects.filter(project=project)
    if newest is not None:
        return sets.filter(name=newest.version_eval.task_set.name).order_by("-version").first()
    return sets.usual()
