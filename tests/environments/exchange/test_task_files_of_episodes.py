"""Rows with a request and an answer become replay tasks: in words, exactly, by their number, or as calls; what was
exported comes back as it was; and what cannot be taken is named by line and field."""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Scope
from flywheel.core.interop import episode_rows
from flywheel.core.interop.environment_exports import FORMATS
from flywheel.edge.refusals import Refused
from flywheel.environments.exchange import task_files
from flywheel.environments.exchange.environment_packages import exported
from flywheel.environments.exchange.task_files import Taken, import_tasks
from flywheel.environments.models import Environment, Split
from flywheel.environments.task_sets.frozen_sets import freeze
from flywheel.environments.versions.environment_terms import Terms
from flywheel.environments.versions.environment_versions import environment
from tests.conftest import TOOLS, Build, Cast
from tests.environments.tasks.test_replay_tasks import FIND, LOOK, RIGHT, RUN, failed, make, run
from tests.environments.tasks.test_replay_tasks import replay as replay
from tests.pages import page_of

pytestmark = pytest.mark.django_db

SUM = "48/2 = <<48/2=24>>24 in May.\n#### 72"


def take(cast: Cast, replay: Environment, *rows: Any, **more: Any) -> Taken:
    lines = [json.dumps(row).encode() for row in rows]
    return import_tasks(environment=replay, lines=lines, actor=Actor(cast.builder), **more)


def words(text: str, **more: Any) -> list[dict[str, Any]]:
    return [{"type": "words", "text": text, **more}]


@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        ({"prompt": "Capital of France?", "answer": "Paris"}, words("Paris")),
        ({"question": "How many clips?", "answer": SUM}, words("72", match="number")),
        ({"input": [{"role": "user", "content": "Hi?"}], "ideal": ["Ho", "Hey", "Ho"]}, words("Ho", **{"or": ["Hey"]})),
        ({"problem": "1 - 1?", "answer": 0}, words("0")),
        ({"prompt": [{"role": "user", "content": [{"type": "text", "text": "x?"}]}], "ground_truth": "y"}, words("y")),
        ({"instruction": "Translate", "input": "chat", "output": "cat"}, words("cat")),
        ({"prompt": "As JSON?", "answer": {"a": [1]}}, words('{"a": [1]}')),
        (
            {"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good day"}]},
            words("Good day"),
        ),
        ({"prompt": "Hello", "completion": [{"role": "assistant", "content": "Good day"}]}, words("Good day")),
        ({"prompt": "Meet", "expected_calls": []}, [{"type": "avoid", "tools": []}]),
        (
            {"prompt": "Meet", "answer": json.dumps([{"name": RIGHT["tool"], "arguments": RIGHT["arguments"]}])},
            [{"type": "calls", "calls": [RIGHT], "order": "given"}],
        ),
    ],
)
def test_a_row_becomes_a_proved_task(
    cast: Cast, replay: Environment, row: dict[str, Any], wanted: list[dict[str, Any]]
) -> None:
    report = take(cast, replay, row, row)
    assert (report.made, report.there, report.problems) == (1, 1, [])
    task = replay.tasks.get()
    assert (task.target, task.state) == ({"wanted": wanted}, {})
    assert task.is_proved, task.proof
    assert task.split in Split.values
    assert task.cluster.startswith("taken ")


def test_a_conversation_is_gone_on_from_where_it_stands(cast: Cast, replay: Environment) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "calendar_find", "arguments": '{"who": "Bako"}'}}
    talk = [
        {"role": "system", "content": "You are kind."},
        {"role": "user", "content": "When is Bako free?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "free on friday"},
    ]
    report = take(cast, replay, {"messages": [*talk, {"role": "assistant", "content": "On friday."}]}, {
        "prompt": [*talk[:-1], talk[1]], "answer": "On friday."
    })  # fmt: skip
    task = replay.tasks.get()
    assert [(each["role"], each["content"]) for each in task.state["messages"]] == [
        ("user", "When is Bako free?"), ("assistant", ""), ("tool", "free on friday")
    ]  # fmt: skip
    assert task.state["messages"][1]["tool_calls"] == [{"id": "c1", "name": LOOK["tool"], "arguments": {"who": "Bako"}}]
    assert (task.prompt, task.target["wanted"], task.is_proved) == ("When is Bako free?", words("On friday."), True)
    (problem,) = report.problems
    assert (problem.line, problem.field) == (2, "prompt")
    assert "has no result" in problem.reason


@pytest.mark.parametrize(
    ("row", "field", "reason"),
    [
        ({"prompt": "x"}, "", "says nowhere what is right"),
        ({"answer": "x"}, "prompt", "no request of a user"),
        ({"prompt": "x", "answer": " "}, "answer", "is empty"),
        ({"prompt": "x", "answer": "y", "split": "test"}, "split", "might be trained on"),
        ({"prompt": "x", "completion": "y", "reward": 0}, "", "says nowhere what is right"),
        ({"question": "x", "choices": ["a", "b"], "answer": 1}, "choices", "write the choices"),
        ({"prompt": [{"content": "x"}], "answer": "y"}, "prompt.0", "a role"),
        (
            {"prompt": [{"role": "user", "content": [{"type": "image_url"}]}], "answer": "y"},
            "prompt.0.content",
            "no text",
        ),
        ({"prompt": "x", "answer": [{"name": "no.tool", "arguments": {}}]}, "answer.0", "no tool 'no.tool'"),
        ({"prompt": "x", "target": {"wanted": [{"type": "words"}]}}, "target.wanted.0.text", "expected a text"),
        ({"prompt": "x", "target": {"wanted": words("y", match="soft")}}, "target.wanted.0.match", "one of words"),
        ({"prompt": "x", "target": {"wanted": words("y")}, "state": {"messages": [{}]}}, "state", "as an export"),
        ({"prompt": "x", "target": {"wanted": words("y")}, "state": 3}, "state", "an object"),
        (7, "", "not a JSON object"),
    ],
)
def test_a_row_that_cannot_be_taken_is_named_and_the_others_are_kept(
    cast: Cast, replay: Environment, row: Any, field: str, reason: str
) -> None:
    report = take(cast, replay, {"prompt": "Capital of France?", "answer": "Paris"}, row)
    assert report.made == 1
    (problem,) = report.problems
    assert (problem.line, problem.field) == (2, field)
    assert reason in problem.reason


def test_exact_or_by_number_where_it_is_asked_for(cast: Cast, replay: Environment) -> None:
    report = take(cast, replay, {"prompt": "?", "answer": "Paris"}, {"prompt": "!", "answer": "7"}, match="number")
    assert [task.target["wanted"] for task in report.tasks] == [words("7", match="number")]
    assert (report.problems[0].field, report.problems[0].reason) == ("answer", "there is no number in 'Paris'")
    report = take(cast, replay, {"prompt": "?", "answer": "Paris"}, match="exact")
    assert [(task.target["wanted"], task.is_proved) for task in report.tasks] == [(words("Paris", match="exact"), True)]
    with pytest.raises(Refused, match="match: 'soft' is unknown"):
        take(cast, replay, {"prompt": "?", "answer": "x"}, match="soft")


def test_tables_and_lists_are_read_too(cast: Cast, replay: Environment, tmp_path: Any) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = io.BytesIO()
    parquet.write_table(pyarrow.table({"question": ["One?", ""], "answer": ["#### 1", "2"]}), table)
    report = task_files.look(environment=replay, lines=table)
    assert (report.made, [str(each) for each in report.problems]) == (
        1,
        ["line 2: prompt: it has no request of a user"],
    )
    sheet = io.BytesIO(b"question,answer\nOne?,uno\nTwo?\nThree?,tres\n")
    report = task_files.look(environment=replay, lines=sheet)
    assert (report.lines, report.problems[0].line) == ([2, 4], 3)
    listed = io.BytesIO(json.dumps([{"prompt": "One?", "answer": "uno"}], indent=1).encode())
    assert task_files.look(environment=replay, lines=listed).made == 1
    with pytest.raises(Refused, match="Parquet"):
        task_files.look(environment=replay, lines=io.BytesIO(b"PAR1 broken"))
    (tmp_path / "rows.csv").write_bytes(sheet.getvalue())
    call_command("import_tasks", replay.name, str(tmp_path / "rows.csv"), "--project", "acme", "--match", "exact")
    assert {task.target["wanted"][0]["match"] for task in replay.tasks.all()} == {"exact"}
    with pytest.raises(CommandError):
        call_command("import_tasks", replay.name, str(tmp_path / "rows.csv"), "--project", "acme", "--match", "soft")


def test_what_was_exported_comes_back_as_it_was(cast: Cast, build: Build, replay: Environment) -> None:
    forms: list[dict[str, Any]] = [
        RIGHT,
        {"calls": [LOOK, RIGHT], "order": "any"},
        {"ask": "Which Bako?"},
        {"avoid": [], "text": ""},
    ]
    for corrected, day in zip(forms, ("monday", "sunday", "easter", "never"), strict=True):
        talk = [replace(each, content=f"Meet Bako {day}") if each == RUN[3] else each for each in RUN]
        row = run(build, talk, metadata={"state": {"people": ["Bako"]}, "slice": "free"})
        make(cast, replay, failed(cast, row, corrected))
    take(cast, replay, {"prompt": "Capital?", "answer": "Paris"}, match="exact")
    replay.tasks.update(split=Split.TRAIN)
    take(cast, replay, {"prompt": "Which planet is red?", "answer": "Mars"})
    replay.tasks.filter(number=6).update(split=Split.HELD_OUT)
    task_set = freeze(environment=replay, name="all", actor=Actor(cast.builder))
    written = dict(FORMATS["nemo_gym"].files(exported(task_set, ["train", "held_out"])))
    rows = [json.loads(line) for line in written["tasks.jsonl"].splitlines()]
    there = environment(
        project=cast.project,
        name="there",
        actor=Actor(cast.builder),
        terms=Terms(kind="episode"),
        config={"tools": [*TOOLS, FIND]},
        verifier={"kind": "episode"},
    )
    report = take(cast, there, *rows)
    assert (report.made, report.unproved, report.left_out) == (5, 0, 1)
    assert report.sources == {"exported here": 6}

    def content(home: Environment) -> list[Any]:
        same = ("prompt", "state", "target", "cluster", "slice", "digest", "is_synthetic")
        return list(home.tasks.filter(number__lt=6).order_by("number").values_list(*same))

    assert content(there) == content(replay)
    assert take(cast, there, *rows).there == 5
    bare = environment(
        project=cast.project,
        name="bare",
        actor=Actor(cast.builder),
        terms=Terms(kind="episode"),
        config={"tools": []},
        verifier={"kind": "episode"},
    )
    assert {problem.field for problem in take(cast, bare, *rows).problems} == {"target.wanted", "split"}


def test_the_page_asks_how_answers_are_compared_and_shows_what_becomes_of_them(
    cast: Cast,
    replay: Environment,
    sign_in: Callable[..., Client],
    client: Client,
    key: Callable[..., dict[str, str]],
) -> None:
    browser, home = sign_in(cast.builder), reverse("environments:import_tasks", args=["acme", replay.name])
    assert "when their last number is the wanted one" in page_of(browser.get(home))
    file = SimpleUploadedFile("rows.csv", b"question,answer\nOne?,1\nTwo?,two\n")
    sent = browser.post(home, {"file": file, "match": "number"}).headers["Location"]
    assert sent.endswith("?match=number")
    page = page_of(browser.get(sent))
    assert "1 of 2 lines become tasks" in page
    assert "2 questions" in page
    assert "there is no number in &#x27;two&#x27;" in page
    assert browser.post(sent).status_code == 302
    assert replay.tasks.get().target["wanted"] == words("1", match="number")
    path = f"/api/v1/environments/{replay.name}/tasks/import?match=exact&preview=true"
    seen = client.post(path, b'{"prompt": "One?", "answer": "1"}', "application/x-ndjson", headers=key(Scope.BUILD))
    assert seen.json()["made"] == 1, "exactly is another task than by number"
    wrong = client.post(path.replace("exact", "soft"), b"{}", "application/x-ndjson", headers=key(Scope.BUILD))
    assert (wrong.status_code, "match" in wrong.json()["detail"]) == (422, True)


def test_good_rows_are_kept_whatever_a_bad_one_does(
    cast: Cast, replay: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = {"prompt": "Capital of France?", "answer": "Paris"}
    called = json.dumps([{"name": RIGHT["tool"], "arguments": {"q": "\0"}}])
    bad = [
        {"messages": [{"role": "user", "content": "x", "tool_calls": 5}], "answer": "y"},
        {"prompt": "NUL", "answer": called},
    ]
    found = take(cast, replay, *bad, good)
    assert (found.made, [problem.line for problem in found.problems]) == (1, [1, 2])
    assert "a database cannot keep" in found.problems[1].reason
    read = episode_rows.task_of

    def broken(row: Any, *given: Any) -> Any:
        return read(row, *given) if row["prompt"] == "Capital of Spain?" else 1 / 0

    monkeypatch.setattr(episode_rows, "task_of", broken)
    again = take(cast, replay, good, {**good, "prompt": "Capital of Spain?"})
    assert (again.made, str(again.problems[0])) == (1, "line 1: it cannot be read (ZeroDivisionError)")
