"""What a policy tried: listed by step and reward, on the run's page, on a page of its own and by API."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from django.test import Client

from flywheel.accounts.models import User
from flywheel.training.models import TrainingAttempt, TrainingRun
from flywheel.training.runs import tried_attempts
from flywheel.training.runs.alert_evidence import alerts_of
from flywheel.training.runs.step_points import step_points
from flywheel.training.runs.tried_attempts import STEPS_SHOWN, overview
from flywheel.trajectories.models import Source, Trajectory
from tests.pages import page_of
from tests.training.conftest import Room

pytestmark = pytest.mark.django_db
SignIn = Callable[[User], Client]
HERE = "/p/acme/training/runs"


@pytest.fixture
def run(room: Room) -> TrainingRun:
    """Three attempts of each of 24 steps: unscored, bad and good."""
    run = room.launch(algorithm="grpo")
    TrainingAttempt.objects.bulk_create(
        TrainingAttempt(
            run=run, step=step, place=place, task="t-1", seed=step, reward=reward, score=reward, reason="<b>why</b>"
        )
        for step in range(1, 25)
        for place, reward in enumerate((None, 0.0, step / 24))
    )
    return run


def with_trajectory(room: Room, run: TrainingRun, step: int) -> str:
    row = room.build.trajectory(source=Source.TRAINING)
    run.tried.filter(step=step, place=2).update(trajectory=row)
    return row.trace_id


def test_a_few_steps_from_the_first_to_the_last_are_shown_best_first(run: TrainingRun) -> None:
    shown = overview(run)
    assert shown["count"] == 72
    assert len(shown["steps"]) == STEPS_SHOWN
    (first, own), (last, _) = shown["steps"][0], shown["steps"][-1]
    assert (first, last) == (1, 24)
    assert [attempt.reward for attempt in own] == [1 / 24, 0.0, None]


def test_a_run_that_tried_nothing_shows_nothing(room: Room) -> None:
    assert overview(room.launch()) == {"count": 0, "steps": []}


def test_the_runs_page_leads_to_each_attempt_with_one_click(room: Room, run: TrainingRun, sign_in: SignIn) -> None:
    trace = with_trajectory(room, run, 24)
    page = page_of(sign_in(room.cast.viewer).get(f"{HERE}/{run.pk}/"))
    assert "What it tried" in page
    assert f"/p/acme/trajectories/{trace}/" in page


def test_the_list_is_narrowed_by_steps_and_ordered_by_reward(room: Room, run: TrainingRun, sign_in: SignIn) -> None:
    trace, viewer = with_trajectory(room, run, 7), sign_in(room.cast.viewer)
    page = page_of(viewer.get(f"{HERE}/{run.pk}/tried/?first=6&last=7"))
    assert page.count("<tr") == 1 + 6
    assert f"/p/acme/trajectories/{trace}/" in page
    assert "<b>why</b>" not in page
    best = page_of(viewer.get(f"{HERE}/{run.pk}/tried/?order=reward&first=x"))
    assert best.index(">1.00<" if ">1.00<" in best else "1.00") < best.index("0.96")
    assert "not scored" not in best
    assert sign_in(room.cast.stranger).get(f"{HERE}/{run.pk}/tried/").status_code == 404


def test_pages_ask_the_same_number_of_questions(
    room: Room, run: TrainingRun, sign_in: SignIn, django_assert_max_num_queries: Any
) -> None:
    for step in range(1, 12):
        with_trajectory(room, run, step)
    viewer = sign_in(room.cast.viewer)
    with django_assert_max_num_queries(12):
        viewer.get(f"{HERE}/{run.pk}/tried/")


def test_the_api_lists_attempts_by_step_and_by_reward_and_cuts_pages(
    room: Room, run: TrainingRun, client: Client, key: Callable[..., dict[str, str]]
) -> None:
    trace, headers = with_trajectory(room, run, 24), key("read")

    def rewards(**query: Any) -> tuple[Sequence[float | None], str | None]:
        answer = client.get(f"/api/v1/training-runs/{run.pk}/attempts", query, headers=headers)
        assert answer.status_code == 200, answer.content
        return [row["reward"] for row in answer.json()["items"]], answer.json()["next"]

    newest, following = rewards(limit=2)
    assert newest == [1.0, 0.0]
    assert rewards(limit=2, cursor=following)[0] == [None, 23 / 24]
    assert rewards(limit=2, order="reward", last=12)[0] == [0.5, 11 / 24]
    first = client.get(f"/api/v1/training-runs/{run.pk}/attempts", headers=headers).json()["items"][0]
    assert (first["trajectory"], first["step"], first["task"], first["seed"]) == (trace, 24, "t-1", 24)
    assert client.get(f"/api/v1/training-runs/{run.pk}/attempts?order=best", headers=headers).status_code == 422


def test_an_alert_leads_to_the_attempts_that_show_it(
    room: Room, run: TrainingRun, sign_in: SignIn, client: Client, key: Callable[..., dict[str, str]]
) -> None:
    room.measured(run, 24, zero_variance_groups=lambda step: 0.1 if step < 13 else 1.0)
    (alert,) = alerts_of(run, step_points(run)[0])
    assert (alert["kind"], alert["first"], alert["last"], alert["attempts"]) == ("no_variance", 13, 24, 24)
    page = page_of(sign_in(room.cast.viewer).get(f"{HERE}/{run.pk}/"))
    assert f"/runs/{run.pk}/tried/?first=13&amp;last=24&amp;order=reward" in page
    assert client.get(f"/api/v1/training-runs/{run.pk}/alerts", headers=key("read")).json() == [alert]


@pytest.fixture
def told_apart(room: Room) -> TrainingRun:
    """An attempt of each kind in one step, each of so many tokens as its place."""
    run = room.launch(algorithm="grpo")
    kinds: dict[str, dict[str, Any]] = {
        "unscored": {"reward": None},
        "unsafe": {"reward": -1.0, "parts": {"unsafe": 1.0, "valid_json": 0.0}},
        "invalid": {"reward": -0.5, "parts": {"unsafe": 0.0, "valid_json": 0.0}},
        "no form": {"reward": -0.4, "parts": {"form": 0.0}},
        "broken_off": {"reward": 0.0, "ended": "broken off: too long"},
        "out_of_turns": {"reward": 0.2, "ended": tried_attempts.OUT_OF_TURNS},
        "good": {"reward": 1.0, "parts": {"unsafe": 0.0, "valid_json": 1.0}},
    }
    for place, (kind, fields) in enumerate(kinds.items()):
        ended = {"ended": fields.pop("ended")} if "ended" in fields else {}
        row = room.build.trajectory(source=Source.TRAINING, metadata=ended, tokens_out=place)
        run.tried.create(step=12, place=place, task=kind, seed=1, trajectory=row, **fields)
    return run


@pytest.mark.parametrize(
    ("only", "wanted"),
    [
        ("unscored", ["unscored"]),
        ("unsafe", ["unsafe"]),
        ("invalid", ["no form", "invalid"]),
        ("broken_off", ["broken_off"]),
        ("out_of_turns", ["out_of_turns"]),
    ],
)
def test_attempts_are_narrowed_to_a_kind(
    told_apart: TrainingRun, client: Client, key: Callable[..., dict[str, str]], only: str, wanted: list[str]
) -> None:
    address = f"/api/v1/training-runs/{told_apart.pk}/attempts?only={only}"
    assert [row["task"] for row in client.get(address, headers=key("read")).json()["items"]] == wanted


def test_the_worst_and_the_longest_come_first_page_by_page(
    told_apart: TrainingRun, client: Client, key: Callable[..., dict[str, str]]
) -> None:
    def pages(order: str) -> Iterator[str]:
        following = ""
        while following is not None:
            query = {"order": order, "limit": "2", **({"cursor": following} if following else {})}
            address = f"/api/v1/training-runs/{told_apart.pk}/attempts"
            answer = client.get(address, query, headers=headers).json()
            yield from (row["task"] for row in answer["items"])
            following = answer["next"]

    headers = key("read")
    assert [*pages("worst")] == ["unsafe", "invalid", "no form", "broken_off", "out_of_turns", "good"]
    assert [*pages("longest")] == [*reversed([*pages("worst")]), "unscored"]


def test_an_alert_leads_to_the_attempts_of_its_kind(room: Room, told_apart: TrainingRun, sign_in: SignIn) -> None:
    room.measured(told_apart, 12, reward__unsafe=lambda step: step / 24)
    (alert,) = alerts_of(told_apart, step_points(told_apart)[0])
    assert (alert["only"], alert["attempts"]) == ("unsafe", 1)
    viewer = sign_in(room.cast.viewer)
    address = f"{HERE}/{told_apart.pk}/tried/?first=11&last=12&order=step&only=unsafe"
    assert address.replace("&", "&amp;") in page_of(viewer.get(f"{HERE}/{told_apart.pk}/"))
    listed = page_of(viewer.get(address))
    assert listed.count("<tr") == 1 + 1
    assert '<option value="unsafe" selected>' in listed


def test_people_who_overrule_the_verifier_are_an_alert(room: Room, run: TrainingRun) -> None:
    """Five labels on attempts that passed; those on others, and none, say nothing of that."""
    run.tried.filter(place=2).update(score=1.0)
    for step in range(1, 7):
        with_trajectory(room, run, step)
    passed = Trajectory.objects.filter(training_attempt__run=run, training_attempt__step__lte=5)
    passed.update(label="pass")
    assert alerts_of(run, []) == []
    Trajectory.objects.filter(training_attempt__run=run, training_attempt__step__in=[2, 4]).update(label="failure")
    failed = room.build.trajectory(source=Source.TRAINING, label="failure")
    run.tried.filter(step=9, place=1).update(trajectory=failed)
    (alert,) = alerts_of(run, [])
    assert (alert["kind"], alert["first"], alert["last"], alert["attempts"]) == ("overruled", 2, 4, 2)
    assert "2 of 5 labelled attempts" in alert["saw"]


def test_an_alert_without_kept_attempts_leads_nowhere(room: Room, sign_in: SignIn) -> None:
    run = room.launch(algorithm="grpo")
    room.measured(run, 24, zero_variance_groups=lambda _: 1.0)
    page = page_of(sign_in(room.cast.viewer).get(f"{HERE}/{run.pk}/"))
    assert "scored alike" in page
    assert "/tried/" not in page
