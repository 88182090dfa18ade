"""Pages of the room: create, change the verifier, make tasks of everything, freeze, look; and who may."""

import html
import io
import json
import re
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.environments import ledger
from flywheel.environments.models import Environment, Opening, Split, TaskSet
from flywheel.environments.versions import environment_versions
from flywheel.environments.versions.environment_terms import Terms
from flywheel.evals.models import EvalRun, Result
from flywheel.failures.labels.decisions import decide
from tests.conftest import TOOLS, Build, Cast
from tests.pages import page_of

pytestmark = pytest.mark.django_db
SignIn = Callable[[User], Client]
RIGHT = {"tool": "calendar.create_event", "arguments": {"person": "Bako", "day": "friday"}}
WEIGHTS = {"weight_valid_json": "0.1", "weight_tool": "0.2", "weight_arguments": "0.2", "weight_exact": "0.5"}


def url(name: str, *args: object) -> str:
    return reverse(f"environments:{name}", args=["acme", *args])


SINGLE = "/p/acme/environments/new/?kind=tool_call"


def test_an_empty_room_says_what_to_do(cast: Cast, sign_in: SignIn) -> None:
    assert "A builder can create the first one" in page_of(sign_in(cast.viewer).get(url("index")))
    assert url("create") in page_of(sign_in(cast.builder).get(url("index")))
    assert "No version to take tools from" in page_of(sign_in(cast.builder).get(SINGLE))


def test_where_no_version_is_one_is_made_from_what_production_sends(cast: Cast, sign_in: SignIn, build: Build) -> None:
    build.trajectory(agent=build.agent("support"))
    page = page_of(sign_in(cast.builder).get(SINGLE))
    assert reverse("trajectories:version_from_traffic", args=["acme", "support"]) in page


def test_an_environment_begins_with_what_a_version_has(cast: Cast, sign_in: SignIn, build: Build) -> None:
    version = build.version()
    sent = {
        "name": "mail",
        "version": str(version.pk),
        "held_out_share": "0.3",
        "reserved_slices": "nudge, plain",
        **WEIGHTS,
    }
    client = sign_in(cast.builder)
    answer = client.post(SINGLE, sent)
    assert (answer.status_code, answer["Location"]) == (302, url("environment", "mail"))
    made = Environment.objects.get()
    assert (made.agent, made.held_out_share, made.reserved_slices) == (version.agent, 0.3, ["nudge", "plain"])
    assert made.latest.config == {"tools": TOOLS}
    assert made.latest.verifier["weights"] == {"valid_json": 0.1, "tool": 0.2, "arguments": 0.2, "exact": 0.5}
    again = client.post(SINGLE, sent)
    assert again.status_code == 422
    assert "an environment &#x27;mail&#x27; already exists" in page_of(again)
    assert Environment.objects.count() == 1


def test_replay_comes_first_and_needs_nothing_but_recorded_runs(cast: Cast, sign_in: SignIn, build: Build) -> None:
    find: dict[str, Any] = {"name": "find", "parameters": {"type": "object"}}
    build.trajectory(tools=[find, {"name": 3}])
    build.trajectory(tools=[*TOOLS, find | {"description": "newer"}])
    client = sign_in(cast.builder)
    page = page_of(client.get(url("create")))
    assert (
        page.index("<b>Replay</b>")
        < page.index("<b>Tool call</b>")
        < page.index("Examples")
        < page.index("<b>Tic-tac-toe</b>")
    )
    assert "Any agent, tools from recorded runs" in page
    answer = client.post(url("create"), {"name": "again", "held_out_share": "0.3", "judged": "end"})
    assert (answer.status_code, answer["Location"]) == (302, url("environment", "again"))
    made = Environment.objects.get()
    names = [tool["name"] for tool in made.latest.config["tools"]]
    assert (made.kind, made.agent, made.latest.config["judged"]) == ("episode", None, "end")
    assert names == ["calendar.create_event", "calendar.delete_all", "email.send", "find"]
    assert next(tool for tool in made.latest.config["tools"] if tool["name"] == "find")["description"] == "newer"
    assert "Save as the next version" in page_of(client.get(url("environment", "again")))
    version = build.version()
    sent = {"name": "mine", "version": str(version.pk), "held_out_share": "0.3", "judged": "next"}
    assert client.post(url("create"), sent).status_code == 302
    mine = Environment.objects.get(name="mine")
    assert (mine.agent, mine.latest.config) == (version.agent, {"tools": version.tools, "judged": "next"})


def test_a_replays_user_may_have_a_script(cast: Cast, sign_in: SignIn, build: Build) -> None:
    client, version, line = sign_in(cast.builder), build.version(), {"say": "Friday.", "after": "Which day?"}
    sent = {"name": "played", "version": str(version.pk), "held_out_share": "0.3", "judged": "end", "user": "script"}
    wrong = client.post(url("create"), sent | {"script": json.dumps([line | {"when": 1}])})
    assert (wrong.status_code, "script.0.when: there is no such field" in page_of(wrong)) == (422, True)
    assert "not valid JSON" in page_of(client.post(url("create"), sent | {"script": "[{"}))
    assert client.post(url("create"), sent | {"script": json.dumps([line])}).status_code == 302
    made = Environment.objects.get()
    assert made.latest.config == {"tools": version.tools, "judged": "end", "user": "script", "script": [line]}
    assert "Which day?" in page_of(client.get(url("environment", "played")))


def test_what_is_left_in_a_field_that_does_not_count_is_not_kept(cast: Cast, sign_in: SignIn, build: Build) -> None:
    client, version = sign_in(cast.builder), build.version()
    left = {"user": "script", "script": '[{"say": "Friday."}]', "unknown": "python", "source": "def reset(seed): ..."}
    sent = {"version": str(version.pk), "held_out_share": "0.3", "simulator_model": "m", "server_base_url": "http://x"}
    for name, judged, kept in (("next", "next", {}), ("end", "end", {"unknown": "stub"})):
        answer = client.post(url("create"), sent | left | {"name": name, "judged": judged, "user": "replay"} | kept)
        assert answer.status_code == 302, page_of(answer)
        made = Environment.objects.get(name=name)
        assert made.latest.config == {"tools": version.tools, "judged": judged, **kept}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"name": "a b"}, "valid"),
        ({"held_out_share": "0"}, "greater than or equal to 0.05"),
        (dict.fromkeys(WEIGHTS, "0"), "At least one weight must be above 0"),
        ({"weight_tool": "-1"}, "greater than or equal to 0"),
        ({"version": "999999"}, "not one of the available choices"),
    ],
)
def test_a_form_that_does_not_fit_says_where(
    cast: Cast, sign_in: SignIn, build: Build, changed: dict[str, str], message: str
) -> None:
    sent = {"name": "mail", "version": str(build.version().pk), "held_out_share": "0.3", **WEIGHTS, **changed}
    answer = sign_in(cast.builder).post(SINGLE, sent)
    assert answer.status_code == 422
    assert message in page_of(answer)
    assert not Environment.objects.exists()


def test_new_weights_make_a_new_version_and_the_same_ones_none(cast: Cast, sign_in: SignIn, build: Build) -> None:
    environment = build.environment()
    sent = {"tools": json.dumps(TOOLS), **WEIGHTS}
    client = sign_in(cast.builder)
    client.post(url("make_version", "mail"), sent)
    assert environment.latest.number == 2
    assert environment.latest.verifier["weights"]["exact"] == 0.5
    page = page_of(client.post(url("make_version", "mail"), sent, follow=True))
    assert "No changes" in page
    assert environment.latest.number == 2


def test_tools_are_taken_in_a_providers_format(cast: Cast, sign_in: SignIn, build: Build) -> None:
    environment = build.environment()
    sent = {"tools": json.dumps([{"type": "function", "function": TOOLS[0]}]), **WEIGHTS}
    sign_in(cast.builder).post(url("make_version", "mail"), sent)
    (tool,) = environment.latest.config["tools"]
    assert tool == TOOLS[0]


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "at least one tool"),
        ('[{"a": 1}]', "needs a"),
        ('[{"name": "t", "parameters": {"type": 3}}]', "parameters"),
    ],
)
def test_tools_that_are_none_are_refused(cast: Cast, sign_in: SignIn, build: Build, tools: str, message: str) -> None:
    build.environment()
    answer = sign_in(cast.builder).post(url("make_version", "mail"), {"tools": tools, **WEIGHTS})
    assert answer.status_code == 422
    assert message in page_of(answer)


def test_all_failures_become_tasks_and_the_page_says_what_came_of_it(cast: Cast, sign_in: SignIn, build: Build) -> None:
    build.environment()
    row = build.trajectory(answer="{", metadata={"state": {"people": ["Bako"]}})
    decide(trajectory=row, actor=Actor(cast.reviewer), bucket="format_error", corrected=RIGHT)
    client = sign_in(cast.builder)
    assert "Make tasks of 1 failure" in page_of(client.get(url("environment", "mail")))
    page = page_of(client.post(url("make_all", "mail"), follow=True))
    assert "1 task made." in page
    assert "t-1" in page
    assert "Make tasks of" not in page


def test_tasks_are_filtered_by_the_address(cast: Cast, sign_in: SignIn, build: Build) -> None:
    for split in (Split.TRAIN, Split.HELD_OUT):
        build.task(split, prompt=f"in {split}", bucket="wrong_tool" if split == Split.TRAIN else "")
    client = sign_in(cast.viewer)
    for query, seen, unseen in (
        ("split=train", "in train", "in held_out"),
        ("bucket=wrong_tool", "in train", "in held_out"),
        ("split=held_out", "in held_out", "in train"),
        ("bucket=none", "held out, hidden", "in train"),
        ("proved=yes", "in train", "nowhere"),
    ):
        page = page_of(client.get(url("environment", "mail") + f"?{query}"))
        assert seen in page, query
        assert unseen not in page, query
    assert "No tasks match these filters" in page_of(client.get(url("environment", "mail") + "?proved=no"))


def test_a_choice_of_tasks_is_frozen_as_the_filters_show_it(cast: Cast, sign_in: SignIn, build: Build) -> None:
    old = build.task_set(train=2, held_out=3)
    new = [build.task(split) for split in (Split.TRAIN, Split.HELD_OUT, Split.HELD_OUT, Split.SEALED)]
    client = sign_in(cast.builder)
    page = page_of(client.get(url("environment", "mail") + "?fresh=yes"))
    assert "<b>1</b> train, <b>2</b> held-out: those" in page, "one sealed source would show nothing"
    assert '<input type="hidden" name="fresh" value="yes">' in page
    client.post(url("freeze", "mail"), {"name": "fresh", "fresh": "yes"})
    assert set(TaskSet.objects.get(name="fresh").tasks.all()) == set(new[:3])
    client.post(url("freeze", "mail"), {"name": "golden", "split": "held_out"})
    golden = TaskSet.objects.get(name="golden")
    assert set(golden.tasks.all()) == {*new[1:3], *old.tasks.filter(split=Split.HELD_OUT)}
    page = page_of(client.get(url("environment", "mail") + "?fresh=yes"))
    assert "None can be frozen" in page
    form = {"name": "none", "fresh": "yes"}
    shown = {"Referer": f"http://testserver{url('environment', 'mail')}?fresh=yes"}
    page = page_of(client.post(url("freeze", "mail"), form, follow=True, headers=shown))
    assert "Nothing was changed: " in page
    assert '<input type="hidden" name="fresh" value="yes">' in page
    page = page_of(client.get(url("environment", "mail")))
    assert "Freeze all proved tasks as" in page
    held_out = golden.tasks.count()
    assert f"train, <b>{held_out}</b> held-out: those" in page, "what will be in it is said before"


def test_freezing_leads_to_the_set_and_a_refusal_says_why(cast: Cast, sign_in: SignIn, build: Build) -> None:
    build.task(Split.TRAIN)
    client = sign_in(cast.builder)
    page = page_of(client.post(url("freeze", "mail"), {"name": "mail"}, follow=True))
    assert "Nothing was changed: no proved held-out task" in page
    build.task(Split.HELD_OUT)
    for _ in range(2):
        answer = client.post(url("freeze", "mail"), {"name": "mail"})
        assert answer["Location"] == url("task_set", "mail", 1)
    assert TaskSet.objects.count() == 1
    page = page_of(client.get(url("task_set", "mail", 1)))
    assert "✓ none" in page
    assert reverse("evals:new", args=["acme"]) + "?task_set=mail%401" in page


@pytest.fixture
def evaluated(cast: Cast, build: Build) -> EvalRun:
    """Two held-out tasks, two attempts each: one solved once, one unscored once."""
    task_set = build.task_set(train=1, held_out=2)
    run = EvalRun.objects.create(
        project=cast.project,
        idempotency_key=uuid.uuid4(),
        created_by=cast.builder,
        version=build.version(),
        task_set=task_set,
        samples=2,
        verifier_digest=task_set.environment_version.verifier_digest,
    )
    marks: list[list[Any]] = [[True, False], [False, None]]
    tasks = [member.task for member in task_set.members.filter(split=Split.HELD_OUT).order_by("task__number")]
    for task, both in zip(tasks, marks, strict=True):
        for sample, success in enumerate(both):
            score = None if success is None else float(success)
            Result.objects.create(
                run=run,
                task=task,
                sample=sample,
                seed=1,
                success=success,
                score=score,
                error="" if score is not None else "timed out",
            )
    return run


def test_results_show_on_task_set_and_environment(cast: Cast, sign_in: SignIn, evaluated: EvalRun) -> None:
    client = sign_in(cast.viewer)
    page = page_of(client.get(url("environment", "mail")))
    assert "25.0" in page
    task = evaluated.results.order_by("pk")[2].task
    page = page_of(client.get(url("task", "mail", task.number)))
    assert "1 unscored" in page
    assert "timed out" in page
    task_set = evaluated.task_set
    ledger.opened(task_set=task_set, kind=Opening.Kind.EVAL, subject=evaluated)
    page = page_of(client.get(url("task_set", task_set.name, task_set.version)))
    assert "1 time<" in page
    assert reverse("evals:run", args=["acme", evaluated.pk]) in page
    [listed] = client.get(url("index")).context["page"].items
    splits = [member.split for member in task_set.members.all()]
    assert (listed.train, listed.held_out) == (splits.count(Split.TRAIN), splits.count(Split.HELD_OUT))


def test_older_task_sets_are_reached_by_pages_and_by_their_environment(
    cast: Cast, sign_in: SignIn, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flywheel.environments.pages.environments.environment_views.SETS_AT_ONCE", 2)
    sets = [build.task_set(train=1, held_out=1) for _ in range(5)]
    client, mail = sign_in(cast.viewer), url("index") + "?environment=mail#sets"
    assert mail in page_of(client.get(url("environment", "mail")))
    other = build.task_set(train=1, held_out=1, name="other", environment=build.environment("other"))
    assert "All its task sets" not in page_of(client.get(url("environment", "other")))
    seen, address = [], "?environment=mail"
    while address:
        page = client.get(url("index") + address).context["page"]
        assert page.total == 5
        seen += page.items
        address = page.next
    assert seen == sets[::-1]
    assert client.get(url("index")).context["page"].items == [other, sets[-1]]
    assert client.get(url("index"), {"cursor": "nonsense"}).status_code == 302


def test_who_may_look_and_who_may_build(cast: Cast, sign_in: SignIn, build: Build) -> None:
    task_set = build.task_set()
    task = task_set.tasks.first()
    assert task is not None
    pages = [
        url("index"),
        url("environment", "mail"),
        url("task", "mail", task.number),
        url("task_set", task_set.name, task_set.version),
    ]
    for page in pages:
        assert sign_in(cast.viewer).get(page).status_code == 200
        assert sign_in(cast.stranger).get(page).status_code == 404
    verbs = [
        url("create"),
        url("make_version", "mail"),
        url("make_all", "mail"),
        url("freeze", "mail"),
        url("retire", "mail", task.number),
    ]
    for verb in verbs:
        assert sign_in(cast.reviewer).post(verb).status_code == 403
        assert sign_in(cast.stranger).post(verb).status_code == 404
    page = page_of(sign_in(cast.reviewer).get(url("environment", "mail")))
    assert "Save as the next version" not in page
    assert url("freeze", "mail") not in page


def test_what_is_not_there_is_not_there(cast: Cast, sign_in: SignIn, build: Build) -> None:
    build.task()
    client = sign_in(cast.viewer)
    for page in (url("environment", "x"), url("task", "mail", 99), url("task_set", "mail", 99)):
        assert client.get(page).status_code == 404
    assert client.get(url("environment", "mail") + "?cursor=zzz").status_code == 302


def test_retiring_by_click(cast: Cast, sign_in: SignIn, build: Build) -> None:
    task = build.task()
    client = sign_in(cast.builder)
    page = page_of(client.post(url("retire", "mail", task.number), {"reason": ""}, follow=True))
    assert "reason: enter the reason" in page
    page = page_of(client.post(url("retire", "mail", task.number), {"reason": "ambiguous"}, follow=True))
    assert "is left out of new task sets" in page
    assert "retired" in page_of(client.get(url("environment", "mail") + "?retired=yes"))


def test_a_page_of_tasks_costs_the_same_however_many(
    cast: Cast, sign_in: SignIn, build: Build, django_assert_max_num_queries: Any
) -> None:
    for _ in range(60):
        build.task()
    client = sign_in(cast.builder)
    client.get(url("environment", "mail"))
    with django_assert_max_num_queries(42):
        client.get(url("environment", "mail"))


def database(people: int) -> dict[str, Any]:
    row = {"name": "Ada </textarea>", "email": "ada@atlas.com", "phone": "", "team": "Sales"}
    return {"contacts": [{"contact_id": str(number).zfill(8), **row} for number in range(people)], "calendar": []}


@pytest.fixture
def office(cast: Cast) -> Environment:
    """A workplace with a database of 15 kB."""
    config = {"max_turns": 9, "system_prompt": "Be brief. " * 1000, "database": database(100)}
    return environment_versions.environment(
        project=cast.project,
        name="office",
        actor=Actor(cast.builder),
        config=config,
        verifier={"kind": "workplace"},
        terms=Terms("workplace"),
    )


def settings_of(page: str) -> dict[str, Any]:
    """What the textarea of the settings holds."""
    text = re.search(r'<textarea name="config".*?>(.*?)</textarea>', page, re.DOTALL)
    assert text is not None
    found = json.loads(html.unescape(text[1]))
    assert isinstance(found, dict)
    return found


def test_a_large_setting_is_not_written_into_the_page_and_stays_as_it_is(
    office: Environment, cast: Cast, sign_in: SignIn
) -> None:
    client, before = sign_in(cast.builder), office.latest.config
    page = page_of(client.get(url("environment", "office")))
    shown = settings_of(page)
    assert set(shown) == {"max_turns", "system_prompt"}, "a long text is still written by hand"
    assert len(page) < 60_000
    assert "ada@atlas.com" not in page
    assert "2 names: calendar, contacts" in page
    sent = {"config": json.dumps(shown), "verifier": '{"kind": "workplace"}'}
    told = page_of(client.post(url("make_version", "office"), sent, follow=True))
    assert "No changes: office@1 already has this content" in told
    client.post(url("make_version", "office"), sent | {"config": '{"max_turns": 5}'})
    assert office.latest.config == {"max_turns": 5, "database": before["database"]}


def test_a_large_setting_is_downloaded_and_replaced_by_a_file_or_left_out(
    office: Environment, cast: Cast, sign_in: SignIn
) -> None:
    client, verifier = sign_in(cast.builder), '{"kind": "workplace"}'
    answer: Any = client.get(url("setting", "office", 1), {"name": "database"})
    assert answer["Content-Disposition"] == 'attachment; filename="office@1-database.json"'
    assert json.loads(b"".join(answer.streaming_content)) == office.latest.config["database"]
    answer = client.get(url("setting", "office", 1))
    assert answer["Content-Disposition"] == 'attachment; filename="office@1-settings.json"'
    assert json.loads(b"".join(answer.streaming_content)) == office.latest.config
    for number, name in ((1, "nothing"), (2, "database")):
        assert client.get(url("setting", "office", number), {"name": name}).status_code == 404
    given = io.BytesIO(json.dumps(database(101)).encode())
    given.name = "database.json"
    client.post(url("make_version", "office"), {"config": "{}", "verifier": verifier, "file-database": given})
    assert office.latest.config == {"database": database(101)}
    client.post(url("make_version", "office"), {"config": "{}", "verifier": verifier, "without-database": "on"})
    assert office.latest.config == {}
    here = json.dumps({"database": database(50)})
    client.post(url("make_version", "office"), {"config": here, "verifier": verifier})
    assert office.latest.config == {"database": database(50)}, "a first one is named in the settings"
    here = json.dumps({"database": {"contacts": []}})
    client.post(url("make_version", "office"), {"config": here, "verifier": verifier})
    assert office.latest.config == {"database": {"contacts": []}}, "and so is another in its place"


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ({"file-database": b"{"}, "not valid JSON"),
        ({"file-database": b"\xff"}, "the file is not UTF-8 text"),
        ({"file-database": b"null"}, "null is no setting"),
        ({"file-database": b'{"contacts": "\\u0000"}'}, "it holds a NUL character"),
        ({"file-database": b'{"contacts": [{"name": "x"}]}'}, "database: rows of &#x27;contact_id&#x27; are missing"),
        (
            {"file-database": b"{}", "without-database": "on"},
            "database: replace it, leave it out, or name it in the settings: one",
        ),
        (
            {"file-database": b"{}", "config": '{"database": {}}'},
            "database: replace it, leave it out, or name it in the settings: one",
        ),
        ({"config": '{"max_turns": 1}'}, "max_turns: 1 is not"),
        ({"config": '{"now": "\\u0000"}'}, "it holds a NUL character"),
        ({"config": "{"}, "not valid JSON"),
    ],
)
def test_a_setting_that_is_none_is_refused_by_its_name(
    office: Environment, cast: Cast, sign_in: SignIn, sent: dict[str, Any], said: str
) -> None:
    data = {"config": "{}", "verifier": '{"kind": "workplace"}'} | {
        name: SimpleUploadedFile("given.json", value) if isinstance(value, bytes) else value
        for name, value in sent.items()
    }
    answer = sign_in(cast.builder).post(url("make_version", "office"), data)
    assert answer.status_code == 422
    assert said in page_of(answer)
    assert office.latest.number == 1
