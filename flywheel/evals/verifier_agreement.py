"""Agreement of a verifier with people, on rollouts that both have judged.

People's word on a rollout is the decision about its trajectory (`failures`: a failure, or nothing wrong), else what
they said of it in a finished reward audit. The verifier's is the score that it gave in an eval, or when it judged old
rollouts again. A judge in a rubric is compared by itself too: it passes what gets the highest mark.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from django.db.models import QuerySet

from flywheel.accounts.actors import Actor
from flywheel.core.evidence.statistics.estimates import Estimate, proportion
from flywheel.core.evidence.statistics.reviewer_agreement import cohen_kappa
from flywheel.core.verifiers import PASS, rubric
from flywheel.environments.models import EnvironmentVersion
from flywheel.evals.models import EvalRun, Rescored, Result, RewardAuditItem
from flywheel.evals.runs import rollout_looks
from flywheel.failures.models import Decision, Failure

MOST = 5000
"""Rollouts that are looked at, the newest."""
SHOWN = 50


@dataclass(frozen=True, slots=True)
class Both:
    """A rollout that people and the verifier have judged."""

    result: Result
    person: bool
    verdict: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement with people of the whole verifier, or of one judge in it."""

    name: str
    """Of the part; empty for the whole."""
    agreement: Estimate
    kappa: Estimate
    sources: int
    """Where the rollouts' tasks come from: the intervals take rollouts for independent."""
    false_passes: int
    false_failures: int
    disagreements: list[Both] = field(default_factory=list)


def agreements(version: EnvironmentVersion) -> list[Agreement]:
    """Measure a version's verifier, and each judge beside other parts; wherever this very verifier has scored."""
    results = Result.objects.filter(run__task_set__environment_version__environment=version.environment_id)
    said = _by_people(results)
    scored = [row for row in _scored(version, results) if row[0].pk in said]
    judges = [part.name for part in rubric.judges(version.verifier).values()]
    is_one = bool(judges) and len(rubric.read(version.verifier).parts) == 1
    names = [""] if is_one else ["", *judges]
    return [_agreement(name, said, scored) for name in names]


Scored = tuple[Result, float | None, dict[str, float | None], str]


def _agreement(name: str, said: dict[int, bool], scored: Iterable[Scored]) -> Agreement:
    both = []
    for result, score, parts, reason in scored:
        found = parts.get(name) if name else score
        if found is not None:
            both.append(Both(result, said[result.pk], found >= PASS - 1e-9, reason))
    apart = [each for each in both if each.person != each.verdict]
    return Agreement(
        name=name,
        agreement=proportion(len(both) - len(apart), len(both)),
        kappa=cohen_kappa([each.person for each in both], [each.verdict for each in both]),
        sources=len({each.result.task.cluster for each in both}),
        false_passes=sum(each.verdict for each in apart),
        false_failures=sum(each.person for each in apart),
        disagreements=apart[:SHOWN],
    )


def _by_people(results: QuerySet[Result]) -> dict[int, bool]:
    """Whether people pass each of these that they judged."""
    audits = RewardAuditItem.objects.filter(
        result__in=results, audit__finished_at__isnull=False, answer__in=["pass", "fail"]
    )
    found = {pk: answer == "pass" for pk, answer in audits.order_by("pk").values_list("result_id", "answer")}
    decisions = Failure.objects.filter(current=True, trajectory__result__in=results).order_by("-pk")
    rows = decisions.values_list("trajectory__result", "decision")[:MOST]
    return found | {pk: decision == Decision.REJECTED for pk, decision in rows}


def disputed(runs: Collection[EvalRun]) -> set[tuple[int, int]]:
    """The (task, run), by their keys, where people's word on an attempt is another than the verifier's in that run."""
    said = _by_people(Result.objects.filter(run__in=runs))
    rows = Result.objects.filter(pk__in=said, success__isnull=False).values_list("pk", "task", "run", "success")
    return {(task, run) for pk, task, run, success in rows if said[pk] != success}


def _scored(version: EnvironmentVersion, results: QuerySet[Result]) -> Iterator[Scored]:
    """Yield this verifier's scores of rollouts that people may have judged, the newest first, each once."""
    seen: set[int] = set()
    labelled = results.filter(trajectory__failures__current=True) | results.filter(
        audit_items__audit__finished_at__isnull=False
    )
    own = labelled.filter(run__verifier_digest=version.verifier_digest)
    for row in own.select_related("task", "trajectory", "run").distinct().order_by("-pk")[:MOST]:
        seen.add(row.pk)
        yield row, row.score, row.parts, row.reason
    again = Rescored.objects.filter(
        rescore__verifier_digest=version.verifier_digest,
        rescore__environment_version__environment=version.environment_id,
        result__in=labelled.values("pk"),
    )
    rows = again.select_related("result__task", "result__trajectory", "result__run").order_by("-pk")
    for old in rows[:MOST]:
        if old.result_id not in seen:
            seen.add(old.result_id)
            yield old.result, old.score, old.parts, old.reason


def note_looks(found: Sequence[Agreement], actor: Actor) -> None:
    """Whoever sees how held-out rollouts were judged has looked at them."""
    rollout_looks.note_looks({each.result.run for one in found for each in one.disagreements}, actor)
