"""Calls of an attempt's tools, as hostile programs send them: each is stored, or answered with the reason."""

from typing import Any

import pytest
from django.test import Client

from flywheel.core.envs.environment import Environment
from flywheel.evals.attempts import attempt_tools, waiting_calls
from flywheel.evals.attempts.attempt_lifecycle import Claim, claim_some
from flywheel.evals.models import ProgramAttempt
from tests.conftest import Build
from tests.evals.attempts.test_attempt_lifecycle import waiting
from tests.evals.programs import CODE

pytestmark = pytest.mark.django_db


@pytest.fixture
def made(build: Build) -> Claim:
    [found] = claim_some(waiting(build), CODE, 1)
    return found


def send(client: Client, made: Claim, body: bytes, name: str = "email_send") -> tuple[int, str]:
    url = made.to_json("")["tools_url"]
    headers = {"Authorization": f"Bearer {made.secret}"}
    answer: Any = client.post(f"{url}/{name}", body, content_type="application/json", headers=headers)
    return answer.status_code, str(answer.json().get("detail", ""))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"to": "a\\u0000b"}', "arguments: cannot be stored: leave out NUL"),
        (b'{"to": "\\ud800"}', "arguments: cannot be stored"),
        (b'{"a\\u0000": 1}', "arguments: cannot be stored"),
        (b'{"to": 1e999}', "arguments: cannot be stored"),
        (b'{"to": 99999999999999999999}', "arguments: cannot be stored"),
        (b'{"to": NaN}', "the body is not JSON: NaN"),
        (b'{"to": "\xff"}', "the body is not JSON"),
        (b'{"to": ' + b"[" * 60 + b"]" * 60 + b"}", "stand more than 50 deep"),
        (b"[" * 30_000, "the body is not JSON"),
        (b"[]", "arguments: send the arguments as a JSON object"),
        (b'{"to": "' + b"a" * 65_536 + b'"}', "the body is longer than 64 KiB"),
    ],
)
def test_what_cannot_be_stored_is_refused(client: Client, made: Claim, body: bytes, says: str) -> None:
    status, detail = send(client, made, body)
    assert (status, says in detail) == (422, True), detail
    assert ProgramAttempt.objects.get().uses == []


def test_a_name_that_cannot_be_stored_is_refused(client: Client, made: Claim) -> None:
    status, detail = send(client, made, b"{}", "a%00b")
    assert (status, "name: holds a NUL" in detail) == (422, True), detail


def test_what_the_environment_raises_is_told(client: Client, made: Claim, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        tools: tuple[Any, ...] = ()

        def respond(self, *_: Any) -> Any:
            raise KeyError("a\0")

    def broken(_: ProgramAttempt) -> Environment:
        return Broken()  # type: ignore[return-value]

    monkeypatch.setattr(attempt_tools, "environment_of", broken)
    status, detail = send(client, made, b"{}")
    assert (status, "the environment raised KeyError" in detail) == (422, True), detail


def test_the_calls_of_a_turn_have_an_end(client: Client, made: Claim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_calls, "USES_MAX", 2**20)
    body = b'{"to": "' + b"a" * 60_000 + b'"}'
    answers = [send(client, made, body) for _ in range(18)]
    assert answers[0] == (200, "")
    assert answers[-1] == (422, "the calls of one turn and their results may have 1 MiB together")
    assert len(ProgramAttempt.objects.get().uses) <= 17
