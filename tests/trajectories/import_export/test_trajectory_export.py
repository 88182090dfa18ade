"""Exports: a selection as a file that leaves a trace in the audit log and comes back as the same trajectories."""

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from flywheel.accounts.models import AuditEntry, Project, User
from flywheel.trajectories.formats.values.residual import step_row, trace_row
from flywheel.trajectories.import_export import trajectory_export
from flywheel.trajectories.import_export.trajectory_import import import_file
from flywheel.trajectories.models import Step, Trajectory
from flywheel.trajectories.store.stored_traces import trace_of
from tests.conftest import Build, Cast
from tests.trajectories.formats.samples import FILES, WORKBENCH
from tests.trajectories.formats.sending import envelope, span

SignIn = Callable[[User], Client]
Keys = Callable[..., dict[str, str]]
URL = "/p/acme/trajectories/export/"
API = "/api/v1/trajectories/export"
WHOLE = ("atif", "otlp", "openai")

EXACT = {
    "prompt_token_ids": [0, 2**53 + 1, 2**62],
    "token_ids": [1, 2, 3],
    "logprobs": [-0.0, -1e-05, -0.1 + 2**-55, 5e-324],
    "mask": [0, 1, 1],
    "params": {"temperature": 0.7, "seed": 2**60},
}


def take(client: Client, url: str = URL, **more: Any) -> tuple[Any, list[dict[str, Any]]]:
    response = client.get(url, more.pop("query", {}), **more)
    if not response.streaming:
        return response, []
    body = b"".join(response)
    return response, [json.loads(line) for line in body.splitlines()]


def fill(project: Project, content: bytes) -> None:
    report = import_file(project, io.BytesIO(content))
    assert report.left_out == 0, report.problems[:3]


def pictures(project: Project) -> dict[str, Any]:
    """Every stored trajectory but how it arrived."""
    found = {}
    for row in Trajectory.objects.filter(project=project):
        trace = trace_of(row)
        whole = trace_row(trace)
        whole["tags"] = sorted(whole["tags"])
        found[row.trace_id] = json.dumps([whole, [step_row(step) for step in trace.steps]], sort_keys=True)
    return found


def sent_again(cast: Cast, format: str) -> None:
    entry = trajectory_export.EXPORTS[format]
    lines = b"".join(trajectory_export.lines(Trajectory.objects.filter(project=cast.project), entry))
    fill(cast.elsewhere, lines)


@pytest.mark.parametrize("format", WHOLE)
def test_what_training_needs_survives_the_store_and_back(cast: Cast, format: str) -> None:
    step = {
        "step_id": 1,
        "source": "agent",
        "message": "ok",
        "metrics": {
            "prompt_token_ids": EXACT["prompt_token_ids"],
            "completion_token_ids": EXACT["token_ids"],
            "logprobs": EXACT["logprobs"],
            "extra": {"mask": EXACT["mask"]},
        },
        "extra": {"finish_reason": "length", "sampling": EXACT["params"]},
    }
    row = {
        "schema_version": "ATIF-v1.7",
        "trajectory_id": "a" * 32,
        "agent": {"name": "a", "version": "1"},
        "steps": [step],
    }
    fill(cast.project, json.dumps(row).encode())
    sent_again(cast, format)
    for project in (cast.project, cast.elsewhere):
        (stored,) = Trajectory.objects.filter(project=project)
        back = trace_of(stored).steps[0]
        assert json.dumps(back.sampling) == json.dumps(EXACT), project.slug
        assert back.finish_reason == "length"


@pytest.mark.parametrize("format", WHOLE)
def test_files_of_other_tools_survive(cast: Cast, format: str) -> None:
    fill(cast.project, (FILES / "verifiers_episode.json").read_bytes())
    fill(cast.project, (FILES / "inspect.json").read_bytes())
    sent_again(cast, format)
    assert pictures(cast.elsewhere) == pictures(cast.project)


@pytest.mark.parametrize("format", WHOLE)
def test_spans_survive(cast: Cast, format: str) -> None:
    fill(cast.project, envelope(span(), span(spanId="1" * 16, parentSpanId="b7ad6b7169203331")))
    stored = Trajectory.objects.get(project=cast.project)
    stored.outcome, stored.tags = "failed", ["late"]
    stored.save()
    sent_again(cast, format)
    assert pictures(cast.elsewhere) == pictures(cast.project)
    assert Step.objects.filter(trajectory__project=cast.elsewhere, is_span=True).count() == (
        2 if format == "otlp" else 0
    )


@pytest.mark.skipif(not WORKBENCH.is_dir(), reason="the recorded runs are not here")
@pytest.mark.parametrize("format", WHOLE)
def test_recorded_runs_of_real_agents_survive(cast: Cast, format: str) -> None:
    fill(cast.project, (WORKBENCH / "email-mistral-8x7B_all.atif.jsonl").read_bytes())
    sent_again(cast, format)
    assert pictures(cast.elsewhere) == pictures(cast.project)
    assert len(pictures(cast.elsewhere)) == 90


def test_an_export_into_the_same_project_changes_nothing(cast: Cast) -> None:
    fill(cast.project, (FILES / "inspect.json").read_bytes())
    before = pictures(cast.project)
    for format in WHOLE:
        fill(
            cast.project, b"".join(trajectory_export.lines(Trajectory.objects.all(), trajectory_export.EXPORTS[format]))
        )
    assert pictures(cast.project) == before


# The page and the API


def test_the_page_gives_a_file_and_notes_who_took_it(cast: Cast, sign_in: SignIn, build: Build) -> None:
    build.trajectory("first")
    build.trajectory("second", proposed_bucket="wrong_tool")
    client = sign_in(cast.viewer)
    response, rows = take(client, query={"format": "openai", "q": "bucket:wrong_tool"})
    assert response["Content-Disposition"].startswith('attachment; filename="acme-')
    assert response["X-Content-Type-Options"] == "nosniff"
    assert [row["messages"][1]["content"] for row in rows] == ["second"]
    entry = AuditEntry.objects.get(action="trajectories.export")
    assert (entry.actor, entry.data["q"], entry.data["format"]) == (cast.viewer, "bucket:wrong_tool", "openai")


def test_chosen_trajectories_and_only_of_this_project(cast: Cast, sign_in: SignIn, build: Build) -> None:
    mine, theirs = build.trajectory("mine"), build.trajectory("theirs", project=cast.elsewhere)
    build.trajectory("other")
    _, rows = take(sign_in(cast.viewer), query={"format": "atif", "id": [mine.trace_id, theirs.trace_id]})
    assert [row["trajectory_id"] for row in rows] == [mine.trace_id]


@pytest.mark.parametrize(
    ("query", "told"),
    [({"format": "xml"}, "xml"), ({"q": "nothing:here"}, "nothing"), ({"id": ["x"] * 501}, "at most")],
)
def test_a_selection_that_cannot_be_is_refused(
    cast: Cast, sign_in: SignIn, client: Client, key: Keys, query: dict[str, Any], told: str
) -> None:
    for response, _ in (take(sign_in(cast.viewer), query=query), take(client, API, query=query, headers=key("read"))):
        assert response.status_code == 400
        assert told in response.content.decode()
    assert not AuditEntry.objects.filter(action="trajectories.export").exists()


def test_the_api_exports(cast: Cast, client: Client, key: Keys, build: Build) -> None:
    build.searchable(row := build.trajectory("mine"))
    _, rows = take(client, API, query={"format": "otlp", "q": "mine"}, headers=key("read"))
    assert rows[0]["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["traceId"] == row.trace_id
    assert take(client, API, headers=key("ingest"))[0].status_code == 403
    assert AuditEntry.objects.get(action="trajectories.export").through.startswith("key ")


def test_the_list_and_a_trajectory_offer_it(cast: Cast, sign_in: SignIn, build: Build) -> None:
    build.searchable(row := build.trajectory("mine"))
    client = sign_in(cast.viewer)
    assert "export/?format=atif&amp;q=mine" in client.get("/p/acme/trajectories/", {"q": "mine"}).content.decode()
    detail = client.get(f"/p/acme/trajectories/{row.trace_id}/").content.decode()
    assert f"export/?format=otlp&amp;id={row.trace_id}" in detail


def test_a_long_export_is_read_in_pieces(
    cast: Cast, build: Build, monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    monkeypatch.setattr(trajectory_export, "ROWS_AT_ONCE", 2)
    monkeypatch.setattr(trajectory_export, "STEPS_AT_ONCE", 6)
    wanted = [build.trajectory(str(number), started_at="2026-01-01T00:00Z").trace_id for number in range(5)]
    rows = Trajectory.objects.filter(project=cast.project)
    with django_assert_num_queries(3 + 3):
        found = [
            json.loads(line)["trajectory_id"]
            for line in trajectory_export.lines(rows, trajectory_export.EXPORTS["atif"])
        ]
    assert found == wanted[::-1]


def test_a_slow_reader_of_an_export_holds_no_connection(
    cast: Cast, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trajectory_export, "STEPS_AT_ONCE", 1)
    given_back: list[int] = []
    monkeypatch.setattr(trajectory_export, "give_back", lambda: given_back.append(1))
    for number in range(3):
        build.trajectory(str(number))
    read = trajectory_export.lines(Trajectory.objects.filter(project=cast.project), trajectory_export.EXPORTS["atif"])
    for count in (1, 2, 3):
        assert next(read)
        assert len(given_back) == count
