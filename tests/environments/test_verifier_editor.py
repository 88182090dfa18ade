"""The editor of a verifier and its API: drafts that travel, errors at their fields, versions, nothing for others."""

import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.models import Scope, User
from flywheel.accounts.upstream import set_upstream
from flywheel.core.verifiers.parts import TYPES
from flywheel.core.verifiers.rubric import read
from flywheel.environments import make
from flywheel.environments.models import Environment, EnvironmentVersion, Proving, Trial
from flywheel.environments.proving import forget_spoiled, waiting
from flywheel.environments.verifier_forms import SOURCE, Draft
from tests.conftest import SYSTEM, TOOLS, Build, Cast
from tests.workers.test_python_verifier import recorded

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
    spec = {"kind": "rubric", "parts": PARTS}
    version = EnvironmentVersion(environment=build.environment(), number=2, config={}, verifier=spec)
    draft = Draft.of(version, [4, 7])
    assert read(draft.spec) == read(spec)
    assert draft.numbers == [4, 7]
    assert read(Draft.read(sent(PARTS)).spec) == read(spec)
    assert {line.type for line in draft.lines} == set(TYPES) - {"state"}


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
    text = sign_in(cast.builder).get(at(build.environment())).content.decode()
    assert 'value="effect"' in text
    assert "Environment&#x27;s own" in text


def test_parts_are_added_moved_and_removed_without_losing_what_was_written(
    build: Build, cast: Cast, sign_in: SignIn
) -> None:
    client, address = sign_in(cast.builder), at(build.environment())
    two = [PARTS[1], PARTS[3]]
    text = client.post(address, sent(two, do="add", kind="python")).content.decode()
    assert SOURCE.splitlines()[0] in text
    assert text.index('value="day"') < text.index('value="polite"') < text.index('value="python"')
    text = client.post(address, sent(two, do="up-1")).content.decode()
    assert text.index('value="polite"') < text.index('value="day"')
    text = client.post(address, sent(two, do="remove-0")).content.decode()
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
    text = answer.content.decode()
    assert answer.status_code == 422
    assert words in text[text.index("errors") :]
    assert "note bad" not in text
    assert (environment.versions.count(), Trial.objects.count()) == (1, 0)


def test_saving_makes_the_next_version_and_proves_at_once_what_is_pure(
    build: Build, cast: Cast, sign_in: SignIn
) -> None:
    task = recorded(build.task())
    environment = task.environment
    client, pure = sign_in(cast.builder), [PARTS[-2] | {"arguments": "same"}]
    answer = client.post(at(environment), sent(pure, do="save"))
    assert answer.status_code == 302
    made = environment.latest
    assert (made.number, made.verifier["parts"][0]["name"]) == (2, "call")
    task.refresh_from_db()
    assert (task.is_proved, task.proof["environment_version"]) == (True, "mail@2")
    assert Proving.objects.count() == 0
    client.post(at(environment), sent(pure, do="save"))
    assert environment.versions.count() == 2, "the same verifier again is the same version"
    page = client.get(reverse("environments:environment", args=[environment.project.slug, "mail"])).content.decode()
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
    assert "Tasks wait for a worker" in client.get(reverse("environments:environment", args=place)).content.decode()
    Proving.objects.all().delete()
    assert "not proved under mail@2 yet" in client.get(reverse("environments:environment", args=place)).content.decode()
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
    config = {"system_prompt": SYSTEM, "tools": TOOLS}
    make.environment_version(environment=environment, actor=cast.builder, config=config, verifier=spec)
    address = reverse("environments:make_version", args=[environment.project.slug, "mail"])
    sign_in(cast.builder).post(address, {"system_prompt": "Be short.", "tools": json.dumps(TOOLS)})
    assert (environment.latest.number, environment.latest.verifier) == (3, spec)


def test_trying_asks_a_worker_and_a_double_click_makes_one(build: Build, cast: Cast, sign_in: SignIn) -> None:
    task = build.task()
    client, data = sign_in(cast.builder), sent(PARTS[-1:], do="try", tasks=f"t-{task.number}")
    text = client.post(at(task.environment), data).content.decode()
    client.post(at(task.environment), data)
    trial = Trial.objects.get()
    assert (trial.tasks, trial.verifier["parts"][0]["type"]) == ([task.number], "python")
    assert reverse("environments:trial", args=[cast.project.slug, trial.pk]) in text
    for tasks, words in (("t-999999", "no task t-999999"), ("x", "is not of the form t-12")):
        answer = client.post(at(task.environment), sent(PARTS[-1:], do="try", tasks=tasks))
        assert (answer.status_code, words in answer.content.decode()) == (422, True)


def test_only_builders_of_the_project_edit(build: Build, cast: Cast, sign_in: SignIn) -> None:
    address = at(build.environment())
    assert sign_in(cast.reviewer).get(address).status_code == 403
    assert sign_in(cast.stranger).get(address).status_code == 404


def test_a_program_composes_tries_and_asks_for_proofs(build: Build, cast: Cast, client: Client, key: Keys) -> None:
    task = recorded(build.task())
    headers = key("read", "build", by=cast.builder)
    types = client.get("/api/v1/verifier-parts", headers=headers).json()
    assert [row["type"] for row in types["items"]] == list(TYPES)
    assert types["causes"]["timeout"] == "timed out"

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
        assert f'name="p0-{name}" value="{value}"' in page.text
    part = {**PARTS[2], "endpoint": "upstream", "criteria": " "}
    page = client.post(at(environment), sent([part], do="save"))
    assert page.status_code == 422
    assert "it is wanted" in page.text
    part["criteria"] = "It books.\r\n\r\n<script>alert(1)</script>"
    page = client.post(at(environment), sent([part], do="save"))
    assert "this project has no upstream" in page.text
    assert "<script>alert(1)" not in page.text
    set_upstream(project=cast.project, actor=cast.admin, base_url="http://127.0.0.1:9/v1")
    assert client.post(at(environment), sent([part], do="save")).status_code == 302
    (kept,) = environment.latest.verifier["parts"]
    assert kept["criteria"] == "It books.\n\n<script>alert(1)</script>"
    assert (kept["top"], kept["votes"], kept["canaries"]) == (2, 3, "I will.\n\nDone!")
    types = client.get("/api/v1/verifier-parts", headers=key(Scope.READ)).json()
    assert next(each for each in types["items"] if each["type"] == "judge")["needs"] == "judge"
