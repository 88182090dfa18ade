from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest
from django.test import Client
from django.utils import timezone

from flywheel.agents.models import Agent
from flywheel.promotions.models import Candidate, Ramp
from flywheel.promotions.ramps import ramp_judging
from tests.conftest import Cast
from tests.promotions.ramps.conftest import Met, met, ramp

__all__ = ["met", "ramp"]
Keys = Callable[..., dict[str, str]]


@pytest.fixture
def ask(client: Client, cast: Cast, key: Keys) -> Callable[..., Any]:
    headers = key("read", "approve", by=cast.approver)

    def call(path: str, body: Any = None, status: int = 200) -> Any:
        if body is None:
            answer = client.get(f"/api/v1{path}", headers=headers)
        else:
            answer = client.post(f"/api/v1{path}", body, content_type="application/json", headers=headers)
        assert answer.status_code == status, answer.content
        return answer.json()

    return call


def test_a_program_approves_by_steps_and_moves_the_ramp(
    candidate: Candidate, ask: Callable[..., Any], cast: Cast
) -> None:
    proposed = ask(f"/candidates/{candidate.pk}/ramp-plan")
    assert [stage["share"] for stage in proposed["plan"]["stages"]] == [500, 2500, 5000]
    assert (proposed["judged"], proposed["failure_rate"], len(proposed["reach"])) == (0, None, 3)
    body = {"reason": "better", "generation": candidate.agent.generation, "plan": proposed["plan"]}
    made = ask(f"/candidates/{candidate.pk}/ramp", body)
    assert (made["state"], made["stage"], made["share"]) == ("waiting", 1, 0)
    assert made["plan"] == proposed["plan"]
    assert made["numbers"]["difference"] is None
    ramp_judging.look()
    path = f"/ramps/{made['id']}"
    now = ask(path)
    assert (now["state"], now["share"]) == ("running", 500)
    for move, state in (("hold", "holding"), ("go-on", "running"), ("advance", "running")):
        now = ask(f"{path}/{move}", {"reason": move, "generation": now["generation"]})
        assert now["state"] == state
        assert (now["changes"][0]["reason"], now["changes"][0]["by"]) == (move, cast.approver.username)
    promotion = ask(f"{path}/finish", {"reason": "good", "generation": now["generation"]})
    assert promotion["after"] == str(candidate.version)
    assert Agent.objects.get(pk=candidate.agent_id).live == candidate.version
    page = ask(f"/agents/{candidate.agent.name}/ramps")
    assert [(row["id"], row["state"], row["promotion_id"]) for row in page["items"]] == [
        (made["id"], "finished", promotion["id"])
    ]
    ask(f"{path}/hold", {"reason": "late", "generation": now["generation"]}, 422)


def test_a_plan_that_is_left_out_is_the_proposed_one(candidate: Candidate, ask: Callable[..., Any]) -> None:
    made = ask(f"/candidates/{candidate.pk}/ramp", {"reason": "x", "generation": candidate.agent.generation})
    assert made["plan"] == ask(f"/candidates/{candidate.pk}/ramp-plan")["plan"]


def test_a_plan_from_before_there_were_margins_is_shown(ramp: Ramp, ask: Callable[..., Any]) -> None:
    plan = {name: value for name, value in ramp.plan.items() if name != "margins"}
    Ramp.objects.filter(pk=ramp.pk).update(plan=plan)
    assert ask(f"/ramps/{ramp.pk}")["plan"] == {**plan, "margins": {}}


def test_the_numbers_of_a_ramp(ramp: Ramp, met: Met, ask: Callable[..., Any]) -> None:
    for number in range(5):
        met(number % 2 == 0, outcome="failed" if number == 0 else "success")
    ramp_judging.look()
    numbers = ask(f"/ramps/{ramp.pk}")["numbers"]
    assert (numbers["candidate"]["final"], numbers["candidate"]["failures"], numbers["live"]["final"]) == (3, 1.0, 2)
    assert (numbers["used"], numbers["difference"]["live"], numbers["in_stage"]) == (5, 2, 5)
    assert "Next stage (50%) in at least 5 sessions" in numbers["next"]
    assert {row["key"] for row in numbers["signals"]} == {"failed", "unsafe", "errors", "invalid", "missing"}


def test_calls_that_override_the_version_are_counted_with_what_lists_them(
    ramp: Ramp, met: Met, ask: Callable[..., Any]
) -> None:
    met(True, overrides=[["temperature"]], version=ramp.candidate.version, started_at=timezone.now())
    met(False)
    ramp_judging.look()
    numbers = ask(f"/ramps/{ramp.pk}")["numbers"]
    assert (numbers["live"]["overriding"], numbers["live"]["overrides"]) == (0, [])
    [row] = numbers["candidate"]["overrides"]
    assert (row["name"], row["sessions"], row["calls"]) == ("temperature", 1, 1)
    assert len(ask(f"/trajectories?{urlencode({'q': row['query']})}")["items"]) == 1


@pytest.mark.parametrize("move", ["stop", "take-back"])
def test_a_version_goes_out_again_only_with_the_id_of_its_last_ramp(
    ramp: Ramp, ask: Callable[..., Any], move: str
) -> None:
    ended = ask(f"/ramps/{ramp.pk}/{move}", {"reason": "enough", "generation": ramp.generation})
    assert ended["share"] == 0
    path = f"/candidates/{ramp.candidate_id}/ramp"
    body = {"reason": "again", "generation": ramp.agent_generation}
    assert ask(path, body, 422)["detail"].startswith("again: ")
    assert ask(path, {**body, "again": ramp.pk})["after_id"] == ramp.pk


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"stages": [{"share": 0}]}, "plan.stages: stage 1: a share is a whole number from 1 to 9999"),
        ({"stages": [{"share": 10_000}]}, "goes live for all of them when the ramp finishes"),
        ({"stages": [{"share": 2500}, {"share": 500}]}, "stage 2: shares rise, and 500 comes after 2500"),
        ({"stages": []}, "plan.stages: there are from 1 to 10, not 0"),
        ({"alphas": {"failed": 0.06}}, "plan.alphas.failed: is a number from 1e-06 to 0.05"),
        ({"alphas": {"failed": 0.04, "unsafe": 0.02}}, "plan.alphas: they are 0.0600 together"),
        ({"alphas": {"unsafe": 0.02}}, "failed must be judged"),
        ({"alphas": {"failed": 0.02, "mood": 0.01}}, "'mood' is no signal"),
        ({"limits": {"failed": 3}}, "'failed' takes no limit"),
        ({"finish": "never"}, "plan.finish: is one of proof, person, nothing_found"),
        ({"margin": 2}, "plan.margin: is a number from 0.001 to 0.5"),
        ({"margins": {"unsafe": 2}}, "plan.margins.unsafe: is a number from 0.001 to 0.5"),
        ({"margins": {"slow": 0.1}}, "plan.margins.slow: 'slow' has no margin here"),
        ({"holdback": 1}, "holdback"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_with_what_would_be_right(
    candidate: Candidate, ask: Callable[..., Any], plan: dict[str, Any], words: str
) -> None:
    body = {"reason": "x", "generation": candidate.agent.generation, "plan": plan}
    assert words in str(ask(f"/candidates/{candidate.pk}/ramp", body, 422))
    assert not Ramp.objects.exists()


@pytest.mark.parametrize("share", ["NaN", "Infinity", "1e999", '"5%"', "5.5", "true", "null"])
def test_a_share_that_is_no_number_is_refused(
    candidate: Candidate, client: Client, cast: Cast, key: Keys, share: str
) -> None:
    text = f'{{"reason": "x", "generation": 1, "plan": {{"stages": [{{"share": {share}}}]}}}}'
    answer = client.post(
        f"/api/v1/candidates/{candidate.pk}/ramp",
        text,
        content_type="application/json",
        headers=key("approve", by=cast.approver),
    )
    assert answer.status_code in (400, 422), answer.content
    assert not Ramp.objects.exists()


def test_a_ramp_that_moved_meanwhile_and_a_live_version_that_did_are_409(ramp: Ramp, ask: Callable[..., Any]) -> None:
    ask(f"/ramps/{ramp.pk}/hold", {"reason": "x", "generation": ramp.generation - 1}, 409)
    ask(f"/ramps/{ramp.pk}/stop", {"reason": "x", "generation": ramp.generation})
    body = {"reason": "x", "generation": ramp.agent_generation + 7, "again": ramp.pk}
    ask(f"/candidates/{ramp.candidate_id}/ramp", body, 409)


def test_a_candidate_that_is_live_is_refused(candidate: Candidate, ask: Callable[..., Any]) -> None:
    Agent.objects.filter(pk=candidate.agent_id).update(live=candidate.version)
    body = {"reason": "x", "generation": candidate.agent.generation}
    assert "no longer live" in ask(f"/candidates/{candidate.pk}/ramp", body, 422)["detail"]
