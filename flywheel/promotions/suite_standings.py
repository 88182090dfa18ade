"""A candidate's standing at the agent's regression suites, and the evals that it rests on.

    start(version_eval, baseline_eval)         have both arms run every present suite, as the two evals were run
    standings(version_eval, baseline_eval)     how the newer version stands at each: judged now, from stored results
    standings_of(candidate)                    the same of a candidate, with the suites that were retired since
    live_results(agents)                       what the live versions last did at theirs

Nothing of it is kept until somebody decides: suites bind as they are when an approver decides, and so do those that
were present when the candidate was made, so that nobody takes one away from it. What they said is then kept with the
promotion.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from flywheel.accounts.actors import Actor
from flywheel.agents.models import Agent, Version
from flywheel.core.evidence.suite_rules import ALPHA, Finding, judge_mean, judge_no_break, judge_no_failure
from flywheel.edge.jobs import StaleState, State
from flywheel.edge.refusals import Refused, Stale
from flywheel.environments.models import Suite
from flywheel.environments.task_sets import suite_definitions
from flywheel.evals.comparisons.run_comparison import CannotCompare, comparison
from flywheel.evals.models import Engine, EvalRun, Result
from flywheel.evals.runs import suite_runs
from flywheel.evals.runs.submission import RunSettings, sampling_of
from flywheel.evals.runs.suite_runs import Attempts
from flywheel.evals.runs.unanswered_attempts import can_resume
from flywheel.evals.runs.void_scores import void_of
from flywheel.evals.serving import version_isolation
from flywheel.promotions.models import Candidate
from flywheel.training.datasets import contamination_checks
from flywheel.training.models import ContaminationCheck

log = logging.getLogger(__name__)

Tallies = Mapping[int, Mapping[int, Attempts]]

STATES: Final = {
    "passed": "passed",
    "cannot_tell": "cannot tell",
    "below": "not passed",
    "not_shown": "not shown",
    "missing": "not run",
    "unfinished": "running",
    "failed": "failed",
    "void": "void",
    "trained_on": "trained on",
    "unchecked": "not checked yet",
    "not_apart": "not shown apart",
    "retired": "retired since",
}
"""How a candidate stands at a suite; only the first two let it through."""
UNTOLD: Final = ("missing", "what it did cannot be told")
"""Of a suite that nothing is known of: never passed."""
LISTED = 20
"""Failed tasks of a suite that are named with their rollouts."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A candidate at one suite."""

    suite: Suite
    state: str
    words: str
    version_run: EvalRun | None
    baseline_run: EvalRun | None
    finding: Finding | None = None
    """None until both arms have run."""
    difference: dict[str, Any] | None = None
    """Of success, candidate minus baseline; of a general suite."""
    failed: list[Result] = field(default_factory=list)
    """Rollouts of the tasks that count against it."""
    unanswered: int = 0
    """Attempts for which the server was away, in the arms that can be asked again."""

    @property
    def is_passed(self) -> bool:
        return self.state in ("passed", "cannot_tell")

    @property
    def label(self) -> str:
        return STATES[self.state]

    @property
    def can_start(self) -> bool:
        """Whether running what is missing may change it."""
        is_silent = self.state == "not_shown" and self.unanswered > 0
        return is_silent or self.state in ("missing", "failed", "void", "unchecked")

    @property
    def unlisted(self) -> int:
        """Tasks that count against it beyond those that are named."""
        if self.finding is None:
            return 0
        return len(self.finding.failed or self.finding.broken) - len(self.failed)

    def snapshot(self) -> dict[str, Any]:
        """As a promotion keeps it."""
        runs = {"version_eval": self.version_run, "baseline_eval": self.baseline_run}
        return {
            "suite": str(self.suite),
            "kind": self.suite.kind,
            "state": self.state,
            "words": self.words,
            **{name: run.pk if run else None for name, run in runs.items()},
        }


@dataclass(frozen=True, slots=True)
class LiveResult:
    """The live version's last result at one of its agent's suites."""

    suite: Suite
    run: EvalRun | None
    """Its newest that ended well."""
    under_way: EvalRun | None
    tasks: int = 0
    passed: int = 0
    unscored: int = 0

    @property
    def success(self) -> dict[str, Any] | None:
        return getattr(self.run, "success", None)


def context(stands: Sequence[Standing], version_eval: int, baseline_eval: int, *, is_open: bool) -> dict[str, Any]:
    """Return the context of `_standings.html`, and of the tile of a candidate's page."""
    return {
        "stands": stands,
        "stands_passed": sum(stand.is_passed for stand in stands),
        "is_open": is_open,
        "is_running": any(stand.state == "unfinished" for stand in stands),
        "can_start": any(stand.can_start for stand in stands),
        "candidate_eval": version_eval,
        "baseline_eval": baseline_eval,
    }


def start(*, version_eval: EvalRun, baseline_eval: EvalRun, actor: Actor) -> list[str]:
    """Have both arms run every present suite of the agent; why any cannot run. What has run already is found."""
    problems = []
    settings = _settings(version_eval)
    suites = list(suite_definitions.present(version_eval.version.agent))
    _check(version_eval.version, suites)
    for suite in suites:
        for version in (baseline_eval.version, version_eval.version):
            try:
                suite_runs.start(version=version, suite=suite, settings=settings, actor=actor)
            except (Refused, StaleState) as error:
                problems.append(f"{suite} of {version}: {error}")
    for problem in problems:
        log.warning("a regression suite was not started: %s", problem)
    return problems


def _settings(version_eval: EvalRun) -> RunSettings:
    """Ask as the eval did, but each arm with the sampling that it would have live."""
    return replace(RunSettings.of(version_eval), sampling=None)


def check_waiting(suite: Suite) -> None:
    """Compare a new suite with what the candidates of its agent that wait learnt from: pages only read it."""
    for row in suite.agent.candidates.filter(state=Candidate.State.WAITING).select_related("version"):
        _check(row.version, [suite])


def _check(version: Version, suites: Collection[Suite]) -> None:
    for suite in suites:
        contamination_checks.check_version(version, suite.task_set)


def start_for(*, candidate: Candidate, actor: Actor) -> list[str]:
    """`start` for a candidate. Raises Stale where nobody is to decide about it any more."""
    if candidate.state != Candidate.State.WAITING:
        raise Stale(f"{candidate} is {candidate.state} already, so its suites no longer run")
    return start(version_eval=candidate.version_eval, baseline_eval=candidate.baseline_eval, actor=actor)


def standings(version_eval: EvalRun, baseline_eval: EvalRun) -> list[Standing]:
    """Return the candidate's standing at every present suite of its agent."""
    suites = list(suite_definitions.present(version_eval.version.agent))
    if not suites:
        return []
    arms = (version_eval.version, baseline_eval.version)
    found = suite_runs.find(arms, suites, _settings(version_eval))
    tallies = suite_runs.tallies(run for run in found.values() if run.state == State.SUCCEEDED)
    learnt = contamination_checks.datasets_of(version_eval.version)
    checks = contamination_checks.kept_checks(learnt, [suite.task_set for suite in suites]) if learnt else {}
    mixed = version_isolation.between(*arms).problem if version_eval.engine == Engine.VLLM else ""
    shown = []
    for suite in suites:
        new, old = (found.get((version.pk, suite.pk)) for version in arms)
        barred = _learnt([checks.get((dataset.pk, suite.task_set_id)) for dataset in learnt])
        said = barred or _not_run({arms[0]: new, arms[1]: old}) or (("not_apart", mixed) if mixed else None)
        if said is None and new is not None and old is not None:
            shown.append(_judged(suite, new, old, tallies, ALPHA / len(suites)))
        else:
            shown.append(Standing(suite, *(said or UNTOLD), new, old))
    return shown


def standings_of(candidate: Candidate) -> list[Standing]:
    """Return a candidate's standing at the suites that bind its agent now, and while it waits at those that did when
    it was made and were retired since."""
    shown = standings(candidate.version_eval, candidate.baseline_eval)
    if candidate.state != Candidate.State.WAITING:
        return shown
    for suite, following in suite_definitions.left(candidate.agent, since=candidate.created_at):
        then = f"; {following} followed it" if following else ""
        words = f"{suite.retired_by} retired it after this was put forward: {suite.retired_why}{then}"
        shown.append(Standing(suite, "retired", words, None, None))
    return shown


def live_results(agents: Collection[Agent]) -> dict[int, list[LiveResult]]:
    """Return the last results of each agent's live version at its present suites, by the agent's key."""
    every = list(suite_definitions.present(*agents))
    suites: dict[int, list[Suite]] = {agent.pk: [] for agent in agents}
    for suite in every:
        suites[suite.agent_id].append(suite)
    lives = [agent.live for agent in agents if agent.live]
    found = suite_runs.newest(lives, every, State.SUCCEEDED) if every else {}
    going = suite_runs.newest(lives, every, State.QUEUED, State.RUNNING) if every else {}
    tallies = suite_runs.tallies(found.values()) if found else {}

    def result(agent: Agent, suite: Suite) -> LiveResult:
        asked = (agent.live_id or 0, suite.pk)
        run = found.get(asked)
        tried = [attempts.tried(suite.measure).passed for attempts in tallies.get(run.pk, {}).values()] if run else []
        return LiveResult(suite, run, going.get(asked), len(tried), tried.count(True), tried.count(None))

    return {agent.pk: [result(agent, suite) for suite in suites[agent.pk]] for agent in agents}


def run_live(*, suite: Suite, actor: Actor) -> EvalRun:
    """The live version's eval at the suite. Raises Refused."""
    live = suite.agent.live
    if live is None:
        raise Refused(f"{suite.agent} has no live version", field="version")
    settings = RunSettings(sampling=sampling_of(live))  # as it is asked in production
    return suite_runs.start(version=live, suite=suite, settings=settings, actor=actor)


def _learnt(checks: Sequence[ContaminationCheck | None]) -> tuple[str, str] | None:
    """The state and its words where what the version learnt from has tasks of the suite, or nobody has looked yet."""
    blocked = {task for check in checks if check for task in check.report["blocked"]}
    if blocked:
        return "trained_on", f"{len(blocked)} of its tasks are in what the version learnt from, so it says nothing"
    if None in checks:
        return "unchecked", "what the version learnt from was not compared with its tasks yet"
    return None


def _not_run(runs: Mapping[Version, EvalRun | None]) -> tuple[str, str] | None:
    """The state and its words while an arm has not ended well; None when both have."""
    by_state: dict[str, list[str]] = {}
    for version, run in runs.items():
        state, words = _state_of(run)
        by_state.setdefault(state, []).append(f"{version} {words}")
    by_state.pop("", None)
    for state in ("void", "failed", "missing", *by_state):
        if state in by_state:
            return state, "; ".join(by_state[state])
    return None


def _state_of(run: EvalRun | None) -> tuple[str, str]:
    if run is None:
        return "missing", "has not run it as the two evals were run"
    if void_of(run.judges):
        return "void", f"has no score that counts: {run.error}"
    if run.state in (State.FAILED, State.CANCELLED):
        why = f": {run.error}" if run.error else ""
        return "failed", f"did not end ({run.state}{why})"
    if run.state != State.SUCCEEDED:
        return "unfinished", f"is at {run.done} of {run.total} attempts"
    return "", ""


def _judged(suite: Suite, new: EvalRun, old: EvalRun, tallies: Tallies, alpha: float) -> Standing:
    before, after = tallies.get(old.pk, {}), tallies.get(new.pk, {})
    arms = [{task: attempts.tried(suite.measure) for task, attempts in arm.items()} for arm in (before, after)]
    difference = None
    if suite.margin is not None:
        try:
            difference = comparison(new, old)["differences"]["success"]
        except CannotCompare as error:
            return Standing(suite, "unfinished", str(error), new, old)
        fill = min(_fill(before), _fill(after))
        finding = judge_mean(arms[0], arms[1], difference=difference, fill=fill, margin=suite.margin, alpha=alpha)
    elif suite.rule == Suite.Rule.NO_BREAK:
        is_greedy = all(run.sampling.get("temperature") == 0 for run in (new, old))
        finding = judge_no_break(*arms, alpha=alpha, is_greedy=is_greedy)
    else:
        finding = judge_no_failure(*arms)
    shown = finding.failed or finding.broken
    failed = suite_runs.failing(new, suite.measure, shown[:LISTED]) if shown else []
    arms_away = ((run, sum(tried.unanswered for tried in arm.values())) for run, arm in ((old, before), (new, after)))
    unanswered = sum(count for run, count in arms_away if count and can_resume(run))
    return Standing(suite, finding.state, finding.words, new, old, finding, difference, failed, unanswered)


def _fill(arm: Mapping[int, Attempts]) -> float:
    count = sum(attempts.count for attempts in arm.values())
    return 1 - sum(attempts.unscored for attempts in arm.values()) / count if count else 0.0
