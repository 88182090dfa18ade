"""A teacher behind an endpoint, asked through a worker's broker; the server is a fake."""

import json
from typing import Any

import pytest

from flywheel.core.verifiers import Runners
from tests.workers.engines.test_engine_endpoints import Reply, serving
from workers.judging.broker_line import BrokerLine, Unanswered
from workers.judging.hosted_teacher import HIDDEN, HostedTeacher, TeacherError
from workers.judging.trainer_broker import Broker

KEY = "sk-secret"


def told(body: dict[str, Any], _: int = 0) -> Reply:
    rows = [{str(token): {"logprob": -0.5, "decoded_token": chr(97 + token)}} for token in body["prompt"][1:]]
    usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": 1}
    choice = {"prompt_logprobs": [None, *rows]}
    return 200, {}, json.dumps({"model": "m", "choices": [choice], "usage": usage}).encode()


def teacher(url: str, report: dict[str, Any] | None = None, **options: Any) -> HostedTeacher:
    more = {"kind": "openai", "model": "m", "chat_template_kwargs": {"think": False}, "api_key": KEY}
    return HostedTeacher("digest", {**more, "base_url": url, "timeout_s": 5, **options}, report)


def test_what_it_took_goes_on_from_what_an_earlier_owner_left() -> None:
    with serving(told) as server:
        first = teacher(server.url, price_in=1, price_out=1)
        assert first.report == {}
        assert first.read([1, 2, 3]).texts == ["c", "d"]
        assert first.report == {
            "models": ["m"], "requests": 1, "tokens_in": 3, "tokens_out": 1, "cost_usd": pytest.approx(4e-6),
        }  # fmt: skip
        unpriced = teacher(server.url, first.report)
        unpriced.read([1, 2])
    assert (unpriced.report["tokens_in"], unpriced.report["cost_usd"]) == (5, None), "not known is not nothing"
    assert {headers["Authorization"] for headers in server.headers} == {f"Bearer {KEY}"}


def test_a_server_that_repeats_the_key_does_not_give_it_away() -> None:
    with serving(lambda *_: (401, {}, f"wrong key {KEY}".encode())) as server:
        asked = teacher(server.url)
        with pytest.raises(TeacherError, match="401") as failed:
            asked.read([1, 2])
    assert KEY not in str(failed.value)
    assert HIDDEN in str(failed.value)
    assert asked.report["requests"] == 1


def test_a_spell_of_waiting_is_told_once() -> None:
    with serving(lambda body, count: told(body) if count > 3 else (503, {}, b"full")) as server:
        asked = teacher(server.url)
        asked._reader.backoff_s = 0.001
        asked.read([1, 2])
    (words,) = asked.waits()
    assert words.startswith("waiting for the teacher m, at most 300 s: the server answered 503")
    assert asked.waits() == []


def test_the_room_leaves_one_token_for_what_is_written_and_a_server_that_is_away_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving(told) as server:
        asked = teacher(server.url)
        monkeypatch.setattr(asked._reader, "most_tokens", lambda _: 512)
        assert asked.room() == 511
    asked = teacher(server.url)
    asked._reader.backoff_s = 0.001
    with pytest.raises(TeacherError, match="no connection"):
        asked.room()


def test_the_broker_asks_the_runs_own_teacher_and_no_other_and_takes_tokens_alone() -> None:
    with serving(told) as server:
        broker = Broker(Runners(), [], [], teacher=teacher(server.url))
        line = BrokerLine(broker.path)
        try:
            assert line.ask("read", teacher="digest", tokens=[1, 2]) == {"logprobs": [-0.5], "texts": ["c"]}
            for tokens in ("12", [1, "2"], [True, 2], [-1, 2]):
                with pytest.raises(Unanswered, match="tokens: "):
                    line.ask("read", teacher="digest", tokens=tokens)
            for what in ("read", "room"):
                with pytest.raises(Unanswered, match="the teacher that is asked is none of this run's"):
                    line.ask(what, teacher="another", tokens=[1, 2])
        finally:
            broker.close()
    assert len(server.seen) == 1
