"""Tables: a person says what the columns mean, sees what comes of it, and imports."""

import io
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from flywheel.accounts.models import AuditEntry, User
from flywheel.trajectories.import_export import uploads
from flywheel.trajectories.models import Batch, Feedback, Trajectory
from tests.conftest import Cast

SignIn = Callable[[User], Client]
Keys = Callable[..., dict[str, str]]
URL = "/p/acme/trajectories/import/"
CSV = b"asked,said,ok,plan\nMeet Bako,Done,yes,pro\n<b>Hi</b>,,no,\n,,,x\n"
CHOSEN = {"input": "asked", "output": "said", "outcome": "ok", "rest": "all"}


def upload(client: Client, content: bytes = CSV, name: str = "log.csv", format: str = "auto") -> str:
    response = client.post(URL, {"file": SimpleUploadedFile(name, content), "format": format})
    assert response.status_code == 302, response.content.decode()
    return str(response["Location"])


def test_a_table_is_shown_before_it_is_imported(cast: Cast, sign_in: SignIn) -> None:
    client = sign_in(cast.builder)
    page = upload(client)
    content = client.get(page).content.decode()
    assert "log.csv" in content
    assert "Meet Bako" in content
    assert "Choose the column" in content
    assert "<b>Hi</b>" not in content
    assert not Trajectory.objects.exists()


def test_the_preview_shows_conversations_and_what_would_be_left_out(cast: Cast, sign_in: SignIn) -> None:
    client = sign_in(cast.builder)
    page = upload(client)
    content = client.get(f"{page}preview/", CHOSEN).content.decode()
    assert "2 of the first 3 rows can be read" in content
    assert "asked and said: empty" in content
    assert content.count('class="turn user"') == 2
    assert "plan" in content
    whole = client.get(page, CHOSEN).content.decode()
    assert '<option value="asked" selected>' in whole
    assert not Batch.objects.exists()


def test_importing_deletes_the_upload(cast: Cast, sign_in: SignIn) -> None:
    client = sign_in(cast.builder)
    page = upload(client)
    response = client.post(page, CHOSEN, follow=True)
    content = response.content.decode()
    assert "2 trajectories kept" in content
    assert "2 rows of a table" in content
    assert "1 left out" in content
    assert {(row.title, row.outcome) for row in Trajectory.objects.all()} == {
        ("Meet Bako", "success"),
        ("<b>Hi</b>", "failed"),
    }
    assert client.get(page).status_code == 404
    assert AuditEntry.objects.get(action="trajectories.import").data["formats"] == {"table": 2}


def test_a_mapping_that_cannot_be_imports_nothing(cast: Cast, sign_in: SignIn) -> None:
    client = sign_in(cast.builder)
    page = upload(client)
    for wrong in ({}, {"input": "nothing"}, {"id": "plan"}):
        response = client.post(page, wrong)
        assert response.status_code == 422
        assert "cannot be imported" in response.content.decode()
    assert not Batch.objects.exists()
    assert client.get(page).status_code == 200


def test_an_upload_can_be_discarded(cast: Cast, sign_in: SignIn) -> None:
    client = sign_in(cast.builder)
    page = upload(client)
    assert client.get(f"{page}discard/").status_code == 405
    client.post(f"{page}discard/")
    assert client.get(page).status_code == 404


def test_only_this_project_sees_it_and_only_who_may_build(cast: Cast, sign_in: SignIn) -> None:
    page = upload(sign_in(cast.builder))
    for client, url, status in (
        (sign_in(cast.viewer), page, 403),
        (sign_in(cast.stranger), page, 404),
        (sign_in(cast.stranger), page.replace("acme", "elsewhere"), 404),
        (sign_in(cast.builder), f"{URL}..%2f..%2fx/", 404),
        (sign_in(cast.builder), f"{URL}{'0' * 32}/", 404),
    ):
        assert client.get(url).status_code == status, url


def test_an_upload_is_gone_after_a_day(cast: Cast, sign_in: SignIn) -> None:
    client = sign_in(cast.builder)
    page = upload(client)
    token = page.rstrip("/").rpartition("/")[2]
    kept = uploads.find(cast.project, token)
    assert kept is not None
    old = time.time() - uploads.KEPT_SECONDS - 1
    for path in (kept.path, kept.path.with_suffix(".json")):
        os.utime(path, (old, old))
    uploads.sweep()
    assert client.get(page).status_code == 404
    assert not kept.path.exists()


def test_known_tables_are_imported_at_once(cast: Cast, sign_in: SignIn) -> None:
    cells = "ob-1,lf-1,GENERATION,a,2026-01-31T12:00:00Z,Hi,Ho"
    content = f"id,traceId,type,name,startTime,input,output\n{cells}\n".encode()
    location = upload(sign_in(cast.builder), content)
    assert "batch=" in location
    assert "read=langfuse%3A1" in location


def test_parquet_is_shown_too(cast: Cast, sign_in: SignIn) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    target = io.BytesIO()
    parquet.write_table(pyarrow.table({"asked": ["Hi"], "said": ["Ho"]}), target)
    client = sign_in(cast.builder)
    page = upload(client, target.getvalue(), "log.parquet")
    assert "Parquet with 2 columns" in client.get(page).content.decode()
    client.post(page, {"input": "asked", "output": "said"})
    assert Trajectory.objects.get().title == "Hi"


@pytest.mark.parametrize("content", [b"a,a\n1,2\n", b"PK\x03\x04xx", b"PAR1xx", b"\x1f\x8bxx"])
def test_a_file_that_cannot_be_read_says_why(cast: Cast, sign_in: SignIn, content: bytes) -> None:
    response = sign_in(cast.builder).post(URL, {"file": SimpleUploadedFile("x", content), "format": "auto"})
    assert response.status_code == 200
    assert 'class="errors"' in response.content.decode()


def test_the_api_takes_a_mapping(cast: Cast, client: Client, key: Keys) -> None:
    mapping = json.dumps({"input": "asked", "output": "said", "metadata": ["plan"]})
    query = f"/api/v1/trajectories?format=table&mapping={mapping}"
    report = client.post(query, CSV, content_type="text/csv", headers=key("ingest")).json()
    assert (report["trajectories"], report["formats"], report["rejected"]) == (2, {"table": 2}, 1)
    assert Trajectory.objects.get(title="Meet Bako").metadata == {"plan": "pro"}
    refused = client.post("/api/v1/trajectories", CSV, content_type="text/csv", headers=key("ingest"))
    assert refused.status_code == 400
    assert "none of the columns asked, said, ok, plan" in refused.json()["detail"]


def test_scores_find_their_trajectory(cast: Cast, client: Client, key: Keys) -> None:
    def post(*rows: dict[str, Any]) -> Any:
        body = "\n".join(json.dumps(row) for row in rows)
        return client.post("/api/v1/trajectories", body, content_type="application/jsonl", headers=key("ingest")).json()

    observation = {
        "id": "ob-1",
        "traceId": "lf-1",
        "type": "GENERATION",
        "startTime": "2026-01-31T12:00:00Z",
        "output": "Hi",
    }
    said = {"id": "sc", "traceId": "lf-1", "name": "success", "value": 0, "dataType": "BOOLEAN", "source": "API"}
    early = post(said)
    assert (early["notes"], early["rejected"]) == (1, 0)
    tone = {"target_id": "ob-1", "metric_name": "tone", "value": 0.5}
    unknown = post(tone)
    assert (unknown["notes"], unknown["rejected"]) == (0, 1)
    assert "its trajectory is not here" in unknown["problems"][0]["reason"]
    post(observation)
    assert Trajectory.objects.get().outcome == "failed"
    late = post(said, tone)
    assert (late["notes"], late["rejected"]) == (2, 0)
    post({"target_id": "ob-1", "metric_name": "success", "value": True})
    row = Trajectory.objects.get()
    assert row.outcome == "failed", "what is said of one step is no outcome of the whole"
    kept = Feedback.objects.order_by("id").values_list("key", "value", "span_id", "source", "by")
    assert list(kept) == [
        ("success", False, "", "code", "langfuse"),
        ("outcome", "failed", "", "code", "success (langfuse)"),
        ("tone", 0.5, "ob-1", "code", "tensorzero"),
        ("success", True, "ob-1", "code", "tensorzero"),
    ]
    assert row.feedback_count == 4


def test_what_is_left_of_an_upload_is_in_the_home_only(cast: Cast, settings: Any) -> None:
    kept = uploads.keep(cast.project, cast.builder, "../../x.csv", io.BytesIO(CSV))
    assert kept.path.parent == Path(settings.HOME) / "uploads" / str(cast.project.pk)
    assert kept.path.stat().st_mode & 0o077 == 0 or kept.path.parent.stat().st_mode & 0o077 == 0
