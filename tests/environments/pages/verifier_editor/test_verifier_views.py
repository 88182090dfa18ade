"""The editor of a verifier and its API: drafts that travel, errors at their fields, versions, nothing for others."""

import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.template.loader import render_to_string
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Scope, User
from flywheel.accounts.project_settings.gateway_upstream import set_upstream
from flywheel.core.verifiers import NO_RUNNERS, VerifierError, rubric_parts
from flywheel.core.verifiers.rubric import read
from flywheel.environments.models import (
    Environment,
    EnvironmentVersion,
    Opening,
    Proving,
    Split,
    Task,
    TaskSetMember,
    Trial,
)
from flywheel.environments.pages.verifier_editor.verifier_forms import Draft
from flywheel.environments.proofs.proof_jobs import forget_spoiled, waiting
from flywheel.environments.versions import environment_versions, trials
from flywheel.evals.models import EvalRun, Result
from flywheel.failures.labels.decisions import decide
from flywheel.trajectories.models import Source, Trajectory
from tests.conftest import TOOLS, Build, Cast
from tests.edge.posting import posted
from tests.pages import page_of
from tests.workers.judging.test_attempt_verdicts import recorded

pytestmark = pytest.mark.django_db
SignIn = Callable[[User], Client]
Keys = Callable[..., dict[str, str]]

PARTS: list[dict[str, Any]] = [
    {"type": "environment", "name": "effect", "weight": 2, "part": "tool"},
    {
        "type": "exact",
        "name": "day",
        "weight": 1,
        "read": "last_call",
        "path": "arguments.day",
        "target": "arguments.day",
    },
    {
        "type": "judge",
        "name": "fitting",
        "weight": 1,
        "criteria": "It books what was asked.\n\nNothing else.",
        "endpoint": "vllm",
        "model": "m-1",
        "sees": "episode",
        "target": ".",
        "top": 2,
        "votes": 3,
        "anchors": "0 = no\n2 = yes",
        "canaries": "I will.\n\nDone!",
    },
    {"type": "regex", "name": "polite", "weight": 0, "read": "answer", "pattern": "(?i)please|thanks", "must": "lack"},
    {"type": "json_schema", "name": "shape", "weight": 1, "read": "answer", "schema": {"type": "object"}},
    {"type": "number", "name": "short", "weight": 0.5, "required": True, "read": "steps", "most": 1},
    {"type": "text", "name": "city", "weight": 1, "path": "city", "value": "42", "compare": "contain"},
    {"type": "similarity", "name": "alike", "weight": 1, "target": "answer", "metric": "bleu", "least": 0.5},
    {"type": "tool_call", "name": "call", "weight": 1, "read": "any_call", "target": ".", "arguments": "least"},
    {"type": "python", "name": "code", "weight": 3, "source": "def verify(trace, target):\n    return 1.0\n"},
]


def sent(parts: list[dict[str, Any]], **more: str) -> dict[str, str]:
    """What the browser sends for these parts, each value as text."""
    data = {"parts": str(len(parts)), "key": str(uuid.uuid4()), "tasks": "", "rollouts": "0", **more}
    for number, part in enumerate(parts):
        for key, value in part.items():
            if key == "required":
                data[f"p{number}-required"] = "on"
            else:
                data[f"p{number}-{key}"] = value if isinstance(value, str) else json.dumps(value)
    return data


def at(environment: Environment) -> str:
    return reverse("environments:verifier", args=[environment.project.slug, environment.name])


def test_a_draft_is_the_rubric_that_it_was_read_from(build: Build) -> None:
    parts = [*PARTS, {"type": "reward_model", "name": "liked", "weight": 1, "model": "likes@2", "least": 0.75}]
    spec = {"kind": "rubric", "parts": parts}
    version = EnvironmentVersion(environment=build.environment(), number=2, config={}, verifier=spec)
    draft = Draft.of(version, [4, 7])
    assert read(draft.spec) == read(spec)
    assert draft.numbers == [4, 7]
    assert read(Draft.read(sent(parts)).spec) == read(spec)
    judging = {name for name, kind in rubric_parts.PARTS.items() if not kind.only_shapes}
    assert {line.type for line in draft.lines} == judging - {"state"}


def test_the_weights_of_a_kind_are_kept_by_the_editor(build: Build) -> None:
    weights = {"exact": 1.0, "tool": 0.0, "arguments": 0.1234567}
    version = EnvironmentVersion(
        environment=build.environment(), number=2, config={}, verifier={"kind": "tool_call", "weights": weights}
    )
    parts = Draft.of(version, []).spec["parts"]
    assert [(part["type"], part["part"], part["weight"]) for part in parts] == [
        ("environment", "exact", 1.0),
        ("environment", "arguments", 0.1234567),
    ]


def test_the_editor_opens_with_what_judges_now(build: Build, cast: Cast, sign_in: SignIn) -> None:
    text = page_of(sign_in(cast.builder).get(at(build.environment())))
    assert 'value="effect"' in text
    assert "Environment&#x27;s own" in text


def test_parts_are_added_moved_and_removed_without_losing_what_was_written(
    build: Build, cast: Cast, sign_in: SignIn
) -> None:
    client, address = sign_in(cast.builder), at(build.environment())
    two = [PARTS[1], PARTS[3]]
    text = page_of(client.post(address, sent(two, do="add", kind="python")))
    assert rubric_parts.EXAMPLE.splitlines()[0] in text
    assert text.index('value="day"') < text.index('value="polite"') < text.index('value="python"')
    text = page_of(client.post(address, sent(two, do="up-1")))
    assert text.index('value="polite"') < text.index('value="day"')
    text = page_of(client.post(address, sent(two, do="remove-0")))
    assert 'value="day"' not in text
    assert "(?i)please|thanks" in text
    for odd in ("remove-99", "up--1", "down-x", "nothing", ""):
        assert client.post(address, sent(two, do=odd)).status_code == 200


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"type": "regex", "name": "r", "weight": 1, "pattern": "(a"}, "missing )"),
        ({"type": "exact", "name": "e", "weight": 1, "value": "{"}, "not valid JSON"),
        (
            {"type": "exact", "name": "e", "weight": "much", "value": "1"},
            "&#x27;much&#x27; is not a number below 1e+300",
        ),
        ({"type": "json_schema", "name": "s", "weight": 1, "schema": '{"type": "strin"}'}, "type: &#x27;strin&#x27;"),
        ({"type": "python", "name": "p", "weight": 1, "source": "def verify(:"}, "line 1: "),
        ({"type": "state", "name": "s", "weight": 1}, "this environment keeps no state"),
    ],
)
@pytest.mark.parametrize("do", ["try", "save"])
def test_what_is_wrong_is_said_at_its_field_and_nothing_is_saved(
    build: Build, cast: Cast, sign_in: SignIn, part: dict[str, Any], words: str, do: str
) -> None:
    environment = build.environment()
    build.task(environment=environment)
    answer = sign_in(cast.builder).post(at(environment), sent([part], do=do))
    text = page_of(answer)
    assert answer.status_code == 422
    assert words in text[text.index("errors") :]
    assert "note bad" not in text
    assert (environment.versions.count(), Trial.objects.count()) == (1, 0)


def test_the_page_sends_back_what_it_shows_and_nothing_is_changed(build: Build, cast: Cast, sign_in: SignIn) -> None:
    client, address = sign_in(cast.builder), at(build.environment())
    first = posted(client.post(address, sent(PARTS, do="")).text)
    again = posted(client.post(address, {**first, "do": ""}).text)
    fresh = {"key": "", "csrfmiddlewaretoken": ""}
    assert again | fresh == first | fresh
    assert read(Draft.read(first).spec) == read({"kind": "rubric", "parts": PARTS})
    version = EnvironmentVersion(
        environment=build.environment(), number=2, config={}, verifier={"kind": "rubric", "parts": PARTS}
    )
    draft = Draft.of(version, [])
    assert draft.spec["parts"][5] == {"type": "number", "name": "short", "weight": 0.5, "required": True,
                                      "read": "steps", "most": 1}  # fmt: skip


@pytest.mark.parametrize(
    ("part", "field", "words"),
    [
        ({"type": "number", "name": "n", "weight": 1, "most": "9" * 4400}, "most", "is not a number below 1e+300"),
        ({"type": "number", "name": "n", "weight": 1, "most": "much"}, "most", "'much' is not a number below 1e+300"),
        ({"type": "number", "name": "n", "weight": 1, "most": "nan"}, "most", "is not a number below 1e+300"),
        (
            {"type": "exact", "name": "e", "weight": 1, "value": "[1"},
            "value",
            "not valid JSON: Expecting ',' delimiter",
        ),
        ({"type": "exact", "name": "e", "weight": 1, "value": "[" * 9000}, "value", "not valid JSON: "),
        (
            {"type": "regex", "name": "r", "weight": 1, "pattern": "a", "must": "x"},
            "must",
            "'x' is unknown; use one of",
        ),
        ({"type": "exact", "name": "e", "weight": 1}, "target", "expected a key of the target, or else a value"),
        ({"type": "exact", "name": "E!", "weight": 1, "value": "1"}, "name", "'E!' is not of the form right_tool"),
        ({"type": "exact", "name": "e", "weight": "", "value": "1"}, "", "at least one weight must be above 0"),
    ],
)
def test_what_is_wrong_stays_as_it_was_written_beside_its_field(part: dict[str, Any], field: str, words: str) -> None:
    draft = Draft.read(sent([part]))
    with pytest.raises(VerifierError) as raised:
        read(draft.spec)
    assert words in str(raised.value)
    draft.refuse(raised.value)
    assert draft.focus == (f"p0-{field}" if field else "")
    assert bool(draft.problem) == (not field)
    page = render_to_string("environments/_verifier_part.html", {"line": draft.lines[0], "draft": draft})
    assert page.count('class="errors"') == bool(field)
    if field and part.get(field) and field != "must":
        assert posted(page)[f"p0-{field}"] == part[field]


def test_a_setting_that_is_left_empty_is_left_out(build: Build) -> None:
    (row,) = Draft.read(
        sent([{"type": "exact", "name": " ", "weight": 2, "value": " 1.50 ", "path": " ", "target": ""}])
    ).spec["parts"]
    assert row == {"type": "exact", "name": "exact", "weight": 2, "value": 1.5}
    (row,) = Draft.read(
        sent([{"type": "exact", "name": "e", "weight": "1e1", "value": "null", "ignore_case": "on"}])
    ).spec["parts"]
    assert row == {"type": "exact", "name": "e", "weight": 10, "value": None, "ignore_case": True}


def test_saving_makes_the_next_version_and_proves_at_once_what_is_pure(
    build: Build, cast: Cast, sign_in: SignIn
) -> None:
    task = recorded(build.task())
    environment = task.environment
    client, pure = sign_in(cast.builder), [PARTS[-2] | {"read": "calls", "arguments": "same"}]
    answer = client.post(at(environment), sent(pure, do="save"))
    assert answer.status_code == 302
    made = environment.latest
    assert (made.number, made.verifier["parts"][0]["name"]) == (2, "call")
    task.refresh_from_db()
    assert (task.is_proved, task.proof["environment_version"]) == (True, "mail@2")
    assert Proving.objects.count() == 0
    client.post(at(environment), sent(pure, do="save"))
    assert environment.versions.count() == 2, "the same verifier again is the same version"
    page = page_of(client.get(reverse("environments:environment", args=[environment.project.slug, "mail"])))
    assert "Edit the verifier" in page
    assert "weight_exact" not in page, "the kind's weights have no say in a rubric"


def test_saving_python_leaves_the_proofs_to_a_worker(build: Build, cast: Cast, sign_in: SignIn) -> None:
    task = recorded(build.task())
    client = sign_in(cast.builder)
    client.post(at(task.environment), sent(PARTS[-1:], do="save"))
    task.refresh_from_db()
    assert not task.is_proved
    assert Proving.objects.get().environment == task.environment
    place = [task.environment.project.slug, "mail"]
    assert "Tasks waiting for a worker" in page_of(client.get(reverse("environments:environment", args=place)))
    Proving.objects.all().delete()
    assert "not proved under mail@2 yet" in page_of(client.get(reverse("environments:environment", args=place)))
    client.post(reverse("environments:prove", args=place))
    client.post(reverse("environments:prove", args=place))
    assert Proving.objects.count() == 1, "a double click makes one"


def test_a_proof_that_is_only_begun_or_that_the_machine_spoiled_waits_for_a_worker(build: Build, cast: Cast) -> None:
    task = recorded(build.task())
    environment = task.environment
    begun = {"recorded": task.proof["recorded"], "is_failure": True, "checks": []}
    type(task).objects.filter(pk=task.pk).update(proof=begun, is_proved=False)
    assert list(waiting(environment, environment.latest)) == [task]
    made = begun | {"environment_version": str(environment.latest), "checks": [{"cause": "refused", "passed": False}]}
    type(task).objects.filter(pk=task.pk).update(proof=made)
    assert list(waiting(environment, environment.latest)) == []
    forget_spoiled(environment)
    assert list(waiting(environment, environment.latest)) == [task]


def test_other_settings_of_the_environment_keep_the_rubric(build: Build, cast: Cast, sign_in: SignIn) -> None:
    environment = build.environment()
    spec = {"kind": "rubric", "parts": [PARTS[-2]]}
    config = {"tools": TOOLS}
    environment_versions.environment_version(
        environment=environment, actor=Actor(cast.builder), config=config, verifier=spec
    )
    address = reverse("environments:make_version", args=[environment.project.slug, "mail"])
    sign_in(cast.builder).post(address, {"tools": json.dumps(TOOLS[:1])})
    assert (environment.latest.number, environment.latest.verifier) == (3, spec)


def test_trying_asks_a_worker_and_a_double_click_makes_one(build: Build, cast: Cast, sign_in: SignIn) -> None:
    task = build.task()
    client, data = sign_in(cast.builder), sent(PARTS[-1:], do="try", tasks=f"t-{task.number}")
    text = page_of(client.post(at(task.environment), data))
    client.post(at(task.environment), data)
    trial = Trial.objects.get()
    assert (trial.tasks, trial.verifier["parts"][0]["type"]) == ([task.number], "python")
    assert reverse("environments:trial", args=[cast.project.slug, trial.pk]) in text
    for tasks, words in (("t-999999", "no task t-999999"), ("x", "is not of the form t-12")):
        answer = client.post(at(task.environment), sent(PARTS[-1:], do="try", tasks=tasks))
        assert (answer.status_code, words in page_of(answer)) == (422, True)


def test_only_builders_of_the_project_edit(build: Build, cast: Cast, sign_in: SignIn) -> None:
    address = at(build.environment())
    assert sign_in(cast.reviewer).get(address).status_code == 403
    assert sign_in(cast.stranger).get(address).status_code == 404


def test_a_program_composes_tries_and_asks_for_proofs(build: Build, cast: Cast, client: Client, key: Keys) -> None:
    task = recorded(build.task())
    headers = key("read", "build", by=cast.builder)
    types = client.get("/api/v1/verifier-parts", headers=headers).json()
    assert [row["type"] for row in types["items"]] == list(rubric_parts.PARTS)
    assert types["causes"]["timeout"] == "timed out"
    required = {
        row["type"]: [each["name"] for each in row["settings"] if each["is_required"]] for row in types["items"]
    }
    assert (required["regex"], required["judge"], required["exact"]) == (["pattern"], ["criteria", "model"], [])

    def post(path: str, body: dict[str, Any]) -> Any:
        return client.post(f"/api/v1/environments/mail/{path}", body, content_type="application/json", headers=headers)

    spec = {"kind": "rubric", "parts": [PARTS[-1]]}
    wrong = {"kind": "rubric", "parts": [{"type": "regex", "pattern": "("}]}
    for path in ("trials", "versions"):
        answer = post(path, {"verifier": wrong})
        assert (answer.status_code, answer.json()["detail"]) == (422, "parts.0.pattern: missing ): (")
    assert post("trials", {"verifier": {"kind": "tool_call"}}).status_code == 422
    tried = post("trials", {"verifier": spec, "tasks": [task.number]})
    assert tried.status_code == 202
    assert client.get(f"/api/v1/trials/{tried.json()['id']}", headers=headers).json()["state"] == "queued"
    made = post("versions", {"verifier": spec}).json()
    assert (made["number"], made["verifier"]) == (2, spec)
    proofs = client.get("/api/v1/environments/mail/proofs", headers=headers).json()
    assert (proofs["state"], proofs["waiting"]) == ("queued", 1)
    assert post("proofs", {}).json()["id"] == proofs["id"]


def test_a_judge_is_composed_without_json_and_refused_at_its_fields(
    build: Build, cast: Cast, sign_in: SignIn, key: Keys
) -> None:
    environment, client = build.environment(), sign_in(cast.builder)
    page = client.post(at(environment), sent([], do="add", kind="judge"))
    for name, value in (("top", "1"), ("votes", "1")):
        assert f'name="p0-{name}" value="{value}"' in page_of(page)
    part = {**PARTS[2], "endpoint": "upstream", "criteria": " "}
    page = client.post(at(environment), sent([part], do="save"))
    assert page.status_code == 422
    assert "expected a text" in page_of(page)
    part["criteria"] = "It books.\r\n\r\n<script>alert(1)</script>"
    page = client.post(at(environment), sent([part], do="save"))
    assert "this project has no upstream" in page_of(page)
    assert "<script>alert(1)" not in page_of(page)
    set_upstream(project=cast.project, actor=Actor(cast.admin), base_url="http://127.0.0.1:9/v1")
    assert client.post(at(environment), sent([part], do="save")).status_code == 302
    (kept,) = environment.latest.verifier["parts"]
    assert kept["criteria"] == "It books.\n\n<script>alert(1)</script>"
    assert (kept["top"], kept["votes"], kept["canaries"]) == (2, 3, "I will.\n\nDone!")
    types = client.get("/api/v1/verifier-parts", headers=key(Scope.READ)).json()
    assert next(each for each in types["items"] if each["type"] == "judge")["needs"] == "judge"


def rollout(build: Build, task: Task, split: str = Split.TRAIN) -> Trajectory:
    """An attempt of an eval at the task."""
    run = EvalRun.objects.create(
        project=build.cast.project,
        created_by=build.cast.trainer,
        version=build.version(),
        task_set=build.task_set(environment=task.environment),
        split=split,
    )
    row = build.trajectory(task.prompt, "Sorry, no.", source=Source.ROLLOUT)
    Result.objects.create(run=run, task=task, sample=0, seed=0, trajectory=row, score=0.25)
    return row


SORRY = {"kind": "rubric", "parts": [{"type": "regex", "name": "sorry", "weight": 1, "pattern": "Sorry"}]}


def test_a_verifier_is_tried_on_trajectories_by_their_ids(build: Build, cast: Cast) -> None:
    asked, made, other = recorded(build.task()), recorded(build.task()), recorded(build.task())
    attempt, newer = rollout(build, asked), rollout(build, asked)
    source, alike = build.trajectory(answer="Sorry!"), build.trajectory(answer="Yes.")
    Task.objects.filter(pk=made.pk).update(source=source)
    made.also.add(decide(trajectory=alike, actor=Actor(cast.reviewer), bucket="wrong_tool"))
    named = [attempt.trace_id, source.trace_id, alike.trace_id]
    trial = trials.submit(
        environment=asked.environment,
        verifier=SORRY,
        actor=Actor(cast.builder),
        key=uuid.uuid4(),
        rollouts=0,
        trajectories=[*named, named[0]],
    )
    assert (trial.tasks, trial.trajectories) == ([asked.number, made.number], named)
    of_asked, of_made = trials.reports(trial, NO_RUNNERS)
    told = [(row["trace_id"], row["score"], row["before"]) for row in of_asked["rows"] if row["trace_id"]]
    assert told == [(attempt.trace_id, 1.0, 0.25)]
    told = [(row["trace_id"], row["score"], row["before"]) for row in of_made["rows"] if row["trace_id"]]
    assert sorted(told, key=str) == sorted([(source.trace_id, 1.0, None), (alike.trace_id, 0.0, None)], key=str)
    trial.rollouts = 5
    (shown, _) = trials.reports(trial, NO_RUNNERS)
    assert [row["trace_id"] for row in shown["rows"] if row["trace_id"]] == [attempt.trace_id, newer.trace_id]
    assert not Opening.objects.exists()
    held_out = rollout(build, build.task(Split.HELD_OUT), Split.HELD_OUT)
    task_set = build.task_set(held_out=0)
    TaskSetMember.objects.create(task_set=task_set, task=held_out.result.task, split=Split.HELD_OUT)
    more: dict[str, Any] = {"environment": other.environment, "verifier": SORRY, "actor": Actor(cast.builder)}
    trials.submit(**more, key=uuid.uuid4(), trajectories=[held_out.trace_id])
    assert task_set.openings.get().actor == cast.builder


def test_trajectories_that_nobody_knows_what_is_right_for_are_refused(
    build: Build, cast: Cast, sign_in: SignIn, client: Client, key: Keys
) -> None:
    task = recorded(build.task())
    loose, elsewhere = build.trajectory(), build.trajectory(project=cast.elsewhere)
    sealed = build.trajectory()
    build.task(Split.SEALED, source=sealed)
    foreign = rollout(build, build.task(environment=build.environment("other")))
    builder = sign_in(cast.builder)
    for named, words in (
        (loose.trace_id, f"{loose.trace_id} is neither a rollout of a task of mail nor was one made of it"),
        (foreign.trace_id, f"{foreign.trace_id} is neither a rollout of a task of mail"),
        (elsewhere.trace_id, "is the id of none in this project"),
        ("<script>", "&#x27;&lt;script&gt;&#x27; is the id of none in this project"),
        (sealed.trace_id, "is sealed: only a candidate"),
        (" ".join(["x"] * 21), "trajectories: 21 are too many; 20 are the most"),
    ):
        page = builder.post(at(task.environment), sent(PARTS[4:5], do="try", trajectories=named))
        assert (page.status_code, words in page_of(page)) == (422, True), words
    body = {"verifier": SORRY, "trajectories": [loose.trace_id]}
    headers = key("read", "build", by=cast.builder)
    address = "/api/v1/environments/mail/trials"
    answer = client.post(address, body, content_type="application/json", headers=headers)
    assert (answer.status_code, answer.json()["detail"].partition(":")[0]) == (422, "trajectories")
    Task.objects.filter(pk=task.pk).update(source=loose)
    assert client.post(address, body, content_type="application/json", headers=headers).status_code == 202
    assert Trial.objects.get().trajectories == [loose.trace_id]


def test_the_page_of_a_trajectory_leads_to_a_trial_of_it(build: Build, cast: Cast, sign_in: SignIn) -> None:
    task, source = build.task(), build.trajectory()
    Task.objects.filter(pk=task.pk).update(source=source)
    for row, page in ((source, "environments:make"), (rollout(build, task), "trajectories:detail")):
        address = f"{at(task.environment)}?trajectory={row.trace_id}"
        leading = reverse(page, args=["acme", row.trace_id])
        assert address in page_of(sign_in(cast.builder).get(leading))
        assert address not in page_of(sign_in(cast.reviewer).get(leading))
        editor = page_of(sign_in(cast.builder).get(address))
        assert f'name="trajectories" value="{row.trace_id}"' in editor
        assert 'name="tasks" value=""' in editor, "this one alone, unless others are named"
