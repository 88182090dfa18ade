"""WorkBench's folder as an environment: its databases, its tasks, each provable."""

from collections.abc import Callable
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from flywheel.accounts.models import Scope
from flywheel.core.verifiers import NO_RUNNERS
from flywheel.environments.models import Environment, Split
from flywheel.environments.proofs import proof_jobs
from tests.conftest import Cast

WORKBENCH = Path(__file__).parents[5] / "shared/data/workbench"
CALENDAR = """event_id,event_name,participant_email,event_start,duration
00000001,Standup,bako.diallo@atlas.com,2023-12-01 09:00:00,30
00000002,Review,gita.khan@atlas.com,2023-12-02 09:00:00,60
"""
EMAILS = "email_id,inbox/outbox,sender/recipient,subject,sent_datetime,body\n"
TASKS = "task_id,task_name,assigned_to_email,list_name,due_date,board\n"
ROW = (
    '{"query": "Cancel %s", "template": "Cancel {name}", "domains": ["calendar"], "expected_calls": '
    '[{"function_name": "calendar.delete_event", "arguments": {"event_id": "%s"}}]}\n'
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in (
        ("calendar_events.csv", CALENDAR),
        ("emails.csv", EMAILS),
        ("project_tasks.csv", TASKS),
        ("calendar-tasks.jsonl", ROW % ("Standup", "00000001") + ROW % ("Review", "00000002")),
        ("email-tasks.jsonl", '{"query": "?", "template": "?", "expected_calls": [{"function_name": "a.b"}]}\n'),
    ):
        (tmp_path / name).write_text(content)
    return tmp_path


def imported(folder: Path, *more: str, by: str = "builder") -> Environment:
    call_command("import_workbench", str(folder), "--project", "acme", "--by", by, *more)
    return Environment.objects.get(name="workbench")


def test_a_folder_becomes_an_environment_whose_tasks_are_proved_on_its_databases(
    cast: Cast, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = imported(folder)
    said = capsys.readouterr()
    assert said.out == "2 tasks made, 0 not proved; 0 here already, 1 left out\n"
    assert "line 3: expected_calls.0: this environment has no tool 'a.b'" in said.err
    assert (row.kind, len(row.latest.config["database"]["calendar"])) == ("workplace", 2)
    assert {task.cluster for task in row.tasks.all()} == {"template Cancel {name}"}, "a template stays in one split"
    assert {task.slice for task in row.tasks.all()} == {"Cancel {name}"}
    assert row.tasks.earliest("number").target == {
        "calls": [{"tool": "calendar.delete_event", "arguments": {"event_id": "00000001"}}]
    }
    imported(folder)
    assert "0 tasks made, 0 not proved; 2 here already" in capsys.readouterr().out


def test_another_database_wants_another_environment(cast: Cast, folder: Path) -> None:
    imported(folder)
    (folder / "calendar_events.csv").write_text(CALENDAR.replace("Standup", "Stand-up"))
    with pytest.raises(CommandError, match="'workbench' has another database; name a new one with --environment"):
        imported(folder)
    imported(folder, "--environment", "second")
    assert set(cast.project.environments.values_list("name", flat=True)) == {"workbench", "second"}


def test_what_is_not_there_is_told_and_nothing_is_made(cast: Cast, folder: Path) -> None:
    (folder / "emails.csv").unlink()
    with pytest.raises(CommandError, match=r"emails\.csv: No such file"):
        imported(folder)
    with pytest.raises(CommandError, match="has no member 'nobody'"):
        imported(folder, by="nobody")
    assert not Environment.objects.exists()


def test_its_rows_come_in_by_the_page_and_the_api_too(
    cast: Cast, folder: Path, client: Client, key: Callable[..., dict[str, str]]
) -> None:
    row = imported(folder)
    line = (ROW % ("both", "00000001")).encode()
    path = f"/api/v1/environments/{row.name}/tasks/import"
    answer = client.post(path, line, "application/x-ndjson", headers=key(Scope.BUILD)).json()
    assert (answer["made"], answer["left_out"]) == (1, 0)


@pytest.mark.skipif(not WORKBENCH.exists(), reason="WorkBench's folder is not here")
def test_all_of_workbench_comes_in(cast: Cast) -> None:
    row = imported(WORKBENCH)
    assert row.tasks.count() == 280
    assert {task.split for task in row.tasks.all()} >= {Split.TRAIN, Split.HELD_OUT}
    assert proof_jobs.waiting(row, row.latest).count() == 280
    assert all(task.is_proved for task in proof_jobs.prove_some(row, row.latest, NO_RUNNERS))
