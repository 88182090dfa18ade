"""What the filter bar's terms find. `test_grammar.py` is about how they are written."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flywheel.trajectories.models import Source, Trajectory
from flywheel.trajectories.search.query import FIELDS, looks_like_an_id, parse
from tests.conftest import Build, Cast


@pytest.fixture
def rows(cast: Cast, build: Build) -> dict[str, Trajectory]:
    agent = build.agent("support")
    version = build.version(agent)
    now = timezone.now()
    made: dict[str, dict[str, Any]] = {
        "plain": {"environment": "dev", "latency_ms": 500.0, "started_at": now - timedelta(days=9)},
        "failed": {
            "outcome": "failed",
            "proposed_bucket": "wrong_tool",
            "proposed_score": 0.9,
            "agent": agent,
            "version": version,
            "tool_names": ["email.send", "a,b"],
            "latency_ms": 2500.0,
            "error_count": 2,
            "tokens_in": 1500,
            "tokens_out": 600,
            "cost_usd": 0.02,
            "environment": "production",
            "session_id": "s 1",
            "started_at": now - timedelta(hours=1),
            "metadata": {"region": "eu", "run": 7},
            "tags": ["vip"],
        },
        "labelled": {
            "outcome": "success",
            "label": "failure",
            "label_bucket": "format_error",
            "proposed_bucket": "wrong_tool",
            "version_label": "v9",
            "user_id": "u-1",
            "interventions": [{"step": "", "kind": "edited", "by": "", "note": "", "at": ""}],
            "step_count": 12,
            "source": Source.IMPORT,
        },
        "rollout": {"source": Source.ROLLOUT, "outcome": "failed"},
    }
    rows = {
        name: build.trajectory(prompt=f"Please tell Bako: {name} matters", **fields) for name, fields in made.items()
    }
    build.searchable(*rows.values())
    return rows


def found(text: str) -> set[str]:
    query = parse(text)
    assert not query.problems
    return {row.title.split()[3] for row in query.apply(Trajectory.objects.all())}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", {"plain", "failed", "labelled"}),
        ("source:rollout", {"rollout"}),
        ("source:rollout,import", {"rollout", "labelled"}),
        ("-source:rollout", {"plain", "failed", "labelled"}),
        ("outcome:failed", {"failed"}),
        ("-outcome:failed", {"plain", "labelled"}),
        ("outcome:unknown", {"plain"}),
        ("outcome:(failed OR unknown)", {"failed", "plain"}),
        ("bucket:wrong_tool", {"failed"}),
        ("bucket:format_error", {"labelled"}),
        ("bucket:none", {"plain"}),
        ("version:1", {"failed"}),
        ("version:v1", {"failed"}),
        ("version:9", {"labelled"}),
        ("version:none_such", set()),
        ("version:" + "9" * 30, set()),
        ("agent:support", {"failed"}),
        ("tool:email.send", {"failed"}),
        ('tool:"a,b"', {"failed"}),
        ("tool:other", set()),
        ("label:failure", {"labelled"}),
        ("label:none", {"plain", "failed"}),
        ('session:"s 1"', {"failed"}),
        ("user:u-1", {"labelled"}),
        ("env:dev", {"plain"}),
        ("-env:dev", {"failed", "labelled"}),
        ("tag:vip", {"failed"}),
        ("meta.region:eu", {"failed"}),
        ("meta.run:7", {"failed"}),
        ("has:intervention", {"labelled"}),
        ("has:error", {"failed"}),
        ("-has:label", {"plain", "failed"}),
        ("has:version,label", {"failed", "labelled"}),
        ("latency:>2", {"failed"}),
        ("latency:<600ms", {"plain"}),
        ("latency:0.9..1.1", {"labelled"}),
        ("tokens:>2k", {"failed"}),
        ("cost:>=0.02", {"failed"}),
        ("steps:12", {"labelled"}),
        ("steps:>3 errors:0", {"labelled"}),
        ("score:>0.8", {"failed"}),
        ("after:2h", {"failed"}),
        ("before:7d", {"plain"}),
        ("failed matters", {"failed"}),
        ('"tell bako: plain"', {"plain"}),
        ("-plain -failed", {"labelled"}),
        ("outcome:failed latency:>2 bako", {"failed"}),
        ("outcome:failed env:dev", set()),
        ("matters\0", {"plain", "failed", "labelled"}),
        ("outcome:failed or env:dev", {"failed", "plain"}),
        ("(outcome:failed or env:dev) -has:error", {"plain"}),
        ("not (outcome:failed or env:dev)", {"labelled"}),
        ("source:rollout or env:dev", {"rollout", "plain"}),
        ("tool:email.*", {"failed"}),
        ('tool:"email.*"', set()),
        ("agent:sup*", {"failed"}),
        ("env:*dev*,prod*", {"plain", "failed"}),
        ("env:none", {"labelled"}),
        ('env:"none"', set()),
        ("meta.region:e*", {"failed"}),
        ("tokens:<5k", {"failed"}),
        ("started:2h", {"failed"}),
        ("started:<7d", {"plain"}),
    ],
)
def test_a_bar_finds(rows: dict[str, Trajectory], text: str, names: set[str]) -> None:
    if text in ("after:2h", "before:7d", "started:2h", "started:<7d"):
        Trajectory.objects.filter(pk__in=[rows["labelled"].pk]).update(started_at=timezone.now() - timedelta(days=2))
    assert found(text) == names


def test_a_trace_is_found_by_the_beginning_of_its_id(rows: dict[str, Trajectory]) -> None:
    assert found(f"trace:{rows['rollout'].trace_id[:12]}") == {"rollout"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("buket:wrong_tool", "Did you mean bucket?"),
        ("outcome:sucess", "Did you mean success?"),
        ("has:eror", "Did you mean error?"),
        ("latency:fast", "latency:>2"),
        ("latency:>2y", "not a number"),
        ("after:yesterday", "after:7d"),
        ("tool:", "has no value"),
        ("meta:eu", "meta.region:eu"),
        ("note: something", "in quotes"),
        ("agent:>5", "cannot be compared"),
        ("env.x:dev", "takes no key"),
        ("started:2026-13", "started:7d"),
        ("(env:dev", "never closed"),
        ("env:dev or", "none after it"),
        ("→", "→ holds no letter and no digit"),
        ("-???", "??? holds no letter"),
        ("env:dev or *", "* holds no letter"),
        ('" "', '" " holds no letter'),
    ],
)
def test_what_is_not_understood_is_said_and_nothing_is_searched(
    rows: dict[str, Trajectory], text: str, told: str
) -> None:
    query = parse(f"outcome:failed {text}")
    assert told in " ".join(query.problems)
    assert not query.apply(Trajectory.objects.all()).exists()


def test_each_term_knows_the_bar_without_it() -> None:
    query = parse('bucket:wrong_tool  -env:dev "two words"')
    assert [(term.text, term.without) for term in query.terms] == [
        ("bucket:wrong_tool", '-env:dev "two words"'),
        ("-env:dev", 'bucket:wrong_tool "two words"'),
        ('"two words"', "bucket:wrong_tool -env:dev"),
    ]


@pytest.mark.parametrize(
    ("text", "further"),
    [
        ("", ""),
        ("env:dev bako", "env:dev bako"),
        ("env:dev or has:error", "(env:dev or has:error)"),
        ("(env:dev or has:error) bako", "(env:dev or has:error) bako"),
        ('tool:"a b" "meet bako', 'tool:"a b" "meet bako"'),
        ("(env:dev", "(env:dev"),
    ],
)
def test_a_term_that_is_added_to_the_bar_has_to_hold_too(text: str, further: str) -> None:
    assert parse(text).further == further


def test_an_address_is_text() -> None:
    assert not parse("https://example.org/x 12:30").problems


@pytest.mark.parametrize(
    ("text", "trace_id"),
    [
        ("0AF7651916CD43DD8448EB211C80319C", "0af7651916cd43dd8448eb211c80319c"),
        ("trace:0af76519-16cd-43dd-8448-eb211c80319c", "0af7651916cd43dd8448eb211c80319c"),
        ("bucket:wrong_tool", ""),
        ("deadbeef", ""),
    ],
)
def test_a_pasted_id_is_recognised(text: str, trace_id: str) -> None:
    assert looks_like_an_id(text) == trace_id


FRAGMENTS = st.sampled_from(
    [*FIELDS, ":", "-", '"', "(", ")", " OR ", ",", ">", "..", "1", "x", " ", "\0", "é", "9" * 20]
)


@given(pieces=st.lists(FRAGMENTS, max_size=12))
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_every_bar_is_answered(db: None, pieces: list[str]) -> None:
    list(parse("".join(pieces)).apply(Trajectory.objects.all())[:1])
