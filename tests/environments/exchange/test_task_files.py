"""A file of other people's tasks: made once, proved, split by cluster, and what does not fit is told."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.management import call_command
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry, Scope
from flywheel.core.verifiers import NO_RUNNERS
from flywheel.edge.refusals import Refused
from flywheel.environments.exchange.task_files import import_tasks
from flywheel.environments.models import Split
from flywheel.environments.proofs import proof_jobs
from flywheel.environments.versions import environment_versions
from flywheel.environments.versions.environment_terms import Terms
from flywheel.training.datasets.dataset_builder import Speaker, _right
from tests.conftest import Build, Cast
from tests.interop.environments import tasks_of
from tests.interop.test_gym import env_of
from tests.pages import page_of

pytestmark = pytest.mark.django_db


def test_tasks_are_made_once_proved_and_split(
    cast: Cast, tmp_path: Path, client: Client, key: Callable[..., dict[str, str]]
) -> None:
    environment = environment_versions.environment(
        project=cast.project,
        name="office",
        actor=Actor(cast.builder),
        config={},
        verifier={"kind": "workplace"},
        terms=Terms("workplace"),
    )
    rows = [{**task.to_json(), "split": "train"} for task in tasks_of("workplace")]
    lines = [json.dumps(row).encode() for row in [*rows, {**rows[0], "split": "held_out"}, {"prompt": "?"}]]
    report = import_tasks(environment=environment, lines=lines, actor=Actor(cast.builder))
    assert (report.made, report.unproved, report.there, report.left_out) == (3, 0, 0, 2)
    assert str(report.problems[0]).startswith("line 4: split: it is of the split held_out")
    made = list(environment.tasks.order_by("number"))
    assert [task.number for task in made] == [1, 2, 3]
    assert all(task.is_proved and task.split in Split.values for task in made)
    for task, pure in zip(made, tasks_of("workplace"), strict=True):
        said = [message for message in _right(Speaker(env_of("workplace"), ""), task) if message.role == "assistant"]
        calls = [{"tool": call.name, "arguments": call.arguments} for message in said for call in message.tool_calls]
        assert calls == pure.target["calls"], "what an imported task demonstrates is its target, not an empty answer"
    assert AuditEntry.objects.get(action="environments.import_tasks", through="").data == {"made": 3, "left_out": 2}
    (tmp_path / "rows.jsonl").write_bytes(b"\n".join(lines))
    call_command("import_tasks", "office", str(tmp_path / "rows.jsonl"), "--project", cast.project.slug)
    path, body = "/api/v1/environments/office/tasks/import", b"\n".join(lines)
    answer = client.post(path, body, "application/x-ndjson", headers=key(Scope.BUILD))
    assert (answer.status_code, answer.json()["there"], answer.json()["left_out"]) == (200, 3, 2)
    assert client.post(path, body, "application/x-ndjson", headers=key(Scope.READ)).status_code == 403
    assert environment.tasks.count() == 3


def test_too_many_rows_are_none(build: Build, cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flywheel.environments.exchange.task_files.AT_ONCE", 1)
    with pytest.raises(Refused, match="in parts"):
        import_tasks(environment=build.environment(), lines=[b"1", b"2"], actor=Actor(cast.builder))


def test_an_odd_row_is_left_out_and_its_siblings_are_kept(cast: Cast, build: Build) -> None:
    good = {"prompt": "Meet Bako", "answer": [{"function": "calendar.create_event", "arguments": {"person": "Bako"}}]}
    odd = [
        {"prompt": "hi", "answer": [{"function": "no.tool", "arguments": {}}]},
        {"prompt": "hi", "answer": [{"function": "calendar.create_event", "arguments": {"person": float("nan")}}]},
    ]
    lines = [json.dumps(row).encode() for row in [*odd, good]]
    report = import_tasks(environment=build.environment(), lines=lines, actor=Actor(cast.builder))
    assert (report.made, report.left_out) == (1, 2)


MEET = {"name": "calendar.create_event", "arguments": {"person": "Bako", "day": "friday"}}
ROWS: list[dict[str, object]] = [
    {"prompt": "Meet Bako", "answer": [MEET]},
    {"prompt": "Meet Bako", "answer": [MEET]},
    {"prompt": "Meet Ann", "answer": [{"name": "calendar.nothing", "arguments": {}}]},
    {"traces": [], "task": {}},
    {"prompt": "Meet \0", "answer": []},
]
LINES = b"\n\n".join(json.dumps(row).encode() for row in ROWS) + b"\n{broken"


def test_a_page_shows_what_the_lines_become_and_then_makes_them(
    cast: Cast, build: Build, sign_in: Callable[..., Client], client: Client, key: Callable[..., dict[str, str]]
) -> None:
    environment, client = build.environment(), sign_in(cast.builder)
    home = reverse("environments:import_tasks", args=[cast.project.slug, environment.name])
    assert home.encode() in client.get(home.replace("import/", "")).content
    assert "not both" in client.post(home, {"text": ""}).content.decode()
    sent = client.post(home, {"file": SimpleUploadedFile("rows.jsonl", LINES)}).headers["Location"]
    page = client.get(sent).content.decode()
    assert "1 of 6 lines become tasks" in page
    assert "3 verifiers dataset" in page
    assert "<code>answer.0</code>" in page
    assert "no tool &#x27;calendar.nothing&#x27;" in page
    assert "a NUL character" in page
    assert environment.tasks.count() == 0, "a look makes nothing"
    assert client.post(sent).status_code == 302
    assert environment.tasks.get().is_proved
    page = page_of(client.get(reverse("environments:task", args=["acme", environment.name, 1])))
    assert "Request and expected" in page
    assert "nothing recorded" not in page, "nobody did anything yet, so nothing is missing"
    assert client.get(sent).status_code == 404, "the upload is gone with its import"
    again = client.post(home, {"text": LINES.decode()}).headers["Location"]
    assert "become tasks" in (page := client.get(again).content.decode()), page
    assert client.post(again + "discard/").status_code == 302
    assert (client.get(again).status_code, environment.tasks.count()) == (404, 1)
    path = f"/api/v1/environments/{environment.name}/tasks/import?preview=true"
    seen = client.post(path, LINES, "application/x-ndjson", headers=key(Scope.BUILD)).json()
    assert (seen["made"], seen["there"], seen["left_out"]) == (0, 2, 4)
    assert [(row["line"], row["field"]) for row in seen["problems"]] == [
        (5, "answer.0"),
        (7, "traces"),
        (9, ""),
        (10, ""),
    ]


def test_a_large_file_is_refused_and_many_tasks_are_left_to_a_worker(
    cast: Cast,
    build: Build,
    sign_in: Callable[..., Client],
    client: Client,
    key: Callable[..., dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environment = build.environment()
    monkeypatch.setattr("flywheel.environments.pages.tasks.import_views.MAX_BYTES", 10)
    monkeypatch.setattr("flywheel.environments.exchange.task_files.MAX_BYTES", 10)
    home = reverse("environments:import_tasks", args=[cast.project.slug, environment.name])
    answer = sign_in(cast.builder).post(home, {"file": SimpleUploadedFile("rows.jsonl", LINES)})
    assert (answer.status_code, b"larger than" in answer.content) == (422, True)
    path = f"/api/v1/environments/{environment.name}/tasks/import"
    assert client.post(path, LINES, "application/x-ndjson", headers=key(Scope.BUILD)).status_code == 413
    monkeypatch.setattr("flywheel.environments.proofs.proof_jobs.PROVED_AT_ONCE", 0)
    report = import_tasks(environment=environment, lines=LINES.splitlines(), actor=Actor(cast.builder))
    assert (report.made, report.waiting) == (1, 1)
    assert proof_jobs.waiting(environment, environment.latest).count() == 1
    assert environment.provings.count() == 1
    assert proof_jobs.prove_some(environment, environment.latest, NO_RUNNERS)[0].is_proved
