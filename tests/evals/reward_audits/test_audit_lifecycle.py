"""Reward audits: what is drawn, judged blind, taken back, decided for ever, and what it then holds for."""

import re
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.db import Error, transaction
from django.test import Client
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.agents.models import Version
from flywheel.core import verifiers
from flywheel.core.evidence.reward_audit_rule import REVISION
from flywheel.core.traces import tooling
from flywheel.edge.jobs import State
from flywheel.edge.refusals import Refused
from flywheel.environments.models import EnvironmentVersion, Split, TaskSet
from flywheel.evals.models import EvalRun, Result, RewardAudit, RewardAuditItem
from flywheel.evals.reward_audits import audit_lifecycle as verbs
from flywheel.evals.reward_audits.learnable_tasks import solve_rates, unlearnable
from flywheel.evals.reward_audits.reward_standing import Judged, standing
from flywheel.trajectories.models import Source, Step, Trajectory
from tests.conftest import Build, Cast
from tests.pages import page_of

TASKS = 44


@pytest.fixture
def run(cast: Cast, build: Build) -> EvalRun:
    return evaluated(build, build.version(), build.task_set(train=TASKS, held_out=1))


def evaluated(
    build: Build, version: Version, task_set: TaskSet, split: str = Split.TRAIN, samples: int = 3, to: str = "Bako"
) -> EvalRun:
    """A finished eval. Of each task the first sample passes, the second fails; the third says what the second said."""
    run = EvalRun.objects.create(
        project=build.cast.project,
        created_by=build.cast.builder,
        version=version,
        task_set=task_set,
        split=split,
        samples=samples,
        state=State.SUCCEEDED,
        verifier_digest=verifiers.digest(task_set.environment_version.verifier),
        total=samples * TASKS,
    )
    cells = [
        (task, sample, tooling.call_text("email.send", {"to": to, "subject": "friday" if sample else "right"}))
        for task in task_set.tasks.filter(split=split)
        for sample in range(samples)
    ]
    rollouts = Trajectory.objects.bulk_create(
        Trajectory(
            project=build.cast.project,
            trace_id=uuid.uuid4().hex,
            source=Source.ROLLOUT,
            outcome="failed" if sample else "success",
            started_at=timezone.now(),
            step_count=2,
        )
        for _, sample, _ in cells
    )
    Step.objects.bulk_create(
        Step(
            trajectory=row, span_id=kind, position=at, kind=kind, body={"output": [{"role": kind, "content": content}]}
        )
        for row, (task, _, said) in zip(rollouts, cells, strict=True)
        for at, (kind, content) in enumerate([("user", task.prompt), ("assistant", said)])
    )
    Result.objects.bulk_create(
        Result(
            run=run,
            task=task,
            sample=sample,
            seed=sample,
            score=float(sample == 0),
            success=sample == 0,
            reason="wrong tool" if sample else "as wanted",
            trajectory=row,
        )
        for row, (task, sample, _) in zip(rollouts, cells, strict=True)
    )
    return run


def judge_all(audit: RewardAudit, actor: User, wrong: int = 0) -> None:
    """As the verifier did, but for the first `wrong` of what it passed."""
    for item in audit.items.select_related("result"):
        agree = not (item.result.success and wrong > 0)
        wrong -= not agree
        said = bool(item.result.success) is agree
        assert verbs.judge(item=item, actor=Actor(actor), answer="pass" if said else "fail")


def finished(run: EvalRun, cast: Cast, wrong: int = 0) -> RewardAudit:
    audit, _ = verbs.begin(run=run, actor=Actor(cast.builder), size=60)
    judge_all(audit, cast.reviewer, wrong)
    return verbs.finish(audit=audit, actor=Actor(cast.reviewer))


def test_two_of_three_that_are_drawn_passed_and_nothing_is_drawn_twice(run: EvalRun, cast: Cast) -> None:
    audit, made = verbs.begin(run=run, actor=Actor(cast.builder), size=60)
    drawn = list(audit.items.select_related("result").order_by("place"))
    assert (made, len(drawn), sum(bool(item.result.success) for item in drawn)) == (True, 60, 40)
    assert len({(item.result.task_id, item.result.success) for item in drawn}) == 60, "one said twice is shown once"
    assert verbs.begin(run=run, actor=Actor(cast.builder), size=60) == (audit, False)
    assert [item.result.success for item in drawn] != sorted((bool(i.result.success) for i in drawn), reverse=True)


def test_only_finished_evals_of_train_tasks_under_todays_verifier_are_audited(
    run: EvalRun, cast: Cast, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_out = evaluated(build, run.version, run.task_set, Split.HELD_OUT)
    for other, problem in ((held_out, "only train tasks"), (run, "not from 50 to 100")):
        with pytest.raises(Refused, match=problem):
            verbs.begin(run=other, actor=Actor(cast.builder), size=49)
    passed = list(run.results.filter(success=True).values_list("pk", flat=True))
    Result.objects.filter(pk__in=passed[:39]).update(success=None, score=None, cause="timeout")
    with pytest.raises(Refused, match="49 different outputs with a score that no audit has shown yet"):
        verbs.begin(run=run, actor=Actor(cast.builder))
    monkeypatch.setattr(verifiers, "digest", lambda _: "another")
    with pytest.raises(Refused, match="a verifier that has changed since"):
        verbs.begin(run=run, actor=Actor(cast.builder))


def test_an_eval_that_is_asked_again_meanwhile_is_not_audited(run: EvalRun, cast: Cast) -> None:
    EvalRun.objects.filter(pk=run.pk).update(state=State.QUEUED)
    with pytest.raises(Refused, match="is asked again just now"):
        verbs.begin(run=run, actor=Actor(cast.builder))


def test_an_answer_is_ones_own_until_the_audit_is_finished(run: EvalRun, cast: Cast) -> None:
    audit, _ = verbs.begin(run=run, actor=Actor(cast.builder), size=60)
    first, second = audit.items.order_by("place")[:2]
    assert verbs.judge(item=first, actor=Actor(cast.reviewer), answer="pass")
    assert verbs.judge(item=first, actor=Actor(cast.reviewer), answer="fail", note="it was on the wrong day")
    assert not verbs.judge(item=first, actor=Actor(cast.trainer), answer="pass")
    assert verbs.judge(item=second, actor=Actor(cast.reviewer), answer="cannot_tell")
    assert verbs.undo(audit=audit, actor=Actor(cast.trainer)) is None
    assert verbs.undo(audit=audit, actor=Actor(cast.reviewer)) == second
    first.refresh_from_db()
    second.refresh_from_db()
    assert (first.answer, first.note, second.answer) == ("fail", "it was on the wrong day", "")
    with pytest.raises(Refused, match="59 of 60 outputs are not judged yet"):
        verbs.finish(audit=audit, actor=Actor(cast.reviewer))


def test_a_finished_audit_never_changes(run: EvalRun, cast: Cast) -> None:
    audit = finished(run, cast)
    assert audit.is_green
    assert audit.result["agreement"]["mean"] == 1.0
    assert not verbs.judge(item=audit.items.all()[0], actor=Actor(cast.reviewer), answer="fail")
    assert verbs.undo(audit=audit, actor=Actor(cast.reviewer)) is None
    assert verbs.finish(audit=audit, actor=Actor(cast.trainer)).finished_by == cast.reviewer
    with pytest.raises(Error, match="never change"), transaction.atomic():
        RewardAudit.objects.filter(pk=audit.pk).update(is_green=False)


def test_false_passes_close_it_and_are_shown_first(run: EvalRun, cast: Cast, sign_in: Callable[[User], Client]) -> None:
    audit = finished(run, cast, wrong=3)
    assert not audit.is_green
    assert audit.result["false_passes"]["mean"] == pytest.approx(3 / 40)
    assert audit.result["agreement"]["mean"] == pytest.approx(57 / 60)
    page = sign_in(cast.viewer).get(f"/p/acme/evals/reward-audits/{audit.pk}/").content.decode()
    assert page.count("false pass</span>") == 3
    assert "NOT GREEN" in page


def test_unscored_attempts_are_counted_apart_and_not_those_that_were_not_answered(run: EvalRun, cast: Cast) -> None:
    third = run.results.filter(sample=2).order_by("task_id")
    pks = list(third.values_list("pk", flat=True))
    for cause, some in (("timeout", pks[:18]), ("not_answered", pks[18:29])):
        Result.objects.filter(pk__in=some).update(success=None, score=None, cause=cause)
    audit = finished(run, cast)
    assert (audit.result["unscored"], audit.result["attempts"]) == (18, 3 * TASKS - 11)
    assert any("18 of 121 answered attempts have no score" in fault for fault in audit.result["faults"])


def test_an_audit_holds_for_exactly_what_was_judged(
    run: EvalRun, cast: Cast, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Judged.of(run)
    assert standing(here).state == "none"
    audit, _ = verbs.begin(run=run, actor=Actor(cast.builder), size=60)
    assert (standing(here).state, standing(here).words) == ("begun", "60 of 60 outputs wait to be judged")
    judge_all(audit, cast.reviewer)
    verbs.finish(audit=audit, actor=Actor(cast.reviewer))
    assert (standing(here).state, standing(here).audit, standing(here).allows) == ("green", audit, True)

    other = standing(Judged(build.version(system_prompt="other"), here.environment_version, here.verifier_digest))
    assert (other.state, other.allows) == ("stale", False)
    assert f"the outputs were {run.version}'s" in other.words
    old = here.environment_version
    changed = EnvironmentVersion.objects.create(
        environment=old.environment,
        number=2,
        config=old.config,
        verifier={"kind": "tool_call", "weights": {"tool": 1.0}},
        digest="2" * 64,
        verifier_digest="3" * 64,
        created_by=cast.builder,
    )
    assert standing(Judged(run.version, changed, "3" * 64)).state == "stale"
    assert standing(Judged(run.version, old, "4" * 64)).words.endswith("the verifier has changed")


def test_what_an_audit_has_shown_is_not_judged_blind_again(run: EvalRun, cast: Cast, build: Build) -> None:
    red = finished(run, cast, wrong=5)
    with pytest.raises(Refused, match="different outputs with a score that no audit has shown yet"):
        verbs.begin(run=run, actor=Actor(cast.builder), size=60)
    again = evaluated(build, run.version, run.task_set)
    with pytest.raises(Refused, match="28 different outputs with a score that no audit has shown yet"):
        verbs.begin(run=again, actor=Actor(cast.builder), size=60)
    other, _ = verbs.begin(
        run=evaluated(build, run.version, run.task_set, to="Gita"), actor=Actor(cast.builder), size=60, seed=2
    )
    orders = [[bool(i.result.success) for i in audit.items.order_by("place")] for audit in (red, other)]
    assert orders[0] != orders[1], "who has seen one would know the other"


def test_the_newest_word_counts(run: EvalRun, cast: Cast, build: Build) -> None:
    here = Judged.of(run)
    with pytest.raises(Refused, match="give a reason"):
        verbs.override(judged=here, actor=Actor(cast.approver), reason=" ")
    leave = verbs.override(judged=here, actor=Actor(cast.approver), reason="the deadline")
    assert (standing(here).state, standing(here).override) == ("overridden", leave)
    red = finished(run, cast, wrong=1)
    assert (standing(here).state, standing(here).allows) == ("red", False), "the evidence came after the leave"
    again = verbs.override(judged=here, actor=Actor(cast.approver), reason="we know")
    assert (standing(here).state, standing(here).audit, standing(here).override) == ("overridden", red, again)
    green = finished(evaluated(build, run.version, run.task_set, to="Gita"), cast)
    assert (standing(here).state, standing(here).audit) == ("green", green)
    with pytest.raises(Error, match="never change"), transaction.atomic():
        type(leave).objects.update(reason="none")


def test_audits_of_one_reward_count_together(
    run: EvalRun, cast: Cast, build: Build, sign_in: Callable[[User], Client]
) -> None:
    """Drawing again until one is green would show nothing: what people failed before is not forgotten."""
    red = finished(run, cast, wrong=5)
    clean = finished(evaluated(build, run.version, run.task_set, to="Gita"), cast)
    assert not clean.is_green
    assert (clean.result["audits"], clean.result["judged"], clean.result["attempts"]) == (2, 120, 6 * TASKS)
    assert clean.result["false_passes"]["mean"] == pytest.approx(5 / 80)
    assert "people failed 5 of 80 outputs" in standing(Judged.of(run)).words
    page = sign_in(cast.viewer).get(f"/p/acme/evals/reward-audits/{clean.pk}/").content.decode()
    assert (page.count("false pass</span>"), page.count(f"of reward audit {red.pk}")) == (5, 5)
    assert re.search(r"6\.2%</b>\s+<span class=.interval.>up to 21\.4% \(n 80\)", page)
    third = finished(evaluated(build, run.version, run.task_set, to="Dora"), cast)
    assert (third.is_green, third.result["judged"]) == (False, 180)
    fourth = finished(evaluated(build, run.version, run.task_set, to="Eli"), cast)
    assert (fourth.is_green, standing(Judged.of(run)).audit) == (True, fourth), "5 of 160 is little enough"
    assert not RewardAudit.objects.get(pk=red.pk).is_green, "each says what was known when it was finished"


def test_what_a_verifier_passes_wrongly_is_told_where_it_judged(
    run: EvalRun, cast: Cast, build: Build, sign_in: Callable[[User], Client]
) -> None:
    other = evaluated(build, build.version(system_prompt="other"), run.task_set, Split.HELD_OUT)
    page, here = sign_in(cast.viewer), f"/p/acme/evals/{other.pk}/"
    assert ">not known</span>" in page_of(page.get(here))
    audit = finished(run, cast)
    text = " ".join(page_of(page.get(here)).split())
    assert re.search(rf"at most 8%, by <a [^>]*>{audit}</a>", text)
    assert f"of {run.version}’s outputs" in text
    assert f"of {run.version}’s outputs" not in page_of(page.get(f"/p/acme/evals/{run.pk}/"))


def test_green_by_an_older_rule_is_stale_and_its_judgements_count(run: EvalRun, cast: Cast, build: Build) -> None:
    old, _ = verbs.begin(run=run, actor=Actor(cast.builder), size=60)
    judge_all(old, cast.reviewer)
    finding = {"agreement": {"n": 60, "mean": 1.0, "low": 0.94, "high": 1.0}, "faults": []}
    RewardAudit.objects.filter(pk=old.pk).update(is_green=True, finished_at=timezone.now(), result=finding)
    found = standing(Judged.of(run))
    assert (found.state, found.allows) == ("stale", False)
    assert found.words == f"{old} is green by an older rule. Audit again: what was judged counts"
    new = finished(evaluated(build, run.version, run.task_set, to="Gita"), cast, wrong=1)
    assert (new.is_green, new.result["judged"], new.result["rule"]) == (True, 120, REVISION), "1 of 80"


def test_tasks_that_teach_nothing_are_named(run: EvalRun, cast: Cast) -> None:
    numbers = [task.number for task in solve_rates(run)]
    always, never, unscored = (run.results.filter(task__number=number) for number in numbers[:3])
    always.update(success=True)
    never.update(success=False)
    unscored.update(success=None)
    assert [(task.number, task.rate.mean) for task in unlearnable(run)] == [(numbers[1], 0.0), (numbers[0], 1.0)]
    assert solve_rates(run)[-1].rate.unscored == 3, "what has no score is neither, and comes last"


# Pages and API


def test_nothing_on_the_desk_tells_the_verdict(run: EvalRun, cast: Cast, sign_in: Callable[[User], Client]) -> None:
    client = sign_in(cast.builder)
    answer = client.post("/p/acme/evals/reward-audits/begin/", {"run": run.pk, "size": 60, "seed": 1})
    audit = RewardAudit.objects.get()
    here = f"/p/acme/evals/reward-audits/{audit.pk}/"
    assert answer.headers["Location"] == here
    page = client.get(here).content.decode()
    assert "Output 1 of 60" in page
    for word in ("wrong tool", "as wanted", "✓ success", "✕ failed", "score"):
        assert word not in page, word
    listed = client.get("/p/acme/evals/reward-audits/").content.decode()
    assert "0 of 60 judged" in listed

    desk = client.post(f"{here}items/1/", {"answer": "pass"}, headers={"hx-request": "true"}).content.decode()
    assert "Output 2 of 60" in desk
    desk = client.post(f"{here}items/1/", {"answer": "maybe"}, headers={"hx-request": "true"}).content.decode()
    assert "Not saved" in desk
    other = sign_in(cast.reviewer)
    desk = other.post(f"{here}items/1/", {"answer": "fail"}, headers={"hx-request": "true"}).content.decode()
    assert "judged by someone else in the meantime" in desk
    assert "no judgement to undo here" in other.post(f"{here}undo/", headers={"hx-request": "true"}).content.decode()
    assert "Output 1 of 60" in client.post(f"{here}undo/", headers={"hx-request": "true"}).content.decode()
    assert RewardAuditItem.objects.filter(answer="").count() == 60


def test_where_a_reward_stands_and_who_may_override(
    run: EvalRun, cast: Cast, sign_in: Callable[[User], Client]
) -> None:
    address = f"/p/acme/evals/reward/?version={run.version}&task_set={run.task_set}"
    assert "Start the audit" in sign_in(cast.builder).get(address).content.decode()
    given = {"version": str(run.version), "task_set": str(run.task_set), "reason": "we must"}
    assert sign_in(cast.trainer).post("/p/acme/evals/reward/override/", given).status_code == 403
    sign_in(cast.approver).post("/p/acme/evals/reward/override/", given)
    page = sign_in(cast.viewer).get(address).content.decode()
    assert "MAY LAUNCH" in page
    assert "Approver overrides it: we must" in page
    entry = cast.project.audit.get(action="evals.override_reward_audit")
    assert (entry.actor, entry.reason) == (cast.approver, "we must")
    assert sign_in(cast.viewer).get("/p/acme/evals/reward/?version=x@1&task_set=y@1").status_code == 404
    assert sign_in(cast.viewer).get("/p/acme/evals/reward/").headers["Location"] == "/p/acme/evals/reward-audits/"


def test_a_program_audits_as_blind_as_a_person(
    run: EvalRun, cast: Cast, key: Callable[..., dict[str, str]], client: Client
) -> None:
    def call(method: str, path: str, scope: str, body: Any = None, by: User = cast.admin) -> Any:
        made = client.generic(method, f"/api/v1{path}", body or "{}", "application/json", headers=key(scope, by=by))
        assert made.status_code in (200, 201), made.content
        return made.json()

    audit = call("POST", "/reward-audits", "build", f'{{"eval": {run.pk}, "size": 60}}')
    here = f"/reward-audits/{audit['id']}"
    assert (audit["outputs"], audit["judged"], audit["is_green"], audit["result"]) == (60, 0, None, {})
    items = call("GET", f"{here}/items?limit=100", "read")["items"]
    assert [item["verdict"] for item in items] == [None] * 60
    success = dict(RewardAuditItem.objects.values_list("place", "result__success"))
    for item in items:
        answer = "pass" if success[item["place"]] else "fail"
        call("POST", f"{here}/items/{item['place']}", "review", f'{{"answer": "{answer}"}}')
    assert call("POST", f"{here}/undo", "review")["answer"] == ""
    answer = "pass" if success[60] else "fail"
    call("POST", f"{here}/items/60", "review", f'{{"answer": "{answer}"}}')
    done = call("POST", f"{here}/finish", "review")
    assert (done["is_green"], done["result"]["agreement"]["n"]) == (True, 60)
    assert {item["verdict"] for item in call("GET", f"{here}/items?limit=100", "read")["items"]} == {True, False}
    where = f"/rewards/{run.version}/{run.task_set}"
    assert call("GET", where, "read")["state"] == "green"
    made = call("POST", f"{where}/override", "approve", '{"reason": "why not"}', by=cast.approver)
    assert made["state"] == "green", "a green audit needs no leave"
    rates = call("GET", f"{here}/tasks", "read")
    assert (len(rates), rates[0]["passed"], rates[0]["scored"], rates[0]["teaches"]) == (TASKS, 1, 3, True)
