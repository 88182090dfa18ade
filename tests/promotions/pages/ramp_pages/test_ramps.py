import random
import re
from collections.abc import Callable
from html import unescape
from urllib.parse import unquote

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.agents.models import Agent, SplitUnit
from flywheel.promotions.live_version import roll_back
from flywheel.promotions.models import Candidate, Ramp
from flywheel.promotions.ramps import ramp_judging, ramp_moves
from flywheel.trajectories.models import Trajectory
from tests.conftest import Cast
from tests.promotions.ramps.conftest import Met, met, ramp

__all__ = ["met", "ramp"]
SignIn = Callable[[User], Client]


@pytest.fixture
def client(cast: Cast, sign_in: SignIn) -> Client:
    return sign_in(cast.approver)


def address(ramp: Ramp, page: str = "ramp", *rest: str) -> str:
    return reverse(f"promotions:{page}", args=["acme", ramp.pk, *rest])


def text_of(client: Client, url: str) -> str:
    """What is read on the page, in one line."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", client.get(url).content.decode())).split())


def looked(ramp: Ramp) -> Ramp:
    ramp_judging.look()
    return Ramp.objects.get(pk=ramp.pk)


def played(ramp: Ramp, met: Met, count: int, live: float, candidate: float) -> Ramp:
    rng = random.Random(2)
    for _ in range(count):
        is_candidate = rng.random() < 0.25
        failed = rng.random() < (candidate if is_candidate else live)
        met(is_candidate, outcome="failed" if failed else "success")
    return looked(ramp)


def test_a_ramp_shows_its_state_its_arms_and_what_comes_next(ramp: Ramp, met: Met, client: Client) -> None:
    ramp = played(ramp, met, 6, live=0.0, candidate=1.0)
    text = text_of(client, address(ramp))
    assert "Share of sessions 25% stage 1 of 2" in text
    assert "Next stage (50%) in at least 4 sessions, if nothing is found." in text
    assert "Failures, candidate less live" in text
    assert "holds however often you look" in text


def test_a_ramp_without_sessions_shows_no_number_for_what_is_unknown(ramp: Ramp, client: Client) -> None:
    text = text_of(client, address(ramp))
    assert "no session is judged yet" in text
    assert "No session has raised the wealth" in text


def test_a_ramp_that_was_taken_back_shows_the_sessions_that_decided_it(ramp: Ramp, met: Met, client: Client) -> None:
    ramp = played(ramp, met, 200, live=0.05, candidate=0.8)
    assert ramp.state == "taken_back"
    answer = client.get(address(ramp))
    page = answer.content.decode()
    assert ramp.finding["words"][1:] in text_of(client, address(ramp))
    moved = page.split('id="moved"')[1].split("</section>")[0]
    assert moved.count("candidate</span>") == 10
    assert "session%3A%22session+" in moved
    assert answer.context["moved"][0]["row"].unit.parts["failed"] == 1.0
    assert 'name="reason"' not in page, "there is nothing to decide"


def test_the_list_of_decisive_sessions_follows_the_chosen_signal(ramp: Ramp, met: Met, client: Client) -> None:
    ramp = played(ramp, met, 6, live=0.0, candidate=1.0)
    assert client.get(address(ramp) + "?signal=unsafe").context["signal"].key == "unsafe"
    assert client.get(address(ramp) + "?signal=nonsense").context["signal"].key == "failed"


def test_the_page_asks_again_and_gets_nothing_while_nothing_is_new(ramp: Ramp, met: Met, client: Client) -> None:
    seen = client.get(address(ramp)).context["fingerprint"]
    live = address(ramp, "ramp_live")
    assert client.get(f"{live}?seen={seen}").status_code == 204
    met(True)
    changed = client.get(f"{live}?seen={seen}")
    assert changed.status_code == 200
    assert 'id="moves" hx-swap-oob="true"' in changed.content.decode()
    ramp_moves.stop(ramp=ramp, actor=None, reason="enough", generation=ramp.generation)
    over = client.get(f"{live}?seen={seen}")
    assert (over.status_code, over.headers["HX-Refresh"]) == (286, "true")


@pytest.mark.parametrize(
    ("move", "state", "share"),
    [("hold", "holding", 2500), ("advance", "running", 5000), ("stop", "stopped", 0), ("take-back", "taken_back", 0)],
)
def test_each_button_moves_the_ramp_with_its_reason(
    ramp: Ramp, client: Client, cast: Cast, move: str, state: str, share: int
) -> None:
    data = {"generation": ramp.generation, "reason": "I looked at them"}
    assert client.post(address(ramp, "move_ramp", move), data).status_code == 302
    ramp = Ramp.objects.get(pk=ramp.pk)
    assert (ramp.state, ramp.split.share) == (state, share)
    change = ramp.changes.all()[0]
    assert (change.by, change.reason) == (cast.approver, "I looked at them")
    assert "I looked at them" in text_of(client, address(ramp))


def test_a_held_ramp_goes_on_by_a_button_and_finishes_by_another(ramp: Ramp, client: Client) -> None:
    ramp_moves.hold(ramp=ramp, actor=None, reason="odd", generation=ramp.generation)
    page = text_of(client, address(ramp))
    assert "Nothing moves until somebody presses Go on" in page
    client.post(address(ramp, "move_ramp", "go-on"), {"generation": ramp.generation, "reason": "fine"})
    ramp = Ramp.objects.get(pk=ramp.pk)
    client.post(address(ramp, "move_ramp", "finish"), {"generation": ramp.generation, "reason": "good"})
    assert Agent.objects.get(pk=ramp.agent_id).live_id == ramp.candidate.version_id
    assert "went live for all sessions" in text_of(client, address(ramp))


def test_who_saw_an_older_state_or_gives_no_reason_is_told_at_the_form(ramp: Ramp, client: Client) -> None:
    stale = client.post(
        address(ramp, "move_ramp", "hold"), {"generation": ramp.generation - 1, "reason": "something is odd"}
    )
    assert stale.status_code == 422
    assert "the ramp changed while you decided" in stale.content.decode()
    assert "something is odd</textarea>" in stale.content.decode(), "what was typed stays"
    empty = client.post(address(ramp, "move_ramp", "hold"), {"generation": ramp.generation, "reason": " "})
    assert empty.context["form"].errors["reason"]
    assert client.post(address(ramp, "move_ramp", "explode")).status_code == 404
    assert Ramp.objects.get(pk=ramp.pk).state == "running"


def test_who_may_not_approve_sees_no_buttons(ramp: Ramp, cast: Cast, sign_in: SignIn) -> None:
    page = text_of(sign_in(cast.viewer), address(ramp))
    assert "An approver decides." in page
    assert "Take back" not in page


def test_sessions_that_count_in_neither_arm_and_shared_ones_are_shown(ramp: Ramp, met: Met, client: Client) -> None:
    units = [met(True), met(False)]
    SplitUnit.objects.filter(pk=units[0].pk).update(mixed="two_versions", frozen_at=units[0].met_at)
    SplitUnit.objects.filter(pk=units[1].pk).update(trajectories=100, name="everybody")
    text = text_of(client, address(ramp))
    assert "1 answered by both versions" in text
    assert "Sessions shared by many calls" in text
    assert "everybody" in text


def test_a_session_that_all_calls_share_is_shown_while_it_goes_on(ramp: Ramp, met: Met, client: Client) -> None:
    unit = met(True, ago=3600, outcome=None)
    Trajectory.objects.filter(session_id=unit.name).update(ended_at=timezone.now(), changed_at=timezone.now())
    before = client.get(address(ramp))
    assert "Sessions shared by many calls" not in before.content.decode()
    looked(ramp)
    seen = before.context["fingerprint"]
    assert client.get(f"{address(ramp, 'ramp_live')}?seen={seen}").status_code == 200, "the open page learns of it"
    text = text_of(client, address(ramp))
    assert "Sessions shared by many calls 100 trajectories or more, or still going on after 20 min" in text
    assert f"{unit.name} candidate 1 so far, met 1 h ago" in text
    assert "Each counts as one session, and not before it has fallen silent." in text


def test_calls_that_override_the_version_are_shown_with_a_list_of_them(ramp: Ramp, met: Met, client: Client) -> None:
    met(True)
    assert "Calls that override the version" not in text_of(client, address(looked(ramp)))
    met(True, overrides=[["temperature"]])
    response = client.get(address(looked(ramp)))
    text = response.content.decode()
    assert "1 of 2 final sessions" in text
    [address_of] = re.findall(r'href="([^"]+overrides[^"]+)"', text)
    assert "attr.gateway.overrides:*temperature*" in unquote(unescape(address_of))
    assert client.get(unescape(address_of)).status_code == 200


def test_ramps_are_listed_those_under_way_first(ramp: Ramp, met: Met, client: Client) -> None:
    met(True)  # an empty project has no overview
    index = reverse("promotions:index", args=["acme"])
    assert "25%" in text_of(client, index)
    assert "ramp at 25%" in text_of(client, reverse("overview:index", args=["acme"]))
    for page in (
        reverse("agents:agent", args=["acme", ramp.agent.name]),
        reverse("agents:version", args=["acme", ramp.agent.name, ramp.candidate.version.number]),
    ):
        assert "ramp at 25%" in text_of(client, page)
    everything = reverse("promotions:ramps", args=["acme"])
    assert [row.pk for row in client.get(everything).context["running"]] == [ramp.pk]
    ramp_moves.stop(ramp=ramp, actor=None, reason="enough", generation=ramp.generation)
    past = client.get(everything).context
    assert ([row.pk for row in past["page"].items], past["running"]) == ([ramp.pk], [])
    assert "ramp at" not in text_of(client, reverse("agents:agent", args=["acme", ramp.agent.name]))


def test_a_version_that_was_taken_back_is_approved_again_only_by_naming_its_ramp(
    ramp: Ramp, candidate: Candidate, client: Client, cast: Cast
) -> None:
    ramp_moves.take_back(ramp=ramp, actor=Actor(cast.approver), reason="it lies", generation=ramp.generation)
    page = client.get(reverse("promotions:candidate", args=["acme", candidate.pk])).content.decode()
    assert f"Let it out again\n        after ramp {ramp.pk}" in page
    approve = reverse("promotions:approve", args=["acme", candidate.pk])
    data = {"generation": candidate.agent.generation, "reason": "fixed"}
    refused = client.post(approve, data)
    assert refused.status_code == 422
    assert "again" in refused.context["form"].errors
    assert client.post(approve, {**data, "again": ramp.pk}).status_code == 302
    assert Agent.objects.get(pk=candidate.agent_id).live == candidate.version


def test_the_numbers_of_the_ramp_that_took_it_back_are_beside_the_next_decision(
    ramp: Ramp, met: Met, candidate: Candidate, client: Client
) -> None:
    for is_candidate, outcome in [(True, "failed"), (True, "success"), (False, "success"), (False, "success")]:
        met(is_candidate, outcome=outcome)
    ramp = looked(ramp)
    ramp_moves.take_back(ramp=ramp, actor=None, reason="it lies", generation=ramp.generation)
    text = text_of(client, reverse("promotions:candidate", args=["acme", candidate.pk]))
    assert f"{candidate.version} was taken back." in text
    assert "by the judge: it lies. 4 sessions; failures 50.0% against 0.0%, difference" in text, text[-900:]


def test_a_version_that_was_rolled_back_after_its_ramp_says_so_beside_the_next_decision(
    ramp: Ramp, candidate: Candidate, client: Client, cast: Cast
) -> None:
    actor = Actor(cast.approver)
    first = ramp_moves.finish(ramp=ramp, actor=actor, reason="fine", generation=ramp.generation)
    agent = Agent.objects.get(pk=candidate.agent_id)
    roll_back(agent=agent, to=candidate.baseline, actor=actor, generation=first.generation, reason="unsafe calls")
    Candidate.objects.filter(pk=candidate.pk).update(state="waiting")  # as another one of the same version
    page = client.get(reverse("promotions:candidate", args=["acme", candidate.pk])).content.decode()
    assert "went live and was rolled back" in page
    assert f"by {cast.approver}: unsafe calls" in " ".join(page.split())
    assert f'name="again" value="{ramp.pk}"' in page
