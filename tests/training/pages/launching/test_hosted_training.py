"""A hosted model's training page: the roads that exist, and the files that it offers."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from flywheel.accounts.models import AuditEntry, User
from flywheel.agents.models import Version
from flywheel.environments.models import Split, Task
from tests.conftest import TOOLS
from tests.pages import page_of
from tests.training.conftest import WRONG, Room

pytestmark = pytest.mark.django_db
SignIn = Callable[[User], Client]
LAUNCH = "/p/acme/training/launch/"
SERVER = {"kind": "openai", "base_url": "https://api.openai.com/v1", "model": "gpt-4.1-mini"}


@pytest.fixture
def hosted(room: Room) -> Version:
    return room.build.version(base_model="gpt-4.1-mini", endpoint=SERVER, system_prompt="Be brief.", tools=TOOLS)


def asked(room: Room, hosted: Version) -> dict[str, Any]:
    return {"base": str(hosted), "task_set": str(room.task_set)}


def test_the_page_shows_the_roads_and_no_form_that_cannot_be_sent(room: Room, hosted: Version, sign_in: SignIn) -> None:
    page = page_of(sign_in(room.cast.trainer).get(LAUNCH, asked(room, hosted)))
    assert f"/p/acme/agents/assistant/versions/new/?like={hosted.number}" in page
    for name in ("sft", "rft"):
        assert f"/p/acme/training/launch/files/{name}.jsonl?base=assistant%40{hosted.number}" in page
    assert "gives no" in page, "without failing attempts there is no pair"
    assert f"?base=assistant%40{room.base.number}&amp;task_set=" in page, "an open model on the same tasks"
    assert "Cannot be trained" not in page
    assert "Train with" not in page
    assert "is not the main failure" not in page


def test_a_project_of_hosted_models_alone_is_shown_them_too(room: Room, hosted: Version, sign_in: SignIn) -> None:
    client = sign_in(room.cast.trainer)
    assert "Train with" in page_of(client.get(LAUNCH)), "a version that can be trained comes first"
    assert f"<option>{hosted}</option>" in page_of(client.get(LAUNCH))


def test_a_file_has_the_train_rows_in_the_providers_format(room: Room, hosted: Version, sign_in: SignIn) -> None:
    client = sign_in(room.cast.trainer)
    answer = client.get(f"{LAUNCH}files/sft.jsonl", asked(room, hosted))
    assert answer["Content-Disposition"] == f'attachment; filename="assistant-{hosted.number}-sft.jsonl"'
    rows = [json.loads(line) for line in answer.content.splitlines()]
    assert len(rows) == room.task_set.members.filter(split="train").count()
    assert {tool["function"]["name"] for tool in rows[0]["tools"]} >= {"calendar_create_event"}
    wrong = {"is_failure": True, "recorded": {"role": "assistant", "content": WRONG}}
    Task.objects.filter(split="train").update(source=room.build.trajectory(), proof=wrong)
    dpo = client.get(f"{LAUNCH}files/dpo.jsonl", asked(room, hosted))
    assert set(json.loads(dpo.content.splitlines()[0])) == {"input", "preferred_output", "non_preferred_output"}


@pytest.mark.parametrize(
    ("name", "query", "message"),
    [
        ("grpo", {}, "format: &#x27;grpo&#x27; is unknown; use one of sft, dpo, rft"),
        ("sft", {"base": "nobody@1"}, "there is no agent &#x27;nobody&#x27;"),
        ("sft", {"task_set": "x@1"}, "there is no task set"),
    ],
)
def test_a_file_of_nothing_is_refused(
    room: Room, hosted: Version, sign_in: SignIn, name: str, query: dict[str, str], message: str
) -> None:
    answer = sign_in(room.cast.trainer).get(f"{LAUNCH}files/{name}.jsonl", asked(room, hosted) | query)
    assert answer.status_code == 404
    assert message in page_of(answer)


def test_a_file_with_anything_of_a_held_out_task_is_refused_and_every_other_is_noted(
    room: Room, hosted: Version, sign_in: SignIn
) -> None:
    client, address = sign_in(room.cast.trainer), f"{LAUNCH}files/sft.jsonl"
    assert client.get(address, asked(room, hosted)).status_code == 200
    assert AuditEntry.objects.get(action="training.provider_file").data["rows"] == 6
    other = room.build.task_set(name="other", environment=room.build.environment("other"))
    train = room.task_set.tasks.filter(split=Split.TRAIN).earliest("number")
    held_out = other.tasks.filter(split=Split.HELD_OUT).earliest("number")
    Task.objects.filter(pk=held_out.pk).update(cluster=train.cluster)
    answer = client.get(address, asked(room, hosted))
    assert answer.status_code == 422
    assert "shares its source" in page_of(answer)
    assert AuditEntry.objects.filter(action="training.provider_file").count() == 1
