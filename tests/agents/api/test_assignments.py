"""Which version a program that calls its model itself is to ask, and what its traces show for it."""

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from django.test import Client
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.project_settings import redaction_policy
from flywheel.agents.api import assignments
from flywheel.agents.models import Agent, Split, SplitUnit
from flywheel.agents.splits import open_splits
from flywheel.agents.splits.assignment_tokens import is_assignment
from flywheel.agents.splits.met_units import MetUnits
from flywheel.core.evidence.ramp.ramp_plan import WHOLE
from flywheel.trajectories.formats.semantics import sent_attributes
from flywheel.trajectories.models import Trajectory
from flywheel.trajectories.search.facets import facets_of
from tests.agents.splits.splitting import split_of
from tests.conftest import Build, Cast
from tests.trajectories.talking import body_of, span

pytestmark = pytest.mark.django_db
Keys = Callable[..., dict[str, str]]


@pytest.fixture
def split(build: Build, monkeypatch: pytest.MonkeyPatch) -> Split:
    monkeypatch.setattr(assignments, "met_units", MetUnits())
    monkeypatch.setattr(open_splits, "LEASE_S", 600.0)
    live = build.version(endpoint={"kind": "openai", "base_url": "http://models.example/v1", "model": "tiny"})
    candidate = build.version(system_prompt="Another")
    live.agent.live = live
    live.agent.save()
    return split_of(live, candidate, share=WHOLE)


def assign(client: Client, headers: dict[str, str], session: str = "s", agent: str = "assistant") -> Any:
    return client.get(f"/api/v1/agents/{agent}/assign?session={quote(session)}", headers=headers)


def test_a_session_is_told_its_version_and_keeps_it(split: Split, client: Client, key: Keys) -> None:
    headers = key("gateway")
    said = assign(client, headers).json()
    token = said.pop("token")
    assert said == {
        "version": str(split.candidate),
        "digest": split.candidate.digest,
        "arm": "candidate",
        "share": 1.0,
        "endpoint": None,
    }
    assert is_assignment(token, split, "session", "s") == "candidate"
    unit = SplitUnit.objects.get()
    assert (unit.name, unit.is_candidate, unit.is_assigned, unit.trace_id) == ("s", True, True, "")
    Split.objects.update(share=1)
    again = assign(client, headers).json()
    assert (again["arm"], again["share"], again["token"]) == ("candidate", 1 / WHOLE, token)
    other = assign(client, headers, "another").json()
    assert (other["arm"], other["endpoint"]) == ("live", {"base_url": "http://models.example/v1", "model": "tiny"})
    assert is_assignment(other["token"], split, "session", "s") is None


@pytest.mark.parametrize("change", [{"share": 0}, {"closed_at": timezone.now()}], ids=["share 0", "closed"])
def test_without_a_split_it_is_the_live_version_and_no_token(
    change: dict[str, Any], split: Split, client: Client, key: Keys
) -> None:
    headers = key("gateway")
    assert assign(client, headers).json()["arm"] == "candidate"
    Split.objects.update(**change)
    said = assign(client, headers).json()
    assert (said["version"], said["digest"]) == (str(split.live), split.live.digest)
    assert (said["arm"], said["share"], said["token"]) == (None, None, None)
    assert SplitUnit.objects.count() == 1


@pytest.mark.parametrize(
    "session",
    ["", " ", " s", "s\n", "x" * 201, "x" * 10_000, "\u202e", "a\tb"],
    ids=["empty", "blank", "space before", "line", "201", "10 kB", "unprintable", "tab"],
)
def test_a_session_that_no_trace_can_have_is_refused(session: str, split: Split, client: Client, key: Keys) -> None:
    answer = assign(client, key("gateway"), session)
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("session: is the id as the session's traces say it: 1 to 200")
    assert SplitUnit.objects.count() == 0


def test_a_session_with_nul_or_none_is_refused(split: Split, client: Client, key: Keys) -> None:
    assert assign(client, key("gateway"), "a\0b").status_code == 400
    assert client.get("/api/v1/agents/assistant/assign", headers=key("gateway")).status_code == 422


def test_an_agent_that_is_not_there_or_has_nothing_live_has_no_assignment(
    split: Split, client: Client, key: Keys
) -> None:
    assert assign(client, key("gateway"), agent="nobody").status_code == 404
    Agent.objects.update(live=None)
    answer = assign(client, key("gateway"))
    assert (answer.status_code, "promote one" in answer.json()["detail"]) == (404, True)


def test_the_token_survives_in_the_traces_of_the_session(split: Split, client: Client, key: Keys) -> None:
    """Whole, before any other attribute, and where nobody reads it for a value that many have."""
    token = assign(client, key("gateway")).json()["token"]
    many = {f"a{number:02}": number for number in range(sent_attributes.MOST + 6)}
    for number in (1, 2):
        made = span(number, trace=f"{number:032x}", **{"session.id": "s", "flywheel.assignment": token, **many})
        body = body_of([made])
        answer = client.post("/v1/traces", body, content_type="application/x-protobuf", headers=key("ingest"))
        assert answer.status_code == 200
    for row in Trajectory.objects.all():
        (kept,) = sent_attributes.values_of(row.attributes, sent_attributes.ASSIGNMENT)
        assert is_assignment(kept, split, "session", row.session_id) == "candidate"
        assert len(sent_attributes.sent(row.attributes)) == sent_attributes.MOST
    project = split.agent.project
    facets, _ = facets_of(project, Trajectory.objects.filter(project=project))
    assert not [value for facet in facets for value in facet.values if token in value.term]


def test_a_session_whose_name_is_not_kept_shows_its_token_all_the_same(
    split: Split, client: Client, key: Keys, cast: Cast
) -> None:
    redaction_policy.set_policy(project=cast.project, actor=Actor(cast.admin), mode="strict", rules=[])
    token = assign(client, key("gateway"), "ann@example.com").json()["token"]
    body = body_of([span(1, **{"session.id": "ann@example.com", "flywheel.assignment": token})])
    client.post("/v1/traces", body, content_type="application/x-protobuf", headers=key("ingest"))
    unit, row = SplitUnit.objects.get(), Trajectory.objects.get()
    assert (unit.name, "ann@" in unit.name) == (row.session_id, False)
    assert is_assignment(token, split, "session", row.session_id) == "candidate"
