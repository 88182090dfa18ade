"""A teacher that somebody else serves teaches what the same weights teach in the trainer, or says why it cannot."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flywheel.core.verifiers import Runners
from tests.workers.hosted_model import KEY, MODEL, HostedModel, Spoil, better, hosted_model
from tests.workers.trainers.attempts.test_step_attempts import EPISODES, played
from tests.workers.trainers.cast import NAMES, Directory, Make, Start, owned
from workers.judging import hosted_teacher
from workers.judging.broker_line import VARIABLE
from workers.judging.hosted_teacher import HostedTeacher
from workers.judging.trainer_broker import Broker
from workers.trainers.objectives.served_teacher import ServedTeacher
from workers.trainers.run.run_failures import TrainingError

DIGEST = "d" * 64


@pytest.fixture(scope="session")
def teacher(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return better(trained, tmp_path_factory.mktemp("teacher"))


@contextmanager
def brokered(server: HostedModel, **options: Any) -> Iterator[Broker]:
    asked = HostedTeacher(DIGEST, {**server.endpoint, "api_key": KEY, **options})
    broker = Broker(Runners(), [], [], teacher=asked)
    try:
        yield broker
    finally:
        asked.close()
        broker.close()


def over(path: str) -> None:
    """A hook: the trainer's worker has this broker."""
    os.environ[VARIABLE] = path


def directory(make: Make, trained: Path, **fields: Any) -> Directory:
    run = make("distillation", on=trained, teacher=None, held_out=False, **fields)
    run.spec["settings"]["teacher_from"] = "endpoint"
    run.spec["teacher"] = {"hosted": DIGEST, "model": MODEL}
    run.save()
    return run


def test_it_teaches_what_the_same_weights_teach_in_the_trainer_and_its_key_is_nowhere_there(
    make: Make, start: Start, trained: Path, teacher: Path
) -> None:
    fields: dict[str, Any] = {"environment": EPISODES, "train": [played(name) for name in NAMES[:4]], "steps": 2}
    here = make("distillation", on=trained, teacher=teacher, held_out=False, name="here", **fields)
    assert start(here).wait() == 0, here.errors()
    there = directory(make, trained, name="there", **fields)
    with hosted_model(teacher) as server, brokered(server) as broker:
        assert start(there, hook=over, given=broker.path).wait() == 0, there.errors()
        counts = broker.counts
    assert (counts["read"], counts["room"]) == (len(server.asked), 1)
    own, told = here.metrics(), there.metrics()
    assert (own[1]["teacher_kl"] > 0.01, own[1]["grad_norm"] > 0.001) == (True, True)
    for step in (1, 2):
        for name in ("teacher_kl", "loss", "grad_norm"):
            assert told[step][name] == pytest.approx(own[step][name], abs=1e-5)
    assert server.keys == {f"Bearer {KEY}"}
    for path in there.path.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert KEY.encode() not in content, path
            assert f":{server.port}/".encode() not in content, path


def without(*names: str) -> Spoil:
    """Leave these out of what is told of each token."""

    def spoil(answer: dict[str, Any]) -> Any:
        rows = answer["choices"][0]["prompt_logprobs"]
        answer["choices"][0]["prompt_logprobs"] = [
            row and {token: {name: it for name, it in told.items() if name not in names} for token, told in row.items()}
            for row in rows
        ]
        return answer

    return spoil


def saying(value: Any) -> Spoil:
    """Tell this log-probability of the last token."""

    def spoil(answer: dict[str, Any]) -> Any:
        (told,) = answer["choices"][0]["prompt_logprobs"][-1].values()
        told["logprob"] = value
        return answer

    return spoil


def unasked(answer: dict[str, Any]) -> Any:
    """As a server that knows no prompt_logprobs."""
    del answer["choices"][0]["prompt_logprobs"]
    return answer


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (unasked, "tells no log-probabilities of given tokens: KeyError"),
        (without("logprob"), "tells no log-probabilities of given tokens: KeyError"),
        (without("decoded_token"), "tells no decoded_token beside a token's id"),
        (saying(float("nan")), "some log-probabilities are no numbers below 0"),
        (saying(-9999.0), "some log-probabilities are no numbers below 0"),
        (saying(2.5), "some log-probabilities are no numbers below 0"),
        (lambda answer: answer | {"model": "small-model"}, "big-model was asked, and small-model answered"),
        (lambda _: 400, "the server answered 400 Bad Request"),
        (lambda _: 401, r"the server answered 401 Unauthorized: .*not with Bearer \(the key\)"),
        (lambda _: 404, "must answer POST /completions with the prompt_logprobs of given tokens"),
    ],
)
def test_who_tells_nothing_that_could_be_learnt_is_refused_before_anything_is_played(
    spoil: Spoil, said: str, make: Make, trained: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = owned(directory(make, trained))
    with hosted_model(teacher) as server, brokered(server) as broker:
        monkeypatch.setenv(VARIABLE, broker.path)
        server.spoil = spoil
        with pytest.raises(TrainingError, match=said) as failed:
            ServedTeacher(run)
    assert failed.value.kind == "teacher"
    assert KEY not in failed.value.message
    assert len(server.asked) == 1


def test_a_teacher_with_another_tokenizer_is_refused_before_anything_is_played(
    make: Make, start: Start, trained: Path, teacher: Path, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    run = directory(make, trained)
    written = json.loads((trained / "tokenizer.json").read_text())
    vocabulary = written["model"]["vocab"]
    first, last = sorted(vocabulary, key=lambda text: vocabulary[text])[-2:]
    vocabulary[first], vocabulary[last] = vocabulary[last], vocabulary[first]
    AutoTokenizer.from_pretrained(trained).save_pretrained(tmp_path / "other")
    (tmp_path / "other" / "tokenizer.json").write_text(json.dumps(written))
    with hosted_model(teacher) as server, brokered(server) as broker:
        server.tokenizer = AutoTokenizer.from_pretrained(tmp_path / "other")
        assert start(run, hook=over, given=broker.path).wait() == 1
    assert (run.result["kind"], run.metrics()) == ("teacher", {})
    assert f"its token {min(vocabulary[first], vocabulary[last])} is " in run.result["message"]
    assert "choose a teacher of the same model family" in run.result["message"]


def test_texts_in_a_servers_own_spelling_are_the_same_tokens(
    make: Make, trained: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older servers tell a tokenizer's pieces, others what they decode to."""
    with hosted_model(teacher) as server, brokered(server) as broker:
        monkeypatch.setenv(VARIABLE, broker.path)

        def pieces(answer: dict[str, Any]) -> Any:
            for row in answer["choices"][0]["prompt_logprobs"][1:]:
                for token, told in row.items():
                    told["decoded_token"] = server.tokenizer.convert_ids_to_tokens(int(token))
            return answer

        server.spoil = pieces
        assert ServedTeacher(owned(directory(make, trained))).room == 511
        special = set(server.tokenizer.all_special_ids)
        assert special <= {token for asked in server.asked for token in asked[1:]}


@pytest.mark.parametrize(
    ("befalls", "said"),
    [("dies", "cannot be asked: no connection"), ("turns", "is not who it was: under big-model")],
)
def test_one_that_dies_or_becomes_another_costs_the_steps_since_the_last_checkpoint(
    befalls: str, said: str, make: Make, start: Start, trained: Path, teacher: Path,
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setattr(hosted_teacher, "PATIENCE_S", 0.2)
    run = directory(make, trained, checkpoint_every=1)
    with hosted_model(teacher) as server, brokered(server, concurrency=1) as broker:
        real = server.answer
        answers: list[int] = []

        def answer(body: dict[str, Any]) -> dict[str, Any]:
            found = real(body)
            answers.append(len(body["prompt"]))
            if run.metrics():  # the first step is learnt
                if befalls == "turns":
                    for row in found["choices"][0]["prompt_logprobs"][1:]:
                        for told in row.values():
                            told["logprob"] -= 1.0
                else:
                    server._http.socket.close()
                    raise ConnectionError
            return found

        server.answer = answer  # type: ignore[method-assign]
        server._http.handle_error = lambda *_: None  # type: ignore[method-assign]
        assert start(run, hook=over, given=broker.path).wait() == 1
    assert run.result["kind"] == "teacher"
    assert said in run.result["message"] or "the connection broke" in run.result["message"]
    assert "resume" in run.result["message"]
    assert sorted(run.metrics()) == [1], "nothing is learnt from what it says then"
    with hosted_model(teacher) as server, brokered(server) as broker:
        assert start(run, hook=over, given=broker.path).wait() == 0, run.errors()
    assert run.events("training_start")[-1]["resumed_from"] == 1
    assert sorted(run.metrics()) == [1, 2, 3]


def test_its_room_is_what_its_server_says_and_silence_is_no_limit(
    make: Make, trained: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = owned(directory(make, trained))
    with hosted_model(teacher) as server, brokered(server) as broker:
        monkeypatch.setenv(VARIABLE, broker.path)
        server.room = 100
        narrow = ServedTeacher(run)
        assert max(map(len, server.asked)) <= 99
        with pytest.raises(TrainingError, match=r"at its endpoint reads at most 99 tokens, .* smaller max_completion"):
            narrow.check_room({"long": 76})
        narrow.check_room({"just": 75})
        server.room = None
        ServedTeacher(run).check_room({"long": 10_000})


def test_nobody_is_asked_without_a_worker_and_a_broker_that_is_gone_ends_the_run(
    make: Make, trained: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = owned(directory(make, trained))
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(TrainingError, match="this trainer was started without one"):
        ServedTeacher(run)
    with hosted_model(teacher) as server:
        with brokered(server) as broker:
            monkeypatch.setenv(VARIABLE, broker.path)
            asked = ServedTeacher(run)
        with pytest.raises(TrainingError, match="is gone") as failed:
            asked._asked.score([([1, 2], [3])])
    assert failed.value.kind == "broker"
