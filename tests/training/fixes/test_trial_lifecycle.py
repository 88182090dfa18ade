"""Fixes that are tried: train tasks first and they alone, then held-out tasks, a candidate, and the ladder's words."""

import uuid
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry
from flywheel.agents.models import Version
from flywheel.core.evidence.fix_ladder import recommend
from flywheel.edge.refusals import Refused, Stale
from flywheel.environments import ledger
from flywheel.environments.models import Environment, Split
from flywheel.evals.models import EvalRun, Result
from flywheel.promotions.candidacy import propose_for
from flywheel.promotions.models import Candidate
from flywheel.training.fixes import example_choice, trial_lifecycle
from flywheel.training.fixes.example_choice import examples_for
from flywheel.training.fixes.trial_results import candidate_of, results_of
from flywheel.training.launch.fix_recommendation import evidence_of, recommendation_for
from flywheel.training.models import FixTrial
from tests.conftest import SYSTEM
from tests.evals.fake import right, wrong
from tests.training.fixes.conftest import BETTER, WORSE, Desk, begun, draft
from workers.jobs import eval_runs

pytestmark = pytest.mark.django_db


def ladder(desk: Desk) -> dict[str, tuple[str, str]]:
    """Why and what blocks it, by fix."""
    return {one.fix: (one.why, one.blocked_by) for one in recommend(evidence_of(desk.parent, desk.task_set, None))}


def test_drafts_are_asked_the_train_tasks_alone(desk: Desk) -> None:
    trial = desk.start(draft("names", BETTER), draft("says not to", WORSE))
    first, second = trial.drafts.order_by("place")
    assert (first.version.system_prompt, first.version.parent, first.changes) == (BETTER, desk.parent, ["prompt"])
    assert first.version.tools == desk.parent.tools
    assert {run.split for run in EvalRun.objects.all()} == {Split.TRAIN}
    desk.carry_out()
    assert {result.task.split for result in Result.objects.select_related("task")} == {Split.TRAIN}
    assert ledger.openings(desk.task_set).times == 0
    found = results_of(FixTrial.objects.get())
    assert found.is_over
    gains = [each.difference.mean for each in found.drafts if each.difference]
    assert gains == [pytest.approx(0.5), pytest.approx(-0.5)]
    assert found.best is not None
    assert found.best.draft == first
    assert found.drafts[0].difference is not None
    assert found.drafts[0].difference.level == pytest.approx(0.975), "two intervals that hold together at 95%"
    assert AuditEntry.objects.get(action="training.try_fix").data["drafts"] == 2
    assert second.name == "says not to"


def test_the_best_goes_on_to_held_out_tasks_and_is_a_candidate(desk: Desk) -> None:
    trial = desk.start(draft("names", BETTER), draft("says not to", WORSE))
    with pytest.raises(Stale, match="not over"):
        trial_lifecycle.measure(trial, Actor(desk.cast.trainer))
    desk.carry_out()
    trial = trial_lifecycle.measure(trial, Actor(desk.cast.trainer))
    assert trial_lifecycle.measure(trial, Actor(desk.cast.trainer)).evaluation == trial.evaluation, "once"
    assert EvalRun.objects.filter(split=Split.HELD_OUT).count() == 2
    assert not Candidate.objects.exists()
    desk.carry_out()
    candidate = Candidate.objects.get()
    assert (candidate.version.system_prompt, candidate.baseline) == (BETTER, desk.parent)
    assert candidate.proposed_by == desk.cast.trainer
    assert candidate.verdict == "eligible", candidate.report["decision"]["words"]
    assert ledger.openings(desk.task_set).times == 2


def test_two_held_out_evals_that_end_at_once_make_one_candidate(desk: Desk) -> None:
    """Each has proposed before the other's end is written."""
    trial = desk.start(draft("names", BETTER))
    desk.carry_out()
    trial = trial_lifecycle.measure(trial, Actor(desk.cast.trainer))
    proposed: list[EvalRun] = []
    desk.monkeypatch.setattr(eval_runs, "propose_for", proposed.append)
    desk.carry_out()
    EvalRun.objects.filter(split=Split.HELD_OUT).update(state="running", finished_at=None)
    assert {run.pk for run in proposed} == {trial.evaluation_id, trial.baseline_id}
    made = [propose_for(run) for run in proposed]
    assert made == [Candidate.objects.get()] * 2


def test_a_held_out_eval_that_lacks_results_makes_no_candidate(desk: Desk) -> None:
    trial = desk.start(draft("names", BETTER))
    desk.carry_out()
    trial = trial_lifecycle.measure(trial, Actor(desk.cast.trainer))
    assert trial.evaluation
    assert trial.baseline
    desk.monkeypatch.setattr(eval_runs, "propose_for", lambda _: None)
    desk.carry_out()
    baseline = EvalRun.objects.filter(pk=trial.baseline.pk)
    for fields in ({"state": "running", "summary": {}}, {"state": "failed"}, {"state": "cancelled"}):
        baseline.update(**fields)
        assert propose_for(EvalRun.objects.get(pk=trial.evaluation.pk)) is None


def test_a_baseline_that_is_there_is_not_asked_again(desk: Desk) -> None:
    first = desk.start(draft("names", BETTER))
    desk.carry_out()
    trial_lifecycle.measure(first, Actor(desk.cast.trainer))
    desk.carry_out()
    second = desk.start(draft("names it twice", f"{BETTER} {BETTER}"))
    desk.carry_out()
    second = trial_lifecycle.measure(second, Actor(desk.cast.trainer))
    first.refresh_from_db()
    assert second.parent_eval == first.parent_eval
    assert second.baseline == first.baseline
    desk.carry_out()
    assert Candidate.objects.count() == 2


def test_the_same_drafts_again_cost_nothing_and_find_their_candidate(desk: Desk) -> None:
    first = desk.start(draft("names", BETTER))
    desk.carry_out()
    trial_lifecycle.measure(first, Actor(desk.cast.trainer))
    desk.carry_out()
    asked, seen = EvalRun.objects.count(), ledger.openings(desk.task_set).times
    again = desk.start(draft("names, again", BETTER))
    again = trial_lifecycle.measure(again, Actor(desk.cast.trainer))
    assert (EvalRun.objects.count(), ledger.openings(desk.task_set).times) == (asked, seen)
    assert candidate_of(again) == Candidate.objects.get()


def test_where_nothing_gains_nothing_is_measured(desk: Desk) -> None:
    trial = desk.start(draft("says not to", WORSE))
    desk.carry_out()
    with pytest.raises(Refused, match="no draft solves more"):
        trial_lifecycle.measure(trial, Actor(desk.cast.trainer))
    assert not EvalRun.objects.filter(split=Split.HELD_OUT).exists()


def test_the_same_key_is_the_same_trial(desk: Desk) -> None:
    wanted = desk.request(draft("names", BETTER))
    first, is_new = trial_lifecycle.start(wanted, Actor(desk.cast.builder))
    again, is_new_too = trial_lifecycle.start(wanted, Actor(desk.cast.builder))
    assert (is_new, is_new_too, first) == (True, False, again)
    assert Version.objects.count() == 2


def sampled(name: str, **sampling: Any) -> trial_lifecycle.DraftContent:
    return trial_lifecycle.DraftContent(name=name, sampling=sampling)


def test_sampling_is_a_draft_too_and_is_asked_with_it(desk: Desk) -> None:
    trial = desk.start(sampled("greedy", temperature=0, max_tokens=64))
    (made,) = trial.drafts.all()
    assert (made.changes, made.version.sampling) == (["sampling"], {**desk.parent.sampling, "temperature": 0.0})
    desk.carry_out(lambda request: right(request) if request.sampling.temperature == 0 else wrong(request))
    best = results_of(FixTrial.objects.get()).best
    assert best is not None
    assert best.difference is not None
    assert best.difference.mean == pytest.approx(1.0)
    trial_lifecycle.measure(trial, Actor(desk.cast.trainer))
    desk.carry_out(lambda request: right(request) if request.sampling.temperature == 0 else wrong(request))
    assert Candidate.objects.get().verdict == "eligible"


def test_a_description_of_a_tool_is_a_draft_too_and_schemas_stay(desk: Desk) -> None:
    trial = desk.start(draft("tells more", None, **{"email.send": "Send an email to one person."}))
    (made,) = trial.drafts.all()
    assert made.changes == ["tool_change"]
    described = [
        tool | ({"description": "Send an email to one person."} if tool["name"] == "email.send" else {})
        for tool in desk.parent.tools
    ]
    assert made.version.tools == described


@pytest.mark.parametrize(
    ("drafts", "field", "problem"),
    [
        ([], "drafts", "0 drafts"),
        ([draft(f"d{n}", f"{SYSTEM} {n}") for n in range(9)], "drafts", "9 drafts; expected from 1 to 8"),
        ([draft("", BETTER)], "drafts.0.name", "name the draft"),
        ([draft("same", SYSTEM)], "drafts.0.system_prompt", "changes nothing of assistant@1"),
        ([draft("one", BETTER), draft("two", BETTER)], "drafts.1.system_prompt", "is the same as draft 1"),
        ([draft("no", None, fly="Fly.")], "drafts.0.descriptions", "has no tool 'fly'"),
        ([draft("long", "x" * 200_001)], "drafts.0.system_prompt", "has 200001 characters"),
        ([sampled("hot", temperature=9)], "drafts.0.sampling.temperature", "9 is not a number from 0 to 5"),
        ([sampled("none", top_p=0)], "drafts.0.sampling.top_p", "0 leaves nothing to choose from"),
        ([sampled("other", top_k=5)], "drafts.0.sampling.top_k", "is unknown"),
        ([sampled("usual", top_p=1, max_tokens=64)], "drafts.0.system_prompt", "changes nothing of assistant@1"),
    ],
)
def test_what_cannot_be_tried_is_refused_and_nothing_is_made(
    desk: Desk, drafts: list[trial_lifecycle.DraftContent], field: str, problem: str
) -> None:
    with pytest.raises(Refused, match=problem) as refused:
        desk.start(*drafts)
    assert refused.value.field == field
    assert (Version.objects.count(), EvalRun.objects.count(), FixTrial.objects.count()) == (1, 0, 0)


def test_another_bucket_or_an_empty_train_split_is_refused(desk: Desk) -> None:
    with pytest.raises(Refused, match="there is no category 'nowhere'"):
        desk.start(draft("names", BETTER), bucket="nowhere")
    empty = desk.build.task_set(train=0, held_out=6, name="empty")
    with pytest.raises(Refused, match="has no Train task"):
        desk.start(draft("names", BETTER), task_set=empty)
    assert Version.objects.count() == 1


def test_a_prompt_with_a_held_out_request_is_refused(desk: Desk) -> None:
    held_out = desk.task_set.tasks.filter(split=Split.HELD_OUT).first()
    assert held_out is not None
    pasted = f"{SYSTEM}\nUser:  {held_out.prompt.upper()}. You: …"
    with pytest.raises(Refused, match="whole request of a held-out or sealed task"):
        desk.start(draft("cheats", pasted))
    with pytest.raises(Refused, match="whole request"):
        desk.start(draft("cheats", None, **{"email.send": f"As in: {held_out.prompt}"}))
    sealed = desk.build.task(Split.SEALED, prompt="Please book the big room for Ada at nine")
    with pytest.raises(Refused, match="whole request"):
        desk.start(draft("cheats", f"{SYSTEM} {sealed.prompt}!"))
    assert Version.objects.count() == 1


def test_a_prompt_with_the_opening_of_a_held_out_run_is_refused(episodes: Desk) -> None:
    held_out = episodes.task_set.tasks.filter(split=Split.HELD_OUT).first()
    assert held_out is not None
    opening = held_out.state["messages"][0]["content"]
    with pytest.raises(Refused, match="whole request of a held-out or sealed task"):
        episodes.start(draft("cheats", f"{SYSTEM} When asked: {opening}, do."))
    assert episodes.start(draft("polite", f"{SYSTEM} Yes, please is an answer.")).drafts.count() == 1


@pytest.mark.parametrize("part", ["prompt", "description"])
def test_what_was_held_out_meanwhile_is_not_measured(desk: Desk, part: str) -> None:
    text = "Please book the big room for Ada at nine"
    wanted = draft("one", f"{BETTER} {text}") if part == "prompt" else draft("one", BETTER, **{"email.send": text})
    trial = desk.start(wanted)
    desk.carry_out()
    state = begun(text, "Yes, please")
    environment = desk.build.environment("runs")
    Environment.objects.filter(pk=environment.pk).update(kind="episode")
    desk.build.task(Split.HELD_OUT, environment, prompt="Yes, please", state=state)
    with pytest.raises(Refused, match="whole request") as refused:
        trial_lifecycle.measure(trial, Actor(desk.cast.trainer))
    assert refused.value.field == ("system_prompt" if part == "prompt" else "descriptions")
    assert not EvalRun.objects.filter(split=Split.HELD_OUT).exists()


def test_examples_are_looked_for_once_and_before_anything_waits_for_the_project(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = examples_for(desk.task_set, desk.parent, bucket="wrong_arguments").block
    at: list[int] = []
    whole = example_choice.shown_in
    with CaptureQueriesContext(connection) as queries:

        def noted(*of: Any) -> list[list[str]]:
            at.append(len(queries))
            return whole(*of)

        monkeypatch.setattr(example_choice, "shown_in", noted)
        trial = desk.start(draft("one", f"{SYSTEM}\n\n{block}"), draft("two", f"{BETTER}\n\n{block}"))
    (first,) = at
    assert not any("FOR NO KEY UPDATE" in query["sql"] for query in queries.captured_queries[:first])
    one, two = trial.drafts.order_by("place")
    assert one.examples == two.examples != []


def test_a_draft_knows_which_examples_it_shows(desk: Desk) -> None:
    offer = examples_for(desk.task_set, desk.parent, bucket="wrong_arguments")
    trial = desk.start(draft("examples", f"{SYSTEM}\n\n{offer.block}"))
    assert sorted(trial.drafts.get().examples) == sorted(str(example.task) for example in offer.examples)
    desk.carry_out()
    found = results_of(FixTrial.objects.get())
    assert found.best is not None, "a model that reads its prompt learns from them"


def test_the_ladder_counts_what_was_tried(desk: Desk) -> None:
    desk.task_set = desk.build.task_set(train=16, held_out=24, name="more")  # half of 12 right is chance, by either
    assert "Nothing lighter was tried on this version yet." in ladder(desk)["sft"][0]
    trial = desk.start(draft("names", BETTER), draft("says not to", WORSE))
    assert "2 drafts of the prompt tried on 16 tasks" in ladder(desk)["prompt"][0]
    assert "Wait for its evals." in ladder(desk)["prompt"][0]
    desk.carry_out()
    why, blocked = ladder(desk)["prompt"]
    assert f"(fix trial {trial.pk}): the best, assistant@2, gains +50.0 points [" in why
    assert "Measure it on held-out tasks before anything is trained." in why
    assert not blocked
    assert next(iter(ladder(desk))) == "prompt", "the lightest that the evidence speaks for comes first"
    trial_lifecycle.measure(trial, Actor(desk.cast.trainer))
    assert "Wait for its evals." in ladder(desk)["prompt"][0]
    desk.carry_out()
    why, blocked = ladder(desk)["prompt"]
    assert "On held-out tasks: eligible. Have it approved before anything is trained." in why
    first = recommendation_for(desk.parent, desk.task_set)
    assert recommendation_for(desk.parent, desk.task_set) == first, "nothing changed"
    Candidate.objects.update(verdict="not_shown")
    _, blocked = ladder(desk)["prompt"]
    assert blocked.startswith("Tried already. 2 drafts of the prompt")
    assert "On held-out tasks: not shown." in blocked
    assert "Lighter first: 2 drafts of the prompt tried" in ladder(desk)["sft"][0]


def test_what_showed_nothing_on_train_tasks_is_spent(desk: Desk) -> None:
    desk.start(draft("polite", f"{SYSTEM} Be polite."))
    desk.carry_out()
    _, blocked = ladder(desk)["prompt"]
    assert "gains 0.0 points" in blocked
    assert "not shown" in blocked
    assert "not shown" in ladder(desk)["rlvr"][0]


def test_an_eval_that_failed_is_told_and_waited_for(desk: Desk) -> None:
    trial = desk.start(draft("names", BETTER), key=uuid.uuid4())
    EvalRun.objects.filter(version=desk.parent).update(state="failed", error="the server is away")
    with pytest.raises(Stale):
        trial_lifecycle.measure(trial, Actor(desk.cast.trainer))
    assert results_of(trial).best is None
    assert "Wait for its evals." in ladder(desk)["prompt"][0]
    EvalRun.objects.update(state="cancelled")
    assert "tried on" not in " ".join(ladder(desk)["prompt"]), "what broke off tried nothing"
    assert "Nothing lighter was tried" in ladder(desk)["sft"][0]


def test_another_environments_tools_are_not_described(desk: Desk) -> None:
    environment = desk.task_set.environment_version.environment
    environment.kind = "workplace"
    with pytest.raises(Refused, match="offers tools of its own"):
        desk.start(draft("tells", None, **{"email.send": "Send."}))
