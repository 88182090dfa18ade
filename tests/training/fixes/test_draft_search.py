"""Asking for a search, what it may see, its results, and its best as drafts of a trial."""

import uuid
from typing import Any

import pytest

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry
from flywheel.agents.models import Version
from flywheel.edge.jobs import StaleState, State
from flywheel.edge.refusals import Refused, Stale
from flywheel.environments.models import Split, Task, TaskSetMember
from flywheel.evals.models import Result
from flywheel.training.datasets.measured_tasks import Measured
from flywheel.training.fixes import draft_search, trial_results
from flywheel.training.fixes.draft_search import SearchRequest, problem_of, results_of, submit, try_proposals
from flywheel.training.models import FixTrial, PromptAttempt, PromptProposal, PromptSearch, ProposalState
from tests.conftest import SYSTEM
from tests.training.fixes.conftest import BETTER, BUCKET, WORSE, Desk, draft

pytestmark = pytest.mark.django_db
WRITER = {"base_url": "http://127.0.0.1:9/v1", "model": "writer"}


def request(desk: Desk, **fields: Any) -> SearchRequest:
    defaults: dict[str, Any] = {
        "key": uuid.uuid4(),
        "bucket": BUCKET,
        "parent": desk.parent,
        "task_set": desk.task_set,
        "endpoint": WRITER,
        "proposals": 3,
        "samples": 2,
    }
    return SearchRequest(**{**defaults, **fields})


def search_of(desk: Desk, **fields: Any) -> PromptSearch:
    search, is_new = submit(request(desk, **fields), Actor(desk.cast.builder))
    assert is_new
    return search


def proposal(
    search: PromptSearch, place: int, text: str, scores: list[float | None], state: str = ProposalState.KEPT
) -> PromptProposal:
    """A proposal as a worker leaves it; place 0 is there already."""
    row, _ = PromptProposal.objects.update_or_create(
        search=search, place=place, defaults={"text": text, "state": state}
    )
    PromptAttempt.objects.bulk_create(
        PromptAttempt(proposal=row, task_id=task, score=score)
        for task, score in zip(search.tasks, scores, strict=False)
    )
    return row


def finished(desk: Desk, **fields: Any) -> PromptSearch:
    search = search_of(desk, **fields)
    proposal(search, 0, SYSTEM, [0.0, 1.0, None])
    proposal(search, 1, BETTER, [1.0, 1.0, None])
    proposal(search, 2, WORSE, [0.0, 0.0, 0.0], ProposalState.DROPPED)
    proposal(search, 3, "", [], ProposalState.REFUSED)
    search.state = State.SUCCEEDED
    search.save()
    return search


def test_what_decides_its_course_is_frozen_when_it_is_asked_for(desk: Desk) -> None:
    wanted = request(desk)
    search, is_new = submit(wanted, Actor(desk.cast.builder))
    assert is_new
    assert submit(wanted, Actor(desk.cast.builder)) == (search, False)
    train = set(desk.task_set.members.filter(split=Split.TRAIN).values_list("task", flat=True))
    assert set(search.tasks) == train
    assert search.endpoint == {"kind": "openai", **WRITER}
    assert (search.total, search.most_attempts) == (3, 12 * 4 + 2 * 12 * 2)
    assert [row.text for row in search.proposals.all()] == [SYSTEM]
    assert AuditEntry.objects.get(action="training.search_prompts").data["model"] == "writer"


def test_the_same_key_is_the_same_search_whatever_is_measured_by_then(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = request(desk)
    search, _ = submit(wanted, Actor(desk.cast.builder))
    monkeypatch.setattr(Measured, "has", lambda *_: True)
    assert submit(wanted, Actor(desk.cast.builder)) == (search, False)
    with pytest.raises(Refused):
        submit(request(desk), Actor(desk.cast.builder))


def test_the_tasks_are_the_bucket_s_first_and_follow_from_the_seed(desk: Desk) -> None:
    first, second, *_ = desk.task_set.tasks.filter(split=Split.TRAIN)
    Task.objects.exclude(pk__in=[first.pk, second.pk]).update(bucket="")
    assert set(search_of(desk, tasks=2).tasks) == {first.pk, second.pk}
    orders = [search_of(desk, seed=seed).tasks for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]


def test_no_task_that_shares_anything_with_what_is_measured_is_among_them(desk: Desk) -> None:
    own = desk.task_set.tasks.filter(split=Split.TRAIN).first()
    other = desk.build.task_set(train=0, held_out=1, name="other")
    held_out = TaskSetMember.objects.get(task_set=other).task
    assert own is not None
    Task.objects.filter(pk=held_out.pk).update(prompt=own.prompt, cluster=own.cluster)
    search = search_of(desk)
    assert own.pk not in search.tasks
    assert len(search.tasks) == 11


@pytest.mark.parametrize(
    ("fields", "field", "said"),
    [
        ({"bucket": "nothing"}, "bucket", "there is no category 'nothing'"),
        ({"proposals": 0}, "proposals", "0 is not between 1 and 100"),
        ({"tasks": 201}, "tasks", "201 is not between 1 and 200"),
        ({"samples": 65}, "samples", "65 is not between 1 and 64"),
        ({"seed": -1}, "seed", "-1 is not between 0"),
        ({"attempts": 62}, "attempts", "62 is not between 63 and 100000"),
        ({"attempts": 100_001}, "attempts", "is not between 63"),
        ({"endpoint": {"base_url": "nowhere", "model": "m"}}, "endpoint.base_url", "nowhere"),
        ({"endpoint": WRITER | {"api_key_env": "DATABASE_URL"}}, "endpoint.api_key_env", "must end in _API_KEY"),
    ],
)
def test_what_cannot_be_is_refused_at_its_field(desk: Desk, fields: dict[str, Any], field: str, said: str) -> None:
    with pytest.raises(Refused, match=said) as caught:
        submit(request(desk, **fields), Actor(desk.cast.builder))
    assert caught.value.field == field
    assert not PromptSearch.objects.exists()


def test_programs_other_projects_and_sets_without_training_tasks_are_refused(desk: Desk) -> None:
    program = desk.build.version(endpoint={"kind": "program", "way": "http", "url": "http://127.0.0.1:9/run"})
    for fields, field in (
        ({"parent": program}, "version"),
        ({"task_set": desk.build.task_set(train=0, held_out=2, name="measuring")}, "task_set"),
    ):
        with pytest.raises(Refused) as caught:
            submit(request(desk, **fields), Actor(desk.cast.builder))
        assert caught.value.field == field


def test_means_leave_out_what_is_unscored_and_the_best_is_above_the_own_prompt(desk: Desk) -> None:
    found = results_of(finished(desk))
    assert [(each.mean, each.n, each.unscored) for each in found.proposals] == [
        (0.5, 2, 1),
        (1.0, 2, 1),
        (0.0, 3, 0),
        (None, 0, 0),
    ]
    assert found.best is not None
    assert found.best.proposal.place == 1
    assert (found.attempts, found.usd) == (9, None), "nobody says what an attempt costs, so the sum is unknown"
    PromptAttempt.objects.filter(proposal__place=1).update(score=0.5)
    assert results_of(found.search).best is None
    PromptAttempt.objects.update(cost_usd=0.01)
    PromptProposal.objects.filter(place__gt=0).update(cost_usd=0.5)
    assert results_of(found.search).usd == pytest.approx(1.59)


def test_what_an_attempt_costs_is_known_of_the_version_s_evals_or_not_at_all(desk: Desk) -> None:
    assert draft_search.known_cost(desk.parent) is None
    desk.start(draft("better", BETTER))
    desk.carry_out()
    assert draft_search.known_cost(desk.parent) is None
    Result.objects.update(cost_usd=0.25)
    assert draft_search.known_cost(desk.parent) == 0.25


def test_a_proposal_that_is_no_use_says_why(desk: Desk) -> None:
    search = finished(desk)
    rows, measured = list(search.proposals.order_by("place")), Measured(desk.cast.project)
    held_out = desk.task_set.tasks.filter(split=Split.HELD_OUT).first()
    assert held_out is not None
    Task.objects.filter(pk=held_out.pk).update(prompt="Meet the whole team of Person99 on friday")
    measured = Measured(desk.cast.project)
    for text, said in (
        (" \n", "it is empty"),
        ("x" * 200_001, "it has 200001 characters"),
        (SYSTEM, f"it is the prompt of {desk.parent}"),
        (BETTER, "it is the same as proposal 1"),
        ("Say yes to: meet the whole team of Person99 on friday!", "it holds the whole request of a held-out"),
        ("Name the person and the day.", ""),
    ):
        assert problem_of(search, text, rows, measured).startswith(said)
        assert bool(problem_of(search, text, rows, measured)) == bool(said)


def test_its_best_is_tried_as_a_draft_once_within_the_budget(desk: Desk) -> None:
    search, actor = finished(desk), Actor(desk.cast.builder)
    trial = try_proposals(search, [1], actor)
    assert try_proposals(search, [1, 2], actor) == trial == FixTrial.objects.get()
    (draft,) = trial.drafts.all()
    assert (draft.name, draft.version.system_prompt, trial.parent_eval.samples) == ("Proposal 1", BETTER, 2)
    assert Version.objects.filter(note="Draft: Proposal 1").count() == 1
    search.refresh_from_db()
    with pytest.raises(StaleState, match="its best is tried already"):
        search.check_resume()


def test_what_the_budget_is_too_small_for_and_what_is_no_proposal_is_not_tried(desk: Desk) -> None:
    search, actor = finished(desk, attempts=63), Actor(desk.cast.builder)
    for places, said in (
        ([], "0 proposals; from 1 to 1 fit into the budget of 63 attempts, 9 of them made"),
        ([1, 2], "2 proposals; from 1 to 1 fit"),
        ([0], "0 is no proposal"),
        ([3], "3 is no proposal"),
    ):
        with pytest.raises(Refused, match=said) as caught:
            try_proposals(search, places, actor)
        assert caught.value.field == "proposals"
    PromptSearch.objects.update(state=State.RUNNING)
    with pytest.raises(Stale, match="is not over"):
        try_proposals(search, [1], actor)
    assert not FixTrial.objects.exists()


def test_one_whose_judge_passed_a_canary_is_not_resumed(desk: Desk) -> None:
    search = finished(desk)
    search.judges = {"tone": {"void": "it gave a canary a mark"}}
    with pytest.raises(StaleState, match="is void"):
        search.check_resume()


def test_the_ladder_s_interval_is_wide_enough_for_what_the_search_compared(desk: Desk) -> None:
    search = finished(desk)
    proposal(search, 4, f"{SYSTEM} Be polite.", [1.0, 0.0, 0.0])
    try_proposals(search, [1], Actor(desk.cast.builder))
    desk.carry_out()
    found = trial_results.tried_fixes(desk.parent, desk.task_set)["prompt"]
    assert (found.drafts, found.compared) == (1, 2), "the one that is tried counts once"
