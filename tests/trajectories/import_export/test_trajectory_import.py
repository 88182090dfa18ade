"""Files: good lines are kept, bad ones are named by number."""

import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.management import CommandError, call_command
from django.test import Client

from flywheel.accounts.models import AuditEntry, User
from flywheel.trajectories.import_export import trajectory_import
from flywheel.trajectories.ingest.admission import Door
from flywheel.trajectories.models import Batch, Trajectory
from tests.conftest import Cast

SignIn = Callable[[User], Client]
Keys = Callable[..., dict[str, str]]
URL = "/p/acme/trajectories/import/"
API = "/api/v1/trajectories"


def chat(text: str) -> bytes:
    return json.dumps(
        {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "ok"}]}
    ).encode()


def atif(text: str) -> bytes:
    steps = [{"step_id": 1, "source": "user", "message": text}, {"step_id": 2, "source": "agent", "message": "ok"}]
    return json.dumps({"schema_version": "ATIF-v1.8", "agent": {"name": "a", "version": "1"}, "steps": steps}).encode()


FILE = b"\n".join([chat("one"), b"{broken", atif("two"), b"", b'{"messages": []}'])


def upload(client: Client, content: bytes, format: str = "auto") -> Any:
    return client.post(URL, {"file": SimpleUploadedFile("runs.jsonl", content), "format": format})


def test_the_page_says_what_was_kept_and_what_was_not(cast: Cast, sign_in: SignIn) -> None:
    client = sign_in(cast.builder)
    response = client.post(URL, {"file": SimpleUploadedFile("runs.jsonl", FILE), "format": "auto"}, follow=True)
    content = response.content.decode()
    assert "2 trajectories kept" in content
    assert "atif+openai" in content
    assert "2 left out" in content
    assert "line 2" in content
    assert "line 5" in content
    assert {row.title for row in Trajectory.objects.all()} == {"one", "two"}
    batch = Batch.objects.get()
    assert (batch.received, batch.inserted, batch.rejected, batch.trajectories) == (6, 4, 2, 2)
    entry = AuditEntry.objects.get(action="trajectories.import")
    assert (entry.actor, entry.data["steps"]["inserted"]) == (cast.builder, 4)


def test_a_file_twice_is_stored_once(cast: Cast, sign_in: SignIn) -> None:
    client = sign_in(cast.builder)
    upload(client, FILE)
    upload(client, FILE)
    assert Trajectory.objects.count() == 2
    assert Batch.objects.order_by("id")[1].duplicate == 4


def test_a_large_file_goes_in_in_parts(cast: Cast, sign_in: SignIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trajectory_import, "STEPS_AT_ONCE", 4)
    lines = b"\n".join(chat(str(number)) for number in range(5))
    response = sign_in(cast.builder).post(URL, {"file": SimpleUploadedFile("runs.jsonl", lines), "format": "auto"})
    assert response["Location"].count("batch=") == 3
    assert [batch.inserted for batch in Batch.objects.order_by("id")] == [4, 4, 2]


def test_an_empty_file_changes_nothing(cast: Cast, sign_in: SignIn) -> None:
    client = sign_in(cast.builder)
    response = client.post(URL, {"file": SimpleUploadedFile("runs.jsonl", b"\n \n"), "format": "auto"})
    assert "holds no lines" in response.content.decode()
    response = client.post(URL, {"file": SimpleUploadedFile("runs.jsonl", b""), "format": "auto"})
    assert "empty" in response.content.decode()
    assert not Batch.objects.exists()


def test_what_the_ledger_of_another_project_holds_is_not_shown(cast: Cast, sign_in: SignIn) -> None:
    other = Batch.objects.create(
        project=cast.elsewhere, format="only-theirs", received=77, inserted=77, updated=0, duplicate=0, rejected=0
    )
    page = sign_in(cast.builder).get(URL, {"batch": [str(other.pk), "x", "9" * 30]}).content.decode()
    assert "only-theirs" not in page


def test_a_viewer_may_not_import(cast: Cast, sign_in: SignIn) -> None:
    assert sign_in(cast.viewer).get(URL).status_code == 403
    assert upload(sign_in(cast.reviewer), FILE).status_code == 403


def test_the_api_imports(cast: Cast, client: Client, key: Keys) -> None:
    response = client.post(f"{API}?format=auto", FILE, content_type="application/jsonl", headers=key("ingest"))
    assert response.status_code == 200
    report = response.json()
    assert (report["trajectories"], report["inserted"], report["rejected"]) == (2, 4, 2)
    assert report["formats"] == {"openai": 1, "atif": 1}
    assert [problem["at"] for problem in report["problems"]] == ["line 2", "line 5"]
    assert Batch.objects.get().key is not None


def test_the_api_imports_a_compressed_file(cast: Cast, client: Client, key: Keys) -> None:
    answer = client.post(API, gzip.compress(FILE), content_type="application/gzip", headers=key("ingest"))
    assert answer.status_code == 200, answer.json()
    assert answer.json()["trajectories"] == 2


def test_the_api_refuses_an_unknown_format(cast: Cast, client: Client, key: Keys) -> None:
    response = client.post(f"{API}?format=xml", FILE, content_type="application/jsonl", headers=key("ingest"))
    assert response.status_code == 400
    assert "xml" in response.json()["detail"]


def test_the_api_wants_the_scope(cast: Cast, client: Client, key: Keys) -> None:
    assert client.post(API, FILE, content_type="application/jsonl", headers=key("read")).status_code == 403
    assert client.post(API, FILE, content_type="application/jsonl").status_code == 401


def test_a_body_too_large_is_refused(cast: Cast, client: Client, key: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trajectory_import, "MAX_BYTES", 100)
    assert client.post(API, FILE, content_type="application/jsonl", headers=key("ingest")).status_code == 413


def test_the_api_keeps_what_it_reads_in_its_bounds_and_says_where_the_rest_belongs(
    cast: Cast, client: Client, key: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trajectory_import, "VALUES_WAITED_FOR", 2)
    file = b"\n".join(chat(str(number)) for number in range(5))
    answer = client.post(API, file, content_type="application/jsonl", headers=key("ingest"))
    assert answer.status_code == 413
    for words in ("at most 2 lines", "2 trajectories before that are kept", "on the page Import a file"):
        assert words in answer.json()["detail"]
    assert (Trajectory.objects.count(), Batch.objects.get().received) == (2, 4)


def test_few_files_are_imported_at_once(cast: Cast, client: Client, key: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trajectory_import, "door", Door(at_work=1, waiting=0))
    with trajectory_import.door.admit():
        answer = client.post(API, FILE, content_type="application/jsonl", headers=key("ingest"))
    assert (answer.status_code, Trajectory.objects.count()) == (503, 0)
    assert client.post(API, FILE, content_type="application/jsonl", headers=key("ingest")).status_code == 200


def test_the_command_imports(cast: Cast, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_bytes(FILE)
    out, err = io.StringIO(), io.StringIO()
    call_command("import_trajectories", str(path), project="acme", stdout=out, stderr=err)
    assert out.getvalue().splitlines() == [
        "read as 1 OpenAI chat, 1 ATIF",
        "2 trajectories kept, 2 lines left out; steps: 4 new, 0 updated, 0 there already",
    ]
    assert "line 2: " in err.getvalue()
    assert Trajectory.objects.count() == 2


@pytest.mark.parametrize(
    ("content", "project", "told"),
    [(FILE, "nowhere", "nowhere"), (None, "acme", "No such file"), (b"{broken", "acme", "nothing could be read")],
)
def test_the_command_says_what_is_wrong(
    cast: Cast, tmp_path: Path, content: bytes | None, project: str, told: str
) -> None:
    path = tmp_path / "runs.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CommandError, match=told):
        call_command("import_trajectories", str(path), project=project, stdout=io.StringIO(), stderr=io.StringIO())
