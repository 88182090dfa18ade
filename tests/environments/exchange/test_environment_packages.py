"""Taking an environment out: who may, what goes along, and what the ledger says of it afterwards."""

import html
import io
import json
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.http import StreamingHttpResponse
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry, Scope, User
from flywheel.core.interop.environment_exports import FORMATS, CannotExport
from flywheel.environments.exchange import environment_packages
from flywheel.environments.models import EnvironmentVersion, Opening, TaskSet
from tests.conftest import Build, Cast

pytestmark = pytest.mark.django_db
SignIn = Callable[[User], Client]


def archive(answer: Any) -> zipfile.ZipFile:
    assert answer.status_code == 200
    assert answer["Content-Type"] == "application/zip"
    content = b"".join(cast(Iterable[bytes], cast(StreamingHttpResponse, answer).streaming_content))
    found = zipfile.ZipFile(io.BytesIO(content))
    assert found.testzip() is None
    return found


def tasks_in(files: zipfile.ZipFile) -> list[dict[str, Any]]:
    path = next(name for name in files.namelist() if name.endswith("/tasks.jsonl"))
    return [json.loads(line) for line in files.read(path).splitlines()]


def url(task_set: TaskSet) -> str:
    return reverse("environments:export", args=[task_set.project.slug, task_set.name, task_set.version])


@pytest.mark.parametrize("format", [name for name in FORMATS if name != "harbor"])
def test_the_page_gives_the_train_tasks_alone(build: Build, cast: Cast, sign_in: SignIn, format: str) -> None:
    task_set = build.task_set(train=3, held_out=2)
    page = sign_in(cast.trainer).get(url(task_set).removesuffix("export/")).content.decode()
    assert f'value="{format}"' in page
    files = archive(sign_in(cast.trainer).post(url(task_set), {"format": format}))
    assert {row["split"] for row in tasks_in(files)} == {"train"}
    assert len(tasks_in(files)) == 3
    assert not Opening.objects.exists()
    entry = AuditEntry.objects.get(action="environments.export")
    assert entry.data == {"format": format, "splits": ["train"], "tasks": 3}


def test_held_out_tasks_go_along_when_asked_and_it_is_noted(build: Build, cast: Cast, sign_in: SignIn) -> None:
    task_set = build.task_set(train=3, held_out=2)
    for _ in range(2):
        asked = {"format": "verifiers", "held_out": "on"}
        files = archive(sign_in(cast.trainer).post(url(task_set), asked))
        assert sorted(row["split"] for row in tasks_in(files)) == ["held_out"] * 2 + ["train"] * 3
    opening = Opening.objects.get()
    assert (opening.kind, opening.actor, opening.times) == (Opening.Kind.EXPORT, cast.trainer, 2)
    assert opening.subject == "verifiers 0.4 export"


def test_harbor_gives_a_folder_a_task(build: Build, cast: Cast, sign_in: SignIn) -> None:
    task_set = build.task_set(train=2, held_out=1)
    files = archive(sign_in(cast.trainer).post(url(task_set), {"format": "harbor"}))
    assert len([name for name in files.namelist() if name.endswith("/task.toml")]) == 2
    script = next(info for info in files.infolist() if info.filename.endswith("solve.sh"))
    assert script.external_attr >> 16 == 0o755


def test_who_may_not_and_what_cannot_be(build: Build, cast: Cast, sign_in: SignIn) -> None:
    task_set = build.task_set()
    assert sign_in(cast.stranger).post(url(task_set), {"format": "verifiers"}).status_code == 404
    assert sign_in(cast.viewer).post(url(task_set), {"format": "verifiers"}).status_code == 403
    answer = sign_in(cast.trainer).post(url(task_set), {"format": "floppy", "held_out": "on"}, follow=True)
    assert "is not one of nemo_gym" in answer.content.decode()
    assert not Opening.objects.exists()


def test_large_sets_go_by_the_command(
    build: Build, cast: Cast, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    task_set = build.task_set(train=3)
    with pytest.raises(CannotExport, match="use manage"):
        environment_packages.take(task_set=task_set, format="verifiers", actor=Actor(cast.trainer), tasks_max=2)
    monkeypatch.setattr(environment_packages, "TASKS_MAX", 2)
    run("export_environment", task_set, "--format", "verifiers", "--out", str(tmp_path / "new"))
    assert len((tmp_path / "new/flywheel_mail/tasks.jsonl").read_text().splitlines()) == 3
    with pytest.raises(CommandError, match="not empty"):
        run("export_environment", task_set, "--format", "verifiers", "--out", str(tmp_path / "new"))


def run(command: str, task_set: TaskSet, *more: str) -> None:
    call_command(command, str(task_set.environment_version), "--project", task_set.project.slug, *more)


def test_the_command_says_what_is_missing(build: Build, cast: Cast, tmp_path: Path) -> None:
    environment = build.environment()
    asked = ("--project", cast.project.slug, "--format", "verifiers", "--out", str(tmp_path / "out"))
    with pytest.raises(CommandError, match="freeze one first"):
        call_command("export_environment", str(environment.latest), *asked)
    with pytest.raises(CommandError, match="there is mail@1"):
        call_command("export_environment", "mail@7", *asked)
    with pytest.raises(CommandError, match="environment@version"):
        call_command("export_environment", "mail", *asked)
    assert not (tmp_path / "out").exists()


def test_the_api_gives_the_same(build: Build, cast: Cast, client: Client, key: Callable[..., dict[str, str]]) -> None:
    task_set = build.task_set(train=3, held_out=2)
    path = f"/api/v1/task-sets/{task_set.name}/{task_set.version}/export"

    def call(*scopes: str, **body: Any) -> Any:
        return client.post(path, json.dumps(body), "application/json", headers=key(*scopes))

    assert len(tasks_in(archive(call(Scope.BUILD, format="openenv", held_out=True)))) == 5
    assert Opening.objects.get().subject == "OpenEnv export"
    assert AuditEntry.objects.get(action="environments.export").through.startswith("key ")
    assert call(Scope.BUILD, format="floppy").status_code == 422
    assert call(Scope.READ, format="openenv").status_code == 403


def test_equal_exports_are_equal_archives(build: Build, cast: Cast) -> None:
    task_set = build.task_set(train=3)
    first, second = (
        b"".join(environment_packages.zipped(files, name))
        for name, files in (
            environment_packages.take(task_set=task_set, format="verifiers", actor=Actor(cast.builder))
            for _ in range(2)
        )
    )
    assert first == second


@pytest.mark.parametrize(
    ("part", "who"),
    [
        ({"type": "judge", "criteria": "It books.", "endpoint": "upstream", "model": "m"}, "an LLM judge"),
        ({"type": "python", "source": "def verify(trace, target):\n    return 1.0\n"}, "Python in the sandbox"),
    ],
)
def test_what_is_judged_here_alone_is_no_package_and_says_how_it_can_be_had(
    build: Build, cast: Cast, sign_in: SignIn, part: dict[str, Any], who: str
) -> None:
    environment = build.environment()
    version = EnvironmentVersion.objects.create(
        environment=environment,
        number=2,
        config=environment.latest.config,
        verifier={"kind": "rubric", "parts": [part]},
        digest="j" * 64,
        verifier_digest="j" * 64,
        created_by=cast.builder,
    )
    task_set = build.task_set(train=3, held_out=2)
    assert task_set.environment_version == version
    reason = f"mail@2 is judged by {who}, which no export can carry along; serve it over NeMo Gym's protocol instead"
    with pytest.raises(CannotExport, match=reason):
        environment_packages.take(task_set=task_set, format="verifiers", actor=Actor(cast.trainer))
    page = sign_in(cast.trainer).get(url(task_set).removesuffix("export/")).content.decode()
    assert html.escape(reason) in page
    assert "manage.py serve_environment mail@2 --project acme" in page
    assert 'name="format"' not in page
    assert not AuditEntry.objects.filter(action="environments.export").exists()
