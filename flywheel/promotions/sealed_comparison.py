"""The final comparison of a candidate: on the sealed part of its set, which nobody chose by.

    final_of(candidate)             how it stands there: judged now, from stored results; None without a sealed part
    open_sealed(candidate)          have both versions asked; each time is written down, and spends chance of error

People choose among versions by held-out tasks, and so the best gain there is partly luck. Sealed tasks are asked for a
candidate that the gate calls eligible already, and they confirm it or do not. Their rollouts are kept nowhere: what
stands beside the verdict is the two gains, one by which it was chosen and one by which it was not.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from django.db import transaction

from flywheel.accounts.actors import Actor
from flywheel.core import verifiers
from flywheel.core.evidence.gate.decision import Policy, confirm, detectable, spending
from flywheel.core.evidence.statistics.arm_comparison import difference
from flywheel.edge.jobs import State
from flywheel.edge.refusals import Refused
from flywheel.environments import ledger
from flywheel.environments.models import Opening, Split, TaskSet, TaskSetMember
from flywheel.evals.models import EvalRun
from flywheel.evals.runs import sealed_runs, unanswered_attempts
from flywheel.evals.runs.run_summaries import rows_of
from flywheel.evals.runs.void_scores import void_of
from flywheel.evals.serving import version_isolation
from flywheel.promotions.candidacy import evidence_of
from flywheel.promotions.models import Candidate

STATES: Final = {
    "unopened": "not asked",
    "unfinished": "running",
    "failed": "failed",
    "void": "void",
    "eligible": "confirmed",
    "not_shown": "not confirmed",
    "regressed": "regressed",
    "invalid": "invalid",
}
"""How a candidate stands at the sealed part; only `eligible` lets it through."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A candidate at the sealed part of its set."""

    state: str
    words: str
    tasks: int
    sources: int
    opening: int
    """Which one this is, or would be."""
    alpha: float
    """The chance of error that it spends."""
    held_out: dict[str, Any]
    """The difference of success by which it was chosen."""
    gain: dict[str, Any] | None = None
    """The same of the sealed tasks; None until both versions were asked."""
    version_run: EvalRun | None = None
    baseline_run: EvalRun | None = None
    unanswered: int = 0
    """Attempts for which the server was away, in the arms that can be asked again."""

    @property
    def is_passed(self) -> bool:
        return self.state == "eligible"

    @property
    def is_running(self) -> bool:
        return self.state == "unfinished"

    @property
    def can_ask(self) -> bool:
        """Whether asking, or asking again, may change it."""
        is_silent = self.state in ("not_shown", "regressed", "invalid") and self.unanswered > 0
        return is_silent or self.state in ("unopened", "failed", "void")

    @property
    def label(self) -> str:
        return STATES[self.state]

    def snapshot(self) -> dict[str, Any]:
        """As a promotion keeps it."""
        runs = {"version_eval": self.version_run, "baseline_eval": self.baseline_run}
        named = ("state", "label", "words", "tasks", "sources", "opening", "alpha", "held_out", "gain", "unanswered")
        return {name: getattr(self, name) for name in named} | {
            name: run.pk if run else None for name, run in runs.items()
        }


def final_of(candidate: Candidate) -> Comparison | None:
    """Return the candidate's standing at the sealed part of its set; None where that has none."""
    task_set = candidate.version_eval.task_set
    members = task_set.members.filter(split=Split.SEALED).order_by()
    tasks = members.count()
    if not tasks:
        return None
    opening, is_open = _opening(candidate)
    arms = (candidate.version_eval, candidate.baseline_eval)
    runs = [sealed_runs.find(run) if is_open else None for run in arms]
    state, words, gain = _state(candidate, runs, tasks, opening)
    return Comparison(
        state=state,
        words=words,
        tasks=tasks,
        sources=members.values("task__cluster").distinct().count(),
        opening=opening,
        alpha=spending(_rules(candidate).alpha, opening),
        held_out=candidate.report["comparison"]["differences"]["success"],
        gain=gain,
        version_run=runs[0],
        baseline_run=runs[1],
        unanswered=sum(
            unanswered_attempts.of_run(run).count() for run in runs if run and unanswered_attempts.can_resume(run)
        ),
    )


def final(row: Candidate) -> dict[str, Any] | None:
    """Return a candidate's standing at the sealed part: now while it is open, as decided where it was promoted."""
    if row.state == Candidate.State.PROMOTED and (promotion := row.promotions.first()) is not None:
        return promotion.sealed or None
    found = final_of(row)
    return {**found.snapshot(), "can_ask": found.can_ask} if found else None


def open_sealed(*, candidate: Candidate, actor: Actor) -> None:
    """Have both versions attempt the sealed tasks, as they attempted the held-out ones; what has run already is found.

    Raises Refused.
    """
    task_set = candidate.version_eval.task_set
    if problem := _problem(candidate):
        raise Refused(problem)
    with transaction.atomic():
        TaskSet.objects.select_for_update(no_key=True).get(pk=task_set.pk)  # openings are counted one after the other
        sealed_runs.start(candidate.baseline_eval, actor=actor)
        sealed_runs.start(candidate.version_eval, actor=actor)
        opening, is_open = _opening(candidate)
        if not is_open:
            ledger.opened(task_set=task_set, kind=Opening.Kind.SEALED, subject=candidate, actor=actor)
            actor.record(
                project=candidate.project,
                action="promotions.open_sealed",
                subject=candidate,
                task_set=str(task_set),
                opening=opening,
            )


def _problem(candidate: Candidate) -> str:
    """Why the sealed part may not be asked for it now; empty when it may."""
    version_eval = candidate.version_eval
    environment = version_eval.task_set.environment_version
    sealed = version_eval.task_set.members.filter(split=Split.SEALED)
    sources = sealed.values("task__cluster").distinct().count()
    if not sources:
        return f"{version_eval.task_set} has no sealed part"
    if sources < (least := _rules(candidate).min_clusters):
        return f"its sealed part is of {sources} sources, and {candidate.policy} shows nothing by fewer than {least}"
    if candidate.state != Candidate.State.WAITING:
        return f"this candidate is {candidate.state} already"
    if candidate.verdict != Candidate.Verdict.ELIGIBLE:
        said = Candidate.Verdict(candidate.verdict).label
        return f"the gate says {said} by the held-out tasks, so there is nothing to confirm"
    if candidate.agent.live_id != candidate.baseline_id:
        return f"it was compared with {candidate.baseline}, which is no longer live"
    if verifiers.digest(environment.verifier) != version_eval.verifier_digest:
        return "the verifier's code changed since the held-out tasks were judged; evaluate both versions again"
    # Opened ones go into later sets as held-out tasks, where everybody sees them.
    opened = TaskSetMember.objects.filter(task__in=sealed.values("task"), split=Split.HELD_OUT)
    shown = opened.select_related("task_set").first()
    if shown and not _opening(candidate)[1]:
        return f"its sealed tasks are held-out tasks of {shown.task_set} by now; compare the versions on that set"
    return ""


def _state(
    candidate: Candidate, runs: Sequence[EvalRun | None], tasks: int, opening: int
) -> tuple[str, str, dict[str, Any] | None]:
    """The state, why, and the difference of success where there is one to tell."""
    present = [run for run in runs if run is not None]
    if len(present) < 2:
        return "unopened", _problem(candidate) or _reach(candidate, tasks, opening), None
    if void := next((run for run in present if void_of(run.judges)), None):
        return "void", f"{void} is void: its judge gave a canary a mark", None
    if failed := next((run for run in present if run.state in (State.FAILED, State.CANCELLED)), None):
        return "failed", f"{failed} is {failed.state}{f' ({failed.error})' if failed.error else ''}", None
    if any(run.state != State.SUCCEEDED for run in present):
        done, total = (sum(getattr(run, name) or 0 for run in present) for name in ("done", "total"))
        return "unfinished", f"{done} of {total} attempts are made", None
    if problem := version_isolation.of(*present).problem:
        return "invalid", problem, None
    evidence = evidence_of(*present)
    decision = confirm(_rules(candidate), evidence, opening)
    if decision.verdict == "invalid":
        return decision.verdict, decision.words, None
    return decision.verdict, decision.words, asdict(difference("success", evidence.baseline, evidence.candidate))


def _reach(candidate: Candidate, tasks: int, opening: int) -> str:
    """Say which gain can be shown, as the held-out tasks vary; told before they are asked, as they can be only once."""
    before, after, rules = rows_of(candidate.baseline_eval), rows_of(candidate.version_eval), _rules(candidate)
    least = detectable(rules, before, after, tasks, spending(rules.alpha, opening))
    known = "no version has used these tasks yet" if opening == 1 else "other candidates already used them"
    if least is None:
        return known
    return f"{known}; a true gain of {100 * least:.0f} points would show in four of five cases"


def _rules(candidate: Candidate) -> Policy:
    return Policy.from_dict(candidate.policy.rules)


def _opening(candidate: Candidate) -> tuple[int, bool]:
    """Which opening of the sealed part the candidate is, counted from 1, or would be; and whether it is one.

    Of the candidate, not of its evals: each further judgement of the same attempts, under another policy or beside
    another baseline, is a further chance to be confirmed by luck.
    """
    opened = ledger.sealed_openings(candidate.version_eval.task_set)
    subjects = list(dict.fromkeys(opening.subject for opening in opened))
    is_open = str(candidate) in subjects
    return (subjects.index(str(candidate)) if is_open else len(subjects)) + 1, is_open
