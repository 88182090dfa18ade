"""Was the vLLM server shown to keep two versions apart? Without that nothing between their evals on it is compared.

Every run's self-test asks its own version beside others (`beside`), and its report names them. A test that passed
speaks for its version and each of those, whichever of their evals are compared: it is the two adapters that the server
kept apart, and each run was tested by itself before it asked anything. So a small eval is enough where one is missing.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from django.db.models import F, Max, Q

from flywheel.agents.models import Version
from flywheel.edge.jobs import State
from flywheel.environments.models import Split
from flywheel.evals.models import Engine, EvalRun
from flywheel.evals.serving.loaded_adapters import BESIDE, name_of

NAMED = 3 * BESIDE
"""Versions that a self-test may ask, the likeliest first: some may not load."""

Pair = frozenset[int]
"""Of two versions, by their keys."""


@dataclass(frozen=True, slots=True)
class SelfTest:
    """One that passed and asked both."""

    eval: int
    answers: int
    """In shared batches."""


@dataclass(frozen=True, slots=True)
class Apart:
    """Evidence that two versions are kept apart, or why they are not compared; neither where nothing can mix
    them up."""

    test: SelfTest | None = None
    problem: str = ""
    to_ask: Version | None = None
    """Whose self-test would tell, where none has."""
    split: str = ""
    """Which tasks of the set to start it on: for training, where there are any."""


def of(candidate: EvalRun, baseline: EvalRun) -> Apart:
    """The same of two evals. Those that were asked in different ways were never in one batch."""
    if not (candidate.engine == baseline.engine == Engine.VLLM):
        return Apart()
    found = between(candidate.version, baseline.version)
    if not found.problem:
        return found
    has_train = candidate.task_set.members.filter(split=Split.TRAIN).exists()
    return replace(found, split=Split.TRAIN if has_train else candidate.split)


def between(one: Version, other: Version) -> Apart:
    """The same of two versions that were asked on vLLM."""
    if not _can_be_mixed_up(one, other):
        return Apart()
    test = _tests([one.pk, other.pk]).get(frozenset((one.pk, other.pk)))
    older, newer = sorted((one, other), key=lambda version: version.pk)
    return Apart(test) if test else Apart(problem=_missing(older, newer), to_ask=older)


def unshown(runs: Sequence[EvalRun]) -> list[tuple[Version, Version]]:
    """Find the pairs of versions, among several evals side by side, that nobody has shown to be kept apart."""
    versions = [run.version for run in runs if run.engine == Engine.VLLM]
    pairs = [(one, other) for one, other in combinations(versions, 2) if _can_be_mixed_up(one, other)]
    tests = _tests({version.pk for pair in pairs for version in pair}) if pairs else {}
    return [pair for pair in pairs if frozenset(version.pk for version in pair) not in tests]


def beside(run: EvalRun) -> list[Version]:
    """The versions of which the run's self-test asks as well the first that load: what is likely to be compared with
    its own.

    They are made of the same weights and were asked at the same server, in the same environment: the version that its
    own was made from, then those that no other test has asked with it yet, then the rest; of each those first that were
    asked the same task set, and the newest.
    """
    version, live = run.version, run.version.agent.live
    known = [adapter for adapter in (version.adapter_id, live.adapter_id if live else None) if adapter]
    rows = EvalRun.objects.filter(
        engine=Engine.VLLM,
        state__in=(State.RUNNING, State.SUCCEEDED),
        task_set__environment_version__environment=run.task_set.environment_version.environment_id,
        version__weights=version.weights_id,
    ).exclude(Q(version__adapter=None) | Q(version__adapter__in=known))
    newest = rows.values("version").annotate(here=Max("pk", filter=Q(task_set=run.task_set)), last=Max("pk"))
    keys = list(newest.order_by(F("here").desc(nulls_last=True), "-last").values_list("version", flat=True))
    found = _versions(keys)
    tests = _tests([version.pk, *found], without=run)

    def rank(key: int) -> tuple[bool, bool]:
        return key != version.parent_id, frozenset((key, version.pk)) in tests

    return [found[key] for key in sorted(keys, key=rank)[:NAMED]]


def _tests(versions: Collection[int], without: EvalRun | None = None) -> dict[Pair, SelfTest]:
    """The newest self-test that passed, of each two of these versions that one has asked."""
    names: dict[str, set[int]] = {}
    for key, version in _versions(versions).items():
        names.setdefault(name_of(version), set()).add(key)
    rows = EvalRun.objects.filter(engine=Engine.VLLM, version__in=versions, isolation__passed=True)
    rows = rows.exclude(pk=without.pk) if without else rows
    told = rows.order_by("pk").values_list("pk", "version", "isolation__arms", "isolation__answers")
    return {
        frozenset((version, other)): SelfTest(run, answers)
        for run, version, arms, answers in told
        for arm in arms
        for other in names.get(arm, ())
    }


def _versions(keys: Collection[int]) -> dict[int, Version]:
    """With all that their names are made of."""
    return Version.objects.select_related("agent", "weights", "adapter").in_bulk(list(keys))


def _can_be_mixed_up(one: Version, other: Version) -> bool:
    """Other weights are another server's base, and the same adapter answers the same."""
    return one.weights_id == other.weights_id and one.adapter_id != other.adapter_id


def _missing(older: Version, newer: Version) -> str:
    return (
        f"no self-test has shown that the vLLM server keeps {older} and {newer} apart. Start an eval of {older} there, "
        "on any tasks of this environment (one sample of train tasks is enough): its self-test asks "
        f"up to {BESIDE} versions that it was not tested beside yet, the newest first"
    )
