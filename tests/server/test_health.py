from datetime import timedelta

import pytest
from django.db import OperationalError, connection
from django.test import Client
from django.utils import timezone

from flywheel.accounts.models import Pulse

pytestmark = pytest.mark.django_db


def report(**seconds_ago: int) -> None:
    for name, seconds in seconds_ago.items():
        Pulse.objects.create(name=name, at=timezone.now() - timedelta(seconds=seconds))


def test_the_process_answers_without_a_database(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "cursor", None)
    assert client.get("/healthz").content == b"ok\n"


def test_ready_when_worker_and_beat_reported_lately(client: Client) -> None:
    report(worker=2, beat=3)
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["problems"]) == (200, {})


@pytest.mark.parametrize("missing", ["worker", "beat"])
def test_not_ready_without_a_process_and_says_which(client: Client, missing: str) -> None:
    report(**{name: 1 for name in ("worker", "beat") if name != missing})
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert list(answer.json()["problems"]) == [missing]
    assert "has not reported yet" in answer.json()["problems"][missing]


def test_not_ready_when_a_process_fell_silent(client: Client) -> None:
    report(worker=90, beat=1)
    problems = client.get("/readyz").json()["problems"]
    assert list(problems) == ["worker"]
    assert problems["worker"].startswith("silent for 90 s")


def test_not_ready_without_a_database_and_tells_nothing_about_it(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away() -> None:
        raise OperationalError("connection to server at 10.1.2.3 failed for user flywheel")

    monkeypatch.setattr(connection, "cursor", away)
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert list(answer.json()["problems"]) == ["database"]
    assert b"10.1.2.3" not in answer.content
