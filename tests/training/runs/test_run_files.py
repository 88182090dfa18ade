"""Files of a run: which are there to be taken, that no path leads out, and what a client has is not sent again."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from django.http import FileResponse
from django.test import Client, RequestFactory
from safetensors.numpy import save_file

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.agents import artifacts
from flywheel.agents.models import Artifact
from flywheel.edge.jobs import State
from flywheel.edge.refusals import Missing
from flywheel.environments.models import Opening
from flywheel.training.models import Point, TrainingRun
from flywheel.training.runs import run_files
from tests.training.conftest import NOON, Room
from tests.training.pages.test_runs import HERE, SignIn, text

pytestmark = pytest.mark.django_db


@pytest.fixture
def run(room: Room, settings: Any, tmp_path: Path) -> TrainingRun:
    """A finished run with a directory."""
    settings.RUNS_DIR = tmp_path
    run = room.launch()
    TrainingRun.objects.filter(pk=run.pk).update(state=State.FAILED, started_at=NOON, finished_at=NOON)
    run.refresh_from_db()
    write(run, "spec.json", spec_of(run))
    write(run, "events.jsonl", '{"event": "step"}\n')
    write(run, "trainer.log", "loading\n")
    write(run, "checkpoint.key", "secret")
    write(run, "data/held_out.jsonl", "held out")
    return run


def spec_of(run: TrainingRun, **fields: Any) -> str:
    """A `spec.json` as far as it says whose directory it is."""
    about = {name: getattr(run, name) for name in ("algorithm", "seed", "settings", "tuning")}
    return json.dumps({**about, "data": {"train": {"sha256": run.dataset.digest}}, **fields})


def write(run: TrainingRun, name: str, content: str) -> str:
    path = run.directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return hashlib.sha256(content.encode()).hexdigest()


def checkpoint(run: TrainingRun, step: int, *names: str) -> None:
    """A checkpoint whose manifest lists these names."""
    place = f"checkpoints/step-{step}"
    files = {name: {"sha256": "0" * 64, "size": 1} for name in names}
    write(run, f"{place}/manifest.json", json.dumps({"step": step, "files": files}))
    for name in names:
        if not name.startswith(("/", "..")):
            write(run, f"{place}/{name}", "x")


def produced(room: Room, run: TrainingRun, tmp_path: Path) -> Artifact:
    """The weights that the run made, in the storage."""
    place = tmp_path / "final"
    place.mkdir()
    save_file({"weight": np.zeros(2, np.float32)}, place / "model.safetensors")
    (place / "config.json").write_text("{}")
    artifact = artifacts.store(place, "model")
    run.produced = room.build.version(weights=artifact, system_prompt="made")
    run.save()
    return artifact


def names(run: TrainingRun) -> list[str]:
    return [file.name for file in run_files.files_of(run)]


def test_the_list_has_what_a_person_wants_and_no_secrets(room: Room, run: TrainingRun, tmp_path: Path) -> None:
    checkpoint(run, 20, "model.safetensors", "optimizer.pt")
    checkpoint(run, 100, "config.json")
    artifact = produced(room, run, tmp_path)
    assert names(run) == [
        "final/config.json",
        "final/model.safetensors",
        "checkpoints/step-100/config.json",
        "checkpoints/step-20/model.safetensors",
        "spec.json",
        "events.jsonl",
        "trainer.log",
    ]
    files = {file.name: file for file in run_files.files_of(run)}
    assert files["final/config.json"].sha256 == artifact.manifest["config.json"]["sha256"]
    assert files["spec.json"].sha256 == hashlib.sha256(spec_of(run).encode()).hexdigest()
    assert files["checkpoints/step-20/model.safetensors"].about == "checkpoint of step 20"


def test_a_file_that_grows_has_no_digest_yet(run: TrainingRun) -> None:
    run.state = State.RUNNING
    assert {file.sha256 for file in run_files.files_of(run)} == {""}


def test_a_directory_of_another_run_is_not_shown(run: TrainingRun) -> None:
    """Of a database that was made anew beside the old files, whatever became of the run so far."""
    write(run, "spec.json", spec_of(run, seed=run.seed + 1))
    assert names(run) == []
    assert run_files.output_tail(run) == ""
    (run.directory / "spec.json").unlink()
    assert names(run) == []


def test_no_link_and_no_name_leads_out_of_the_directory(run: TrainingRun, tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text("secret")
    checkpoint(run, 5, "../../../secret.json", str(tmp_path / "secret.json"), "linked.json", "config.json")
    linked = run.directory / "checkpoints/step-5/linked.json"
    linked.unlink()
    linked.symlink_to(tmp_path / "secret.json")
    (run.directory / "trainer.log").unlink()
    (run.directory / "trainer.log").symlink_to(tmp_path / "secret.json")
    assert names(run) == ["checkpoints/step-5/config.json", "spec.json", "events.jsonl"]


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "checkpoint.key", "data/held_out.jsonl", "work/x", "spec.json/", ""]
)
def test_what_is_not_listed_is_not_there(room: Room, run: TrainingRun, name: str) -> None:
    with pytest.raises(Missing, match="has no file"):
        run_files.download(RequestFactory().get("/"), run, name, Actor(room.cast.viewer))


def test_a_link_that_takes_a_listed_files_place_is_not_followed(run: TrainingRun, tmp_path: Path) -> None:
    file = next(file for file in run_files.files_of(run) if file.name == "spec.json")
    (tmp_path / "secret.json").write_text("secret")
    (run.directory / "spec.json").unlink()
    (run.directory / "spec.json").symlink_to(tmp_path / "secret.json")
    with pytest.raises(OSError, match="symbolic links"):
        file.open()


def fetch(client: Client, run: TrainingRun, name: str, **headers: str) -> tuple[Any, bytes]:
    """The response, and all that it sent."""
    response: Any = client.get(f"{HERE}runs/{run.pk}/files/{name}", headers=headers)
    return response, b"".join(response)


def test_a_file_is_streamed_once_and_then_known_by_its_etag(
    room: Room, run: TrainingRun, tmp_path: Path, sign_in: SignIn
) -> None:
    produced(room, run, tmp_path)
    client = sign_in(room.cast.viewer)
    response, content = fetch(client, run, "final/config.json")
    assert isinstance(response, FileResponse)
    assert content == b"{}"
    assert response["Content-Disposition"] == f'attachment; filename="{run}-final-config.json"'
    assert response["Content-Type"] == "application/octet-stream"
    again, nothing = fetch(client, run, "final/config.json", **{"If-None-Match": response["ETag"]})
    assert (again.status_code, again["ETag"], nothing) == (304, response["ETag"], b"")


@pytest.mark.parametrize("name", ["spec.json", "final/model.safetensors"])
def test_a_download_goes_on_where_it_broke_off(
    name: str, room: Room, run: TrainingRun, tmp_path: Path, sign_in: SignIn
) -> None:
    """Of a file here, and of one in the storage."""
    produced(room, run, tmp_path)
    client = sign_in(room.cast.viewer)
    whole, content = fetch(client, run, name)
    assert whole["Accept-Ranges"] == "bytes"
    rest, sent = fetch(client, run, name, **{"Range": "bytes=10-", "If-Range": whole["ETag"]})
    assert (rest.status_code, sent) == (206, content[10:])
    assert rest["Content-Disposition"] == whole["Content-Disposition"]


def test_a_growing_file_gets_another_etag(room: Room, run: TrainingRun, sign_in: SignIn) -> None:
    TrainingRun.objects.filter(pk=run.pk).update(state=State.RUNNING, finished_at=None)
    client, tags = sign_in(room.cast.viewer), []
    for content in ("one", "one two"):
        write(run, "trainer.log", content)
        response, sent = fetch(client, run, "trainer.log")
        assert sent.decode() == content
        tags.append(response["ETag"])
    assert tags[0] != tags[1]
    assert tags[0].startswith("W/")


def test_who_takes_the_events_has_looked_at_the_held_out_tasks(room: Room, run: TrainingRun, sign_in: SignIn) -> None:
    client = sign_in(room.cast.viewer)
    fetch(client, run, "events.jsonl")
    assert not Opening.objects.filter(kind=Opening.Kind.EXPORT).exists()
    Point.objects.create(run=run, kind=Point.Kind.SAMPLES, step=0, at=NOON, values=[])
    fetch(client, run, "spec.json")
    assert not Opening.objects.filter(kind=Opening.Kind.EXPORT).exists()
    fetch(client, run, "events.jsonl")
    assert Opening.objects.get(kind=Opening.Kind.EXPORT).task_set == run.task_set


def test_files_are_the_projects_alone(room: Room, run: TrainingRun, sign_in: SignIn) -> None:
    def status(user: User, address: str) -> int:
        return sign_in(user).get(address).status_code

    assert status(room.cast.stranger, f"{HERE}runs/{run.pk}/files/spec.json") == 404
    assert status(room.cast.stranger, f"/p/elsewhere/training/runs/{run.pk}/files/spec.json") == 404
    assert status(room.cast.viewer, f"{HERE}runs/{run.pk}/files/checkpoint.key") == 404


def test_weights_that_the_storage_has_lost_are_said_to_be_missing(
    room: Room, run: TrainingRun, tmp_path: Path, sign_in: SignIn, settings: Any
) -> None:
    artifact = produced(room, run, tmp_path)
    digest = artifact.manifest["config.json"]["sha256"]
    (blob,) = (settings.HOME / "artifacts").rglob(digest)
    blob.unlink()
    response = sign_in(room.cast.viewer).get(f"{HERE}runs/{run.pk}/files/final/config.json")
    assert "is missing from the storage" in text(response)


def test_the_output_is_shown_as_a_terminal_would(run: TrainingRun) -> None:
    write(run, "trainer.log", "loading\nweights:  1%\rweights: 50%\rweights: 100%\r\ndone\n")
    assert run_files.output_tail(run) == "loading\nweights: 100%\ndone"


def test_of_a_long_output_the_last_whole_lines_are_shown(run: TrainingRun) -> None:
    write(run, "trainer.log", "".join(f"line {number} {'ä' * 150}\n" for number in range(1000)))
    lines = run_files.output_tail(run).splitlines()
    assert len(lines) < run_files.TAIL_LINES
    assert lines[-1].startswith("line 999 ")
    assert all(line.startswith("line ") for line in lines)


def test_the_page_shows_files_and_the_output_as_text(room: Room, run: TrainingRun, sign_in: SignIn) -> None:
    write(run, "trainer.log", "a <b>warning</b>\n")
    page = text(sign_in(room.cast.viewer).get(f"{HERE}runs/{run.pk}/"))
    assert f"/runs/{run.pk}/files/events.jsonl" in page
    assert "a &lt;b&gt;warning&lt;/b&gt;" in page


def test_the_page_is_sent_again_when_the_trainer_has_written(room: Room, run: TrainingRun, sign_in: SignIn) -> None:
    TrainingRun.objects.filter(pk=run.pk).update(state=State.RUNNING, finished_at=None)
    client, live = sign_in(room.cast.viewer), f"{HERE}runs/{run.pk}/live/"
    seen = client.get(live).context["fingerprint"]
    assert client.get(live, {"seen": seen}).status_code == 204
    write(run, "trainer.log", "loading\nweights\n")
    assert "weights" in text(client.get(live, {"seen": seen}))
