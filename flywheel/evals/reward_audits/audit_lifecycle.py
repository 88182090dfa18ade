"""Audit a reward: draw outputs of the baseline on train tasks, have people judge them blind, finish, or override.

    begin(run=…)            an audit of a finished eval on the train split; of a recipe, once it has scored that
    judge(item=…) undo(…)   what a person says of one output, who does not see what the verifier said
    finish(audit=…)         opens the verdicts and decides, for ever, whether the reward is green, by all its audits
    override(judged=…)      leave to train all the same, by somebody who may approve, with a reason

What holds now for a version and a verifier: `reward_standing.py`.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict
from itertools import islice

from django.db import transaction
from django.db.models import Count, Q, QuerySet
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Project
from flywheel.core import verifiers
from flywheel.core.digests import canonical
from flywheel.core.evidence.reward_audit_rule import (
    LEAST,
    MOST,
    RENEWAL,
    RULE,
    Judgement,
    draw,
    examine,
    spread,
)
from flywheel.core.traces import Trace
from flywheel.core.verifiers import UNJUDGED
from flywheel.edge.jobs import State
from flywheel.edge.refusals import Refused, Stale, check_choice
from flywheel.environments.models import RewardRecipe, Split
from flywheel.evals.models import AuditOverride, EvalRun, Rescore, Rescored, Result, RewardAudit, RewardAuditItem
from flywheel.evals.reward_audits.reward_standing import Judged, audits_of, renewable, scores_of
from flywheel.evals.runs.unanswered_attempts import hold
from flywheel.trajectories.models import Trajectory
from flywheel.trajectories.store.stored_traces import traces_of

SIZE = 60
"""Outputs that are drawn unless somebody says otherwise."""
READ_AT_ONCE = 100
MAX_SEED = 2**31 - 1
MAX_TEXT = 10_000
Answer = RewardAuditItem.Answer
Attempt = tuple[int, int, bool | None, int | None]
"""A result's key, its task's, whether it passed, and its trajectory's key."""
Verdicts = QuerySet[Result] | QuerySet[Rescored]
"""Both have `score`, `success`, `parts`, `reason` and `cause`."""
Said = tuple[int, bytes]
"""A task's key, and what was answered."""


def rows(project: Project) -> QuerySet[RewardAudit]:
    """The project's audits with how far they are, newest first."""
    return (
        RewardAudit.objects.filter(project=project)
        .select_related(
            "project",
            "run__version__agent",
            "run__task_set__environment_version__environment",
            "rescore__recipe",
            "created_by",
            "finished_by",
        )
        .annotate(size=Count("items"), said=Count("items", filter=~Q(items__answer="")))
        .order_by("-id")
    )


def begin(
    *,
    run: EvalRun,
    actor: Actor,
    recipe: RewardRecipe | None = None,
    size: int = SIZE,
    seed: int = 1,
    is_renewal: bool = False,
) -> tuple[RewardAudit, bool]:
    """Draw outputs of the run and have them wait for people. One of the run that is not finished yet is gone on with.

    `recipe`: the reward recipe that says what passes, if that is not the verifier. `is_renewal`: a small audit of a
    version that was trained from one whose audit is green (`renewable`). Returns the audit and whether it is new.
    Raises Refused.
    """
    judged = Judged.now(run.version, run.task_set, recipe) if recipe else Judged.of(run)
    least = RENEWAL.judged if is_renewal else LEAST
    renews = renewable(judged) if is_renewal else None
    if is_renewal and renews is None:
        raise Refused(
            f"nothing is there to renew: no version that {run.version} was trained from has a green audit under this "
            f"{'recipe' if judged.is_by_recipe else 'verifier'}, or it has one of its own; begin a whole audit",
            field="renewal",
        )
    _check_run(run)
    rescore = _scored(run, judged) if judged.is_by_recipe else None
    if not least <= size <= MOST:
        raise Refused(f"{size} is not from {least} to {MOST}", field="size")
    if not 0 <= seed <= MAX_SEED:
        raise Refused(f"{seed} is not from 0 to {MAX_SEED}", field="seed")
    with transaction.atomic():
        if not hold(run):
            raise Refused(f"{run} is asked again just now; it can be audited when that is over", field="run")
        if begun := audits_of(judged).filter(run=run, finished_at=None).first():
            return begun, False
        chosen = _draw(judged, verdicts_on_answers([run.pk], [rescore.pk if rescore else None]), size, seed)
        if len(chosen) < least:
            raise Refused(
                f"{run} has {len(chosen)} different outputs with a score that no audit has shown yet; at least {least} "
                "are needed: evaluate more train tasks, with more samples or another seed",
                field="run",
            )
        audit = RewardAudit.objects.create(
            project=run.project, run=run, rescore=rescore, seed=seed, renews=renews, created_by=actor.user
        )
        by_recipe = dict(rescore.scores.filter(result__in=chosen).values_list("result", "pk")) if rescore else {}
        RewardAuditItem.objects.bulk_create(
            RewardAuditItem(audit=audit, place=place, result_id=result, rescored_id=by_recipe.get(result))
            for place, result in enumerate(chosen, 1)
        )
        about = {"recipe": str(recipe)} if rescore else {}
        actor.record(
            project=run.project, action="evals.reward_audit", subject=audit, eval=run.pk, outputs=len(chosen), **about
        )
    return audit, True


def _check_run(run: EvalRun) -> None:
    """Raise Refused for an eval whose outputs may not be looked at, or say nothing of the verifier as it is now."""
    if run.split != Split.TRAIN:
        raise Refused(
            f"{run} asked {run.get_split_display()} tasks; only train tasks may be looked at here", field="run"
        )
    if run.state != State.SUCCEEDED:
        raise Refused(f"{run} is {run.state}; it can be audited once it has succeeded", field="run")
    if run.verifier_digest != verifiers.digest(run.task_set.environment_version.verifier):
        raise Refused(f"{run} was judged by a verifier that has changed since; evaluate again", field="run")


def _scored(run: EvalRun, judged: Judged) -> Rescore:
    """The finished job in which the recipe has scored the run. Raises Refused."""
    jobs = scores_of(judged).filter(run=run)
    if done := jobs.filter(state=State.SUCCEEDED).first():
        return done
    newest = jobs.first()
    told = f"rescore {newest.pk}, in which it does, is {newest.state}" if newest else "have it do that first"
    raise Refused(f"{judged.recipe} has not scored {run} yet: {told}", field="run")


def judge(*, item: RewardAuditItem, actor: Actor, answer: str, note: str = "") -> bool:
    """Say of one output whether it did what was asked. One's own answer may be changed until the audit is finished.

    False when somebody else has judged it meanwhile, or the audit is finished. Raises Refused.
    """
    check_choice(answer, Answer.values, field="answer")
    changes = {"answer": answer, "note": note.strip()[:MAX_TEXT], "judged_by": actor.user, "judged_at": timezone.now()}
    with transaction.atomic():
        _lock(item.audit)  # who finishes reads the answers under the same lock
        free = RewardAuditItem.objects.filter(
            Q(answer="") | Q(judged_by=actor.user), pk=item.pk, audit__finished_at=None
        )
        return bool(free.update(**changes))


@transaction.atomic
def undo(*, audit: RewardAudit, actor: Actor) -> RewardAuditItem | None:
    """Take back what the person said last; the item waits again. None when there is nothing to undo."""
    _lock(audit)
    last = audit.items.filter(judged_by=actor.user, audit__finished_at=None).order_by("-judged_at").first()
    if last is not None:
        last.answer, last.note, last.judged_by, last.judged_at = "", "", None, None
        last.save(update_fields=["answer", "note", "judged_by", "judged_at"])
    return last


@transaction.atomic
def finish(*, audit: RewardAudit, actor: Actor) -> RewardAudit:
    """Open the verdicts: from now on nothing changes. What other audits of the same reward showed counts with them.

    Raises Stale while an output waits.
    """
    judged = Judged.of_audit(audit)
    same = audits_of(judged).order_by("pk").select_for_update(no_key=True, of=("self",))
    together = [each for each in same if each.pk == audit.pk or each.finished_at is not None]
    audit = next(each for each in together if each.pk == audit.pk)
    if audit.finished_at is not None:
        return audit
    items = list(audit.items.select_related("judged_by"))
    if waiting := sum(not item.answer for item in items):
        raise Stale(f"{waiting} of {len(items)} outputs are not judged yet", field="audit")
    asked = verdicts_on_answers([each.run_id for each in together], [each.rescore_id for each in together])
    counts = asked.aggregate(attempts=Count("pk"), unscored=Count("pk", filter=Q(success=None)))
    judgements = RewardAuditItem.objects.filter(audit__in=together).select_related("result__task", "rescored")
    finding = examine(
        [_judgement(item) for item in judgements],
        audits=len(together),
        rule=RENEWAL if audit.renews_id else RULE,
        judge=judged.judge,
        **counts,
    )
    judges = sorted({str(item.judged_by) for item in items})
    audit.result = asdict(finding) | {"judged": finding.judged, "judges": judges}
    audit.is_green = finding.is_green
    audit.finished_by, audit.finished_at = actor.user, timezone.now()
    audit.save()
    actor.record(
        project=audit.project,
        action="evals.finish_reward_audit",
        subject=audit,
        is_green=audit.is_green,
        judged=finding.judged,
        faults=finding.faults,
    )
    return audit


def override(*, judged: Judged, actor: Actor, reason: str) -> AuditOverride:
    """Leave to train on a reward that is not green, kept with every run that makes use of it. Raises Refused."""
    if not reason.strip():
        raise Refused("give a reason; it is kept with every run that uses it", field="reason")
    with transaction.atomic():
        made = AuditOverride.objects.create(
            project=judged.version.agent.project,
            version=judged.version,
            environment_version=judged.environment_version,
            verifier_digest=judged.verifier_digest,
            reason=reason.strip()[:MAX_TEXT],
            created_by=actor.user,
        )
        actor.record(
            project=made.project,
            action="evals.override_reward_audit",
            subject=made,
            reason=made.reason,
            version=str(judged.version),
            environment_version=str(judged.environment_version),
            verifier=judged.verifier_digest,
        )
    return made


def answered(results: QuerySet[Result]) -> QuerySet[Result]:
    """Attempts that the policy answered; what the verifier could not score is the verifier's then."""
    nobody = Q(cause__in=UNJUDGED) | Q(score=None, error__startswith="not answered")
    return results.exclude(nobody).exclude(trajectory=None)


def verdicts_on_answers(runs: Collection[int], rescores: Collection[int | None]) -> Verdicts:
    """The verdicts, those of a recipe where these are its scores, on attempts at these runs that were answered."""
    results = answered(Result.objects.filter(run__in=runs))
    by_recipe = [pk for pk in rescores if pk is not None]
    return Rescored.objects.filter(rescore__in=by_recipe, result__in=results) if by_recipe else results


# Drawing


def _draw(judged: Judged, verdicts: Verdicts, size: int, seed: int) -> list[int]:
    """Results by primary key: passes before failures, spread over tasks, no two that say the same of one task.

    Nor any that says of a task what stands in another audit of the same reward: its page has told the verdict or will,
    and the same seed gets the same answers in the next run.
    """
    known = {said for _, said in _read(_fields(Result.objects.filter(audit_items__audit__in=audits_of(judged))))}
    rows = list(_fields(verdicts.exclude(success=None)))
    by_verdict = ([row for row in rows if row[2] is success] for success in (True, False))
    passed, failed = (_different(spread(some, lambda row: row[1], seed), known) for some in by_verdict)
    return draw(passed, failed, size, seed)


def _fields(verdicts: Verdicts) -> Iterable[Attempt]:
    of = "result__" if verdicts.model is Rescored else ""
    rows = verdicts.exclude(**{f"{of}trajectory": None}).order_by(f"{of}pk")
    return rows.values_list(f"{of}pk", f"{of}task", "success", f"{of}trajectory")


def _different(rows: Iterable[Attempt], known: set[Said]) -> Iterator[int]:
    seen = set(known)
    for pk, said in _read(rows):
        if said not in seen:
            seen.add(said)
            yield pk


def _read(rows: Iterable[Attempt]) -> Iterator[tuple[int, Said]]:
    left = iter(rows)
    while some := list(islice(left, READ_AT_ONCE)):
        traces = traces_of(Trajectory.objects.filter(pk__in=[row[3] for row in some]))
        for pk, task, _, trajectory in some:
            yield pk, (task, _output_bytes(traces[trajectory or 0]))


def _output_bytes(trace: Trace) -> bytes:
    """The agent's words and calls; the ids that an engine gave its calls do not count."""
    spoken = [message for message in trace.conversation() if message.role == "assistant"]
    return canonical([[m.content, [[call.name, call.arguments] for call in m.tool_calls]] for m in spoken])


def _judgement(item: RewardAuditItem) -> Judgement:
    person = {Answer.PASS: True, Answer.FAIL: False}.get(Answer(item.answer))
    return Judgement(bool(item.verdict.success), person, item.result.task.cluster)


def _lock(audit: RewardAudit) -> RewardAudit:
    rows = RewardAudit.objects.select_for_update(no_key=True, of=("self",))
    return rows.select_related("run", "project").get(pk=audit.pk)
