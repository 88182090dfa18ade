"""Whether the servers of a ramp's arms answer with the right weights: when that is asked, and what follows.

It is asked before each stage, and every ten minutes while a ramp is under way. The judge waits for the answer, which
`workers.policies.ramp_self_tests` finds, and never for a server. A self-test that fails holds the ramp. What cannot be
asked, such as a hosted model, is said to be not tested; it holds nothing, unless the gateway cannot send it calls.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import Max
from django.utils import timezone

from flywheel.agents.models import Version
from flywheel.agents.version_content import TRANSFORMERS
from flywheel.edge.refusals import Stale
from flywheel.promotions.models import Ramp, SelfTest
from flywheel.promotions.ramps import ramp_moves
from flywheel.trajectories.ingest.gateway import routing

EVERY = timedelta(minutes=10)
EVERY_WITHOUT_WAY = timedelta(minutes=1)
"""The same of a ramp one of whose arms the gateway cannot send calls to, until that holds it."""
TRIES: Final = 5
Verdict = SelfTest.Verdict


def due() -> list[Ramp]:
    """The ramps whose self-test the judge waits for, which had none for ten minutes or since a person moved them, or
    which compare nothing at the moment, since an arm gets no calls."""
    rows = Ramp.objects.filter(state__in=Ramp.OPEN).order_by("pk").select_related(
        *(f"split__{arm}__{part}" for arm in ("live", "candidate") for part in ("agent", "weights", "adapter")),
        "split__agent__project",
        "candidate__version_eval__task_set",
        "approved_by",
    )  # fmt: skip
    return [ramp for ramp in rows if (_can_be_tested(ramp) and _is_due(ramp)) or _has_no_way(ramp)]


def is_awaited(ramp: Ramp) -> bool:
    """Whether a self-test must come before the ramp's next stage; it is asked for here. Where neither arm can be
    tested, that is what is recorded."""
    if not _can_be_tested(ramp):
        record(ramp, timezone.now(), [untested(ramp, arm) for arm in ("live", "candidate")])
        return False
    if ramp.test_wanted_at is None:
        ramp.test_wanted_at = timezone.now()
        Ramp.objects.filter(pk=ramp.pk).update(test_wanted_at=ramp.test_wanted_at)
        return True
    return not ramp.self_tests.filter(at__gte=ramp.test_wanted_at).exclude(verdict=Verdict.FAILED).exists()


def forget(ramp: Ramp) -> None:
    """The ramp does not go on after all."""
    if ramp.test_wanted_at is not None:
        ramp.test_wanted_at = None
        Ramp.objects.filter(pk=ramp.pk).update(test_wanted_at=None)


def why_not(version: Version) -> str:
    """Why nobody can tell whether a server answers with the version's weights; empty where that can be told."""
    if version.endpoint.get("kind") != TRANSFORMERS:
        return "not tested: it is asked at its own endpoint, and no weights of it are stored here"
    return "" if version.weights_id else "not tested: no weights of it are stored here"


def needs_no_way(ramp: Ramp) -> bool:
    """Whether its calls do not pass through the gateway: a program calls its model itself, and asks which version."""
    if any(one.is_program and not one.endpoint.get("base_url") for one in (ramp.split.live, ramp.split.candidate)):
        return True
    units = ramp.split.units
    return units.filter(is_assigned=True).exists() and not units.filter(is_assigned=False).exists()


def untested(ramp: Ramp, arm: str) -> dict[str, Any]:
    """An arm that cannot be tested, as a row of `SelfTest.arms`."""
    version = getattr(ramp.split, arm)
    return row_of(ramp, arm, Verdict.NOT_TESTED, why_not(version))


def row_of(
    ramp: Ramp, arm: str, verdict: str, words: str, evidence: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """A row of `SelfTest.arms`."""
    version = str(getattr(ramp.split, arm))
    return {"arm": arm, "version": version, "verdict": str(verdict), "words": words, "evidence": list(evidence)}


def record(ramp: Ramp, began: datetime, arms: Sequence[dict[str, Any]]) -> SelfTest:
    """Keep what was found, and hold the ramp where that is wrong."""
    verdicts = {row["verdict"] for row in arms}
    worst = next((each for each in (Verdict.FAILED, Verdict.NOT_TESTED) if each in verdicts), Verdict.PASSED)
    test = SelfTest.objects.create(ramp=ramp, at=began, stage=ramp.stage, verdict=worst, arms=list(arms))
    if worst == Verdict.FAILED:
        _hold(ramp.pk, f"its self-test failed. {test.words}")
    return test


def _can_be_tested(ramp: Ramp) -> bool:
    return not (why_not(ramp.split.live) and why_not(ramp.split.candidate))


def _is_due(ramp: Ramp) -> bool:
    if ramp.state == Ramp.State.WAITING and ramp.test_wanted_at is None:
        return False  # the judge has not seen it
    moved = ramp.changes.exclude(by=None).aggregate(last=Max("at"))["last"] or ramp.created_at
    since = max(timezone.now() - EVERY, ramp.test_wanted_at or moved, moved)
    return not ramp.self_tests.filter(at__gte=since).exists()


def _has_no_way(ramp: Ramp) -> bool:
    """Whether it goes on though the gateway sends everybody to the live version, and that is not tested yet."""
    if ramp.state not in (Ramp.State.SHADOW, Ramp.State.RUNNING):
        return False
    if ramp.self_tests.filter(at__gte=timezone.now() - EVERY_WITHOUT_WAY).exists():
        return False
    return bool(routing.problem_of(ramp.split)) and not needs_no_way(ramp)


def _hold(pk: int, words: str) -> None:
    """Hold the ramp, whatever its judge does meanwhile, unless it is on hold or over."""
    for _ in range(TRIES):
        ramp = Ramp.objects.select_related("agent__project", "candidate__version__agent", "approved_by").get(pk=pk)
        if ramp.state not in (Ramp.State.WAITING, Ramp.State.SHADOW, Ramp.State.RUNNING) or "signals" in ramp.finding:
            return
        kept = {name: ramp.finding[name] for name in ("accepted",) if name in ramp.finding}
        try:
            ramp_moves.hold(
                ramp=ramp, actor=None, reason=words, generation=ramp.generation, finding={**kept, "words": words}
            )
            return
        except Stale:
            continue
    raise Stale(f"ramp {pk} moved {TRIES} times while its self-test held it")
