"""The final comparison: on tasks that nobody saw, asked on purpose, and counted."""

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.agents.models import Agent
from flywheel.core.evidence.gate.decision import spending
from flywheel.edge.jobs import State
from flywheel.edge.refusals import Refused
from flywheel.environments import ledger
from flywheel.environments.models import Opening, Split, TaskSet, TaskSetMember
from flywheel.evals.models import EvalRun, Result
from flywheel.evals.runs.rollout_looks import Sealed, note_look
from flywheel.evals.runs.submission import submit
from flywheel.promotions.candidacy import propose
from flywheel.promotions.gate_policy import change_policy
from flywheel.promotions.live_version import promote
from flywheel.promotions.models import Candidate
from flywheel.promotions.sealed_comparison import Comparison, final_of, open_sealed
from tests.conftest import Build, Cast
from tests.promotions.conftest import Evaluated, ended

pytestmark = pytest.mark.django_db
SignIn = Callable[[User], Client]
TASKS = 12


@pytest.fixture
def task_set(build: Build) -> TaskSet:
    return build.task_set(train=2, held_out=12, sealed=TASKS)


@pytest.fixture
def candidate(build: Build, agent: Agent, evaluated: Evaluated, task_set: TaskSet) -> Candidate:
    return proposed(build, agent, evaluated, task_set)


def proposed(
    build: Build,
    agent: Agent,
    evaluated: Evaluated,
    task_set: TaskSet,
    prompt: str = "Answer in JSON.",
    better: int = 20,
) -> Candidate:
    """A candidate that the gate calls eligible by the held-out tasks."""
    assert agent.live is not None
    baseline = EvalRun.objects.filter(version=agent.live, task_set=task_set, split=Split.HELD_OUT).first()
    return propose(
        version_eval=evaluated(build.version(agent, system_prompt=prompt), task_set, passing=better),
        baseline_eval=baseline or evaluated(agent.live, task_set, passing=4),
        actor=Actor(build.cast.trainer),
    )


def final(row: Candidate) -> Comparison:
    found = final_of(row)
    assert found is not None
    return found


def sealed_runs(row: Candidate) -> tuple[EvalRun, EvalRun]:
    """The candidate's and the baseline's."""
    runs = EvalRun.objects.filter(split=Split.SEALED, task_set=row.version_eval.task_set)
    return runs.get(version=row.version), runs.get(version=row.baseline)


def conclude(row: Candidate, *, failing: int = 0, before: int = 10) -> None:
    """As if workers had asked both: of 12 tasks the candidate fails at `failing`, the baseline at `before`."""
    new, old = sealed_runs(row)
    ended(new, failing=failing)
    if old.state != State.SUCCEEDED:
        ended(old, failing=before)


def approve(row: Candidate, cast: Cast, **more: Any) -> Any:
    row.agent.refresh_from_db()
    return promote(candidate=row, actor=Actor(cast.approver), reason="ok", generation=row.agent.generation, **more)


def test_what_nobody_answered_of_it_is_asked_again_as_the_same_opening(candidate: Candidate, cast: Cast) -> None:
    open_sealed(candidate=candidate, actor=Actor(cast.approver))
    conclude(candidate, failing=9)
    new, _ = sealed_runs(candidate)
    assert not final(candidate).can_ask
    new.results.filter(success=False).update(score=None, success=None, cause="away")
    assert (final(candidate).state, final(candidate).can_ask) == ("invalid", True)
    EvalRun.objects.filter(pk=new.pk).update(budget={"tokens": 9})
    assert not final(candidate).can_ask, "no button where nothing would be asked"
    EvalRun.objects.filter(pk=new.pk).update(budget={})
    open_sealed(candidate=candidate, actor=Actor(cast.approver))
    assert (final(candidate).state, final(candidate).opening) == ("unfinished", 1)
    assert not new.results.filter(cause="away").exists()


def test_what_seems_lost_is_asked_again_too_where_the_server_was_away(candidate: Candidate, cast: Cast) -> None:
    open_sealed(candidate=candidate, actor=Actor(cast.approver))
    conclude(candidate, failing=12, before=0)
    assert (final(candidate).state, final(candidate).can_ask) == ("regressed", False)
    candidate.policy.rules["min_fill"] = 0.9
    new, _ = sealed_runs(candidate)
    Result.objects.filter(pk=new.results.earliest("pk").pk).update(score=None, success=None, cause="away")
    assert (final(candidate).state, final(candidate).can_ask) == ("regressed", True)


def test_a_set_without_a_sealed_part_asks_for_none(
    build: Build, cast: Cast, agent: Agent, evaluated: Evaluated
) -> None:
    row = proposed(build, agent, evaluated, build.task_set(train=2, held_out=12))
    assert final_of(row) is None
    with pytest.raises(Refused, match="has no sealed part"):
        open_sealed(candidate=row, actor=Actor(cast.approver))
    assert approve(row, cast).sealed == {}


def test_an_eligible_candidate_waits_for_the_sealed_tasks_and_is_confirmed_by_them(
    candidate: Candidate, cast: Cast
) -> None:
    found = final(candidate)
    assert (found.state, found.tasks, found.sources, found.opening) == ("unopened", 12, 12, 1)
    assert found.words.startswith("no version has used these tasks yet; a true gain of ")
    with pytest.raises(Refused, match="its sealed part is not asked"):
        approve(candidate, cast)
    assert not EvalRun.objects.filter(split=Split.SEALED).exists()
    open_sealed(candidate=candidate, actor=Actor(cast.approver))
    new, old = sealed_runs(candidate)
    like = candidate.version_eval
    for run in (new, old):
        assert (run.samples, run.seed, run.sampling["temperature"]) == (like.samples, like.seed, 1.0)
        assert run.total == TASKS * like.samples
    assert final(candidate).state == "unfinished"
    with pytest.raises(Refused, match="its sealed part is running"):
        approve(candidate, cast)
    conclude(candidate)
    found = final(candidate)
    assert found.is_passed
    assert found.words.startswith("success up 83.3 points")
    assert found.gain is not None
    assert found.gain["mean"] == pytest.approx(10 / 12)
    assert found.held_out["mean"] == pytest.approx(16 / 24)
    promotion = approve(candidate, cast)
    assert not promotion.against_the_gate
    assert promotion.sealed["state"] == "eligible"
    assert promotion.sealed["version_eval"] == new.pk
    assert promotion.sealed["gain"]["mean"] == pytest.approx(10 / 12)


def test_a_gain_that_sealed_tasks_do_not_confirm_needs_an_override(candidate: Candidate, cast: Cast) -> None:
    open_sealed(candidate=candidate, actor=Actor(cast.approver))
    conclude(candidate, failing=9, before=9)
    assert final(candidate).label == "not confirmed"
    with pytest.raises(Refused, match="its sealed part is not confirmed"):
        approve(candidate, cast)
    assert approve(candidate, cast, override=True).against_the_gate


def test_asking_twice_asks_once(candidate: Candidate, cast: Cast) -> None:
    for actor in (cast.approver, cast.approver, cast.admin):
        open_sealed(candidate=candidate, actor=Actor(actor))
    assert EvalRun.objects.filter(split=Split.SEALED).count() == 2
    assert Opening.objects.filter(kind=Opening.Kind.SEALED).count() == 1
    assert final(candidate).opening == 1
    assert cast.project.audit.filter(action="promotions.open_sealed").count() == 1


def test_each_further_candidate_may_spend_less(
    build: Build, cast: Cast, agent: Agent, evaluated: Evaluated, task_set: TaskSet, candidate: Candidate
) -> None:
    open_sealed(candidate=candidate, actor=Actor(cast.approver))
    conclude(candidate)
    other = proposed(build, agent, evaluated, task_set, "Another.")
    assert (final(other).opening, final(other).alpha) == (2, spending(0.05, 2))
    open_sealed(candidate=other, actor=Actor(cast.approver))
    conclude(other)
    assert [final(row).opening for row in (candidate, other)] == [1, 2]
    # What is live was asked once for both.
    assert EvalRun.objects.filter(split=Split.SEALED).count() == 3


def test_openings_count_in_every_set_that_has_one_of_the_tasks(
    build: Build, cast: Cast, agent: Agent, evaluated: Evaluated, task_set: TaskSet, candidate: Candidate
) -> None:
    again = build.task_set(train=2, held_out=12, name="later")
    shared = task_set.members.filter(split=Split.SEALED).first()
    assert shared is not None
    TaskSetMember.objects.create(task_set=again, task=shared.task, split=Split.SEALED)
    open_sealed(candidate=candidate, actor=Actor(cast.approver))
    assert [opening.subject for opening in ledger.sealed_openings(again)] == [str(candidate)]
    assert ledger.sealed_openings(build.task_set(sealed=2)) == []
    assert ledger.openings(task_set).times == 0


def test_nothing_is_opened_for_a_candidate_that_has_nothing_to_confirm(
    build: Build, cast: Cast, agent: Agent, evaluated: Evaluated, task_set: TaskSet, candidate: Candidate
) -> None:
    weak = proposed(build, agent, evaluated, task_set, "No better.", better=5)
    with pytest.raises(Refused, match="the gate says not shown to be better by the held-out tasks"):
        open_sealed(candidate=weak, actor=Actor(cast.approver))
    assert final(weak).words.startswith("the gate says not shown")
    approve(candidate, cast, override=True)
    candidate.refresh_from_db()
    with pytest.raises(Refused, match="this candidate is promoted already"):
        open_sealed(candidate=candidate, actor=Actor(cast.approver))
    assert not Opening.objects.filter(kind=Opening.Kind.SEALED).exists()


def test_what_is_shown_elsewhere_by_now_confirms_nothing(
    build: Build, cast: Cast, task_set: TaskSet, candidate: Candidate
) -> None:
    later = build.task_set(name="later")
    shown = task_set.members.filter(split=Split.SEALED).first()
    assert shown is not None
    TaskSetMember.objects.create(task_set=later, task=shown.task, split=Split.HELD_OUT)
    with pytest.raises(Refused, match=f"held-out tasks of {later} by now"):
        open_sealed(candidate=candidate, actor=Actor(cast.approver))


def test_a_failed_eval_goes_on_and_a_void_one_confirms_nothing(candidate: Candidate, cast: Cast) -> None:
    open_sealed(candidate=candidate, actor=Actor(cast.approver))
    new, old = sealed_runs(candidate)
    EvalRun.objects.filter(pk=new.pk).update(state=State.FAILED, error="the server went away")
    assert final(candidate).state == "failed"
    assert "the server went away" in final(candidate).words
    open_sealed(candidate=candidate, actor=Actor(cast.approver))
    new.refresh_from_db()
    assert new.state == State.QUEUED
    EvalRun.objects.filter(pk=old.pk).update(judges={"nice": {"void": "a canary"}}, state=State.FAILED)
    assert final(candidate).state == "void"


def test_only_a_final_comparison_asks_sealed_tasks(build: Build, cast: Cast, task_set: TaskSet) -> None:

    with pytest.raises(Refused, match="only in a candidate's final comparison"):
        submit(
            key=uuid.uuid4(), version=build.version(), task_set=task_set, actor=Actor(cast.builder), split=Split.SEALED
        )


def test_evals_of_another_split_make_no_candidate(build: Build, cast: Cast, agent: Agent, candidate: Candidate) -> None:
    open_sealed(candidate=candidate, actor=Actor(cast.approver))
    conclude(candidate)
    new, old = sealed_runs(candidate)
    with pytest.raises(Refused, match="ran sealed tasks"):
        propose(version_eval=new, baseline_eval=old, actor=Actor(cast.trainer))


def test_nobody_sees_single_attempts(
    candidate: Candidate, cast: Cast, sign_in: SignIn, key: Callable[..., dict[str, str]], client: Client
) -> None:
    open_sealed(candidate=candidate, actor=Actor(cast.approver))
    conclude(candidate)
    new, old = sealed_runs(candidate)
    EvalRun.objects.filter(pk=new.pk).update(done=24)
    with pytest.raises(Sealed):
        note_look(new, Actor(cast.admin))
    page = sign_in(cast.admin)
    shown = page.get(reverse("evals:run", args=["acme", new.pk])).content.decode()
    assert "results of single tasks are not kept" in shown
    task = new.task_set.members.filter(split=Split.SEALED)[0].task
    assert str(task) not in shown
    for name, args in (
        ("evals:matrix", [new.pk]),
        ("evals:rescores", [new.pk]),
        ("evals:changed", [new.pk, old.pk, task.number]),
    ):
        assert page.get(reverse(name, args=["acme", *args])).status_code == 403
    compared = page.get(reverse("evals:compare", args=["acme", new.pk, old.pk])).content.decode()
    assert "the comparison is shown with the candidate" in compared
    assert client.get(f"/api/v1/evals/{new.pk}/results", headers=key("read")).json() == {
        "detail": f"{new} ran sealed tasks: only the overall result is shown, with its candidate"
    }
    assert client.get(f"/api/v1/evals/{new.pk}/against/{old.pk}", headers=key("read")).status_code == 409
    solved = page.get(reverse("environments:task", args=["acme", task.environment.name, task.number])).content.decode()
    assert "0 of" not in solved
    assert f"eval {new.pk}" not in solved


def test_an_approver_asks_from_the_page_and_both_gains_stand_side_by_side(
    candidate: Candidate, cast: Cast, sign_in: SignIn
) -> None:
    address = reverse("promotions:candidate", args=["acme", candidate.pk])
    ask = reverse("promotions:open_sealed", args=["acme", candidate.pk])
    assert ask not in sign_in(cast.trainer).get(address).content.decode()
    approver = sign_in(cast.approver)
    assert ask in approver.get(address).content.decode()
    assert approver.post(ask, follow=True).status_code == 200
    fragment = reverse("promotions:final", args=["acme", candidate.pk])
    assert "hx-trigger" in approver.get(fragment).content.decode()
    assert "Override the gate" in approver.get(address).content.decode()
    conclude(candidate)
    assert 'id="approve"' not in sign_in(cast.trainer).get(fragment).content.decode()
    shown = approver.get(fragment).content.decode()
    for part in ("headline", "approve"):  # what it decides follows it, on a page that is open
        assert f'id="{part}" hx-swap-oob="true"' in shown
    assert "Override the gate" not in shown
    assert "hx-trigger" not in shown
    assert "+66.7" in shown
    assert "+83.3" in shown
    assert "✓ confirmed" in shown
    approve(candidate, cast)
    assert "✓ confirmed" in approver.get(address).content.decode()


def test_a_refusal_is_said_on_the_page(
    build: Build, cast: Cast, agent: Agent, evaluated: Evaluated, task_set: TaskSet, sign_in: SignIn
) -> None:
    weak = proposed(build, agent, evaluated, task_set, better=5)
    ask = reverse("promotions:open_sealed", args=["acme", weak.pk])
    said = sign_in(cast.approver).post(ask, follow=True).content.decode()
    assert "Nothing was changed: the gate says not shown" in said


def test_a_script_does_what_a_click_does(
    candidate: Candidate, cast: Cast, key: Callable[..., dict[str, str]], client: Client
) -> None:
    address = f"/api/v1/candidates/{candidate.pk}"
    assert client.get(address, headers=key("read")).json()["sealed"]["state"] == "unopened"
    assert client.post(f"{address}/sealed", headers=key("train")).status_code == 403
    opened = client.post(f"{address}/sealed", headers=key("approve", by=cast.approver)).json()
    assert opened["sealed"]["state"] == "unfinished"
    conclude(candidate)
    found = client.get(address, headers=key("read")).json()["sealed"]
    assert (found["state"], found["opening"], found["tasks"]) == ("eligible", 1, 12)
    approve(candidate, cast)
    kept = client.get("/api/v1/promotions", headers=key("read")).json()["items"][0]["sealed"]
    assert kept["words"] == found["words"]
    assert client.post(f"{address}/sealed", headers=key("approve", by=cast.approver)).status_code == 422


def test_the_same_attempts_under_another_policy_are_another_opening(
    build: Build, cast: Cast, candidate: Candidate
) -> None:
    """Or an admin could loosen the rules until what was not confirmed is."""
    open_sealed(candidate=candidate, actor=Actor(cast.approver))
    conclude(candidate, failing=8, before=10)
    assert final(candidate).state == "not_shown"
    change_policy(
        project=cast.project, actor=Actor(cast.admin), rules={**candidate.policy.rules, "alpha": 0.2}, reason="more"
    )
    again = propose(
        version_eval=candidate.version_eval, baseline_eval=candidate.baseline_eval, actor=Actor(cast.trainer)
    )
    assert again.pk != candidate.pk
    found = final(again)
    assert (found.state, found.opening, found.alpha) == ("unopened", 2, spending(0.2, 2))
    assert found.gain is None
    open_sealed(candidate=again, actor=Actor(cast.approver))
    assert final(again).opening == 2
    assert EvalRun.objects.filter(split=Split.SEALED).count() == 2


def test_versions_that_were_asked_before_are_not_compared_without_an_opening(
    build: Build, cast: Cast, agent: Agent, evaluated: Evaluated, task_set: TaskSet, candidate: Candidate
) -> None:
    third = proposed(build, agent, evaluated, task_set, "A third.", better=24)
    for row in (candidate, third):
        open_sealed(candidate=row, actor=Actor(cast.approver))
        conclude(row)
    approve(candidate, cast)
    against = propose(version_eval=third.version_eval, baseline_eval=candidate.version_eval, actor=Actor(cast.trainer))
    assert (final(against).state, final(against).opening, final(against).gain) == ("unopened", 3, None)


def test_siblings_of_what_was_opened_elsewhere_are_opened_too(
    build: Build, cast: Cast, task_set: TaskSet, candidate: Candidate
) -> None:
    other = build.task_set(name="siblings")
    first = task_set.members.filter(split=Split.SEALED)[0].task
    sibling = build.task(Split.SEALED, cluster=first.cluster, prompt="A sibling", digest="sibling")
    TaskSetMember.objects.create(task_set=other, task=sibling, split=Split.SEALED)
    open_sealed(candidate=candidate, actor=Actor(cast.approver))
    assert len(ledger.sealed_openings(other)) == 1


def test_a_part_that_the_policy_calls_too_small_is_not_spent(
    build: Build, cast: Cast, candidate: Candidate, evaluated: Evaluated
) -> None:
    rules = {**candidate.policy.rules, "min_clusters": 12, "delta_min": 0.1}
    change_policy(project=cast.project, actor=Actor(cast.admin), rules=rules, reason="stricter")
    strict = propose(
        version_eval=candidate.version_eval, baseline_eval=candidate.baseline_eval, actor=Actor(cast.trainer)
    )
    promised = [int(final(row).words.split("gain of ")[1].split()[0]) for row in (candidate, strict)]
    assert 9 <= promised[1] - promised[0] <= 11
    change_policy(project=cast.project, actor=Actor(cast.admin), rules={**rules, "min_clusters": 20}, reason="stricter")
    Candidate.objects.filter(pk=strict.pk).update(policy=cast.project.policies.latest("version"))
    strict = Candidate.objects.get(pk=strict.pk)
    with pytest.raises(Refused, match=r"is of 12 sources, and policy@\d shows nothing by fewer than 20"):
        open_sealed(candidate=strict, actor=Actor(cast.approver))
