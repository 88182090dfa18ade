"""The self-test of a server: what passes, and each way in which adapters can be mixed up."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from flywheel.core.envs.policy_rollouts import ChatRequest, Sampling
from flywheel.core.traces import Message
from workers.engines.isolation import TOLERANCE, check_isolation
from workers.engines.vllm_engine import Trail

REQUESTS = [ChatRequest((Message("user", f"request {seed}"),), Sampling(0.0), seed) for seed in range(3)]
ARMS, PROBES, SLOTS = ["new", "identity"], ["probe0", "probe1"], 4


def answer(model: str, seed: int, logprob: float = -0.5, lead: float = 2.0, last: int = 0) -> Trail:
    first = {"new": 100, "identity": 200, "live": 300, "other1": 400, "other2": 500, "other3": 600}.get(model, 900)
    return Trail(model, (first + seed, 7, last), (logprob,) * 3, (2.0, 2.0, lead))


class Fake:
    """A server whose batches a test decides: `mixed(model, seed)` is what is answered among others."""

    def __init__(self, mixed: Callable[[str, int], Trail] = answer) -> None:
        self.mixed = mixed
        self.asked: list[tuple[int, list[str]]] = []

    def trails(self, questions: Sequence[tuple[str, ChatRequest]], at_once: int = 1) -> list[Trail]:
        self.asked.append((at_once, [model for model, _ in questions]))
        return [(answer if at_once == 1 else self.mixed)(model, request.seed) for model, request in questions]


def check(server: Any) -> dict[str, Any]:
    return check_isolation(server, ARMS, PROBES, REQUESTS, SLOTS)


def test_a_server_that_keeps_them_apart_passes() -> None:
    server = Fake()
    report = check(server)
    assert report["passed"]
    assert (report["different"], report["evidence"], report["untouched"], report["worst_nats"]) == (0, [], [], 0.0)
    assert report["answers"] == 2 * 3 * 4
    alone, *together = server.asked
    assert alone == (1, ["new", "identity", "probe0"] * 3)
    assert together == [(12, ["new", "identity", "probe0", "probe1"] * 3)] * 2


def test_the_first_arm_shares_a_full_batch_with_every_other_and_a_probe() -> None:
    server = Fake()
    arms = ["new", "live", "identity", "other1", "other2", "other3"]
    report = check_isolation(server, arms, PROBES[:1], REQUESTS, SLOTS)
    alone, *together = server.asked
    assert alone == (1, [*arms, "probe0"] * 3)
    groups = [names[:SLOTS] for _, names in together]
    assert all(names == group * 3 for (_, names), group in zip(together, groups, strict=True))
    assert (
        groups
        == [
            ["new", "live", "identity", "probe0"],
            ["new", "other1", "other2", "probe0"],
            ["new", "other2", "other3", "probe0"],  # filled up, so that no place is left to spare
        ]
        * 2
    )
    assert (report["passed"], report["arms"], report["answers"]) == (True, arms, 2 * 3 * 3 * SLOTS)


def test_a_mix_up_with_the_last_of_many_is_seen() -> None:
    arms = ["new", "live", "identity", "other1", "other2"]
    server = Fake(lambda model, seed: answer("other2" if (model, seed) == ("new", 1) else model, seed))
    assert not check_isolation(server, arms, PROBES[:1], REQUESTS, SLOTS)["passed"]


@pytest.mark.parametrize("got", ["probe0", "new"])
def test_another_adapters_answer_fails_it_with_the_evidence(got: str) -> None:
    report = check(Fake(lambda model, seed: answer(got if model == "identity" else model, seed)))
    assert not report["passed"]
    assert report["different"] == 2 * 3
    assert report["evidence"][0] == {
        "arm": "identity",
        "asked": "request 0",
        "token": 0,
        "alone": "identity",
        "among_others": got,
        "nats": None,
    }


def test_one_row_of_many_is_enough() -> None:
    report = check(Fake(lambda model, seed: answer("probe0" if (model, seed) == ("new", 2) else model, seed)))
    assert not report["passed"]
    assert {(row["arm"], row["asked"]) for row in report["evidence"]} == {("new", "request 2")}


def test_the_same_tokens_with_other_probabilities_fail_it() -> None:
    report = check(Fake(lambda model, seed: answer(model, seed, logprob=-0.5 - 2 * TOLERANCE)))
    assert not report["passed"]
    assert report["evidence"][0]["nats"] == pytest.approx(2 * TOLERANCE)


def test_rounding_is_no_mixing() -> None:
    report = check(Fake(lambda model, seed: answer(model, seed, logprob=-0.5 - TOLERANCE / 2)))
    assert report["passed"]
    assert report["worst_nats"] == pytest.approx(TOLERANCE / 2)


@pytest.mark.parametrize(("lead", "passed"), [(TOLERANCE / 2, True), (3 * TOLERANCE, False)])
def test_another_token_is_rounding_only_where_two_were_as_good_as_equal(lead: float, passed: bool) -> None:
    class Close(Fake):
        def trails(self, questions: Sequence[tuple[str, ChatRequest]], at_once: int = 1) -> list[Trail]:
            return [answer(model, r.seed, lead=lead, last=int(at_once > 1)) for model, r in questions]

    assert check(Close())["passed"] is passed


def test_an_answer_that_ends_sooner_fails_it() -> None:
    def short(model: str, seed: int) -> Trail:
        whole = answer(model, seed)
        return Trail(whole.text, whole.tokens[:2], whole.logprobs[:2], whole.leads[:2])

    assert check(Fake(short))["evidence"][0]["token"] == 2


def test_a_server_that_applies_no_adapter_fails_it() -> None:
    class Deaf(Fake):
        def trails(self, questions: Sequence[tuple[str, ChatRequest]], at_once: int = 1) -> list[Trail]:
            return [answer("base", request.seed) for _, request in questions]

    report = check(Deaf())
    assert (report["passed"], report["different"]) == (False, 0)
    assert report["untouched"] == ARMS
