"""A shadow for programs: its numbers, the calls at which the two versions differ, and verdicts."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from flywheel.promotions.models import Candidate, Ramp, ShadowVerdict
from tests.conftest import Cast
from tests.promotions.ramps.test_shadow_comparing import begin, copied, look

pytestmark = pytest.mark.django_db
Ask = Callable[..., Any]


@pytest.fixture
def ramp(candidate: Candidate, cast: Cast) -> Ramp:
    """In the shadow, with three compared calls; at the last two the versions differ."""
    ramp = begin(candidate, cast, sessions=50)
    for number in range(3):
        copied(ramp, number, {"id": str(number + 1)})
    return look(ramp)


@pytest.fixture
def ask(client: Client, cast: Cast, key: Callable[..., dict[str, str]]) -> Ask:
    headers = key("read", "review", by=cast.reviewer)

    def go(path: str, body: dict[str, Any] | None = None, status: int = 200) -> Any:
        address = f"/api/v1{path}"
        answer = (
            client.get(address, headers=headers)
            if body is None
            else client.post(address, body, "application/json", headers=headers)
        )
        assert answer.status_code == status, answer.content
        return answer.json()

    return go


def test_disagreements_have_both_answers(ramp: Ramp, ask: Ask) -> None:
    newest, older = ask(f"/ramps/{ramp.pk}/shadow/calls")["items"]
    assert (newest["session"], older["session"]) == ("s2", "s1")
    assert (newest["same_tools"], newest["same_arguments"], newest["verdict"]) == (True, False, None)
    for side in ("live", "candidate"):
        assert newest[side] == {
            "tools": ["find"], "invalid": False, "unsafe": False, "error": False, "tokens": 7, "ms": 1000.0
        }  # fmt: skip
    stored = [ask(f"/trajectories/{newest[name]}")["source"] for name in ("trace_id", "copy_trace_id")]
    assert stored == ["production", "shadow"]


def test_a_verdict_counts_until_the_next_one(ramp: Ramp, ask: Ask, cast: Cast) -> None:
    [newest, older] = ask(f"/ramps/{ramp.pk}/shadow/calls")["items"]
    address = f"/ramps/{ramp.pk}/shadow/calls/{newest['id']}/verdict"
    said = ask(address, {"verdict": "wrong", "note": "another order"})
    assert (said["id"], said["verdict"]["verdict"], said["verdict"]["note"]) == (newest["id"], "wrong", "another order")
    assert said["verdict"]["by"] == cast.reviewer.username
    assert ask(address, {"verdict": "both"})["verdict"]["verdict"] == "both"
    assert [row.verdict for row in ShadowVerdict.objects.all()] == ["both", "wrong"], "the first is kept"
    listed = ask(f"/ramps/{ramp.pk}/shadow/calls")["items"]
    assert [row["verdict"] and row["verdict"]["verdict"] for row in listed] == ["both", None]
    numbers = ask(f"/ramps/{ramp.pk}/shadow")
    assert (numbers["compared"], numbers["differ"], numbers["verdicts"]) == (3, 2, {"both": 1})
    assert "'better' is unknown" in ask(address, {"verdict": "better"}, status=422)["detail"]
    ask(f"/ramps/{ramp.pk}/shadow/calls/{older['id'] + 1000}/verdict", {"verdict": "both"}, status=404)
