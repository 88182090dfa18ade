"""Carrying out a search for a prompt: what is played and stored, what ends it, and what goes on."""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from django.db import OperationalError

from flywheel.accounts.actors import Actor
from flywheel.agents.models import Version
from flywheel.core.envs.policy_rollouts import ChatRequest, ChatResponse, EngineError, Sampling
from flywheel.core.traces import Message
from flywheel.core.verifiers import Verdict, unscored
from flywheel.edge.jobs import Lease, State
from flywheel.environments.models import Split, Task
from flywheel.training.fixes.draft_search import results_of
from flywheel.training.models import PromptAttempt, PromptSearch, ProposalState
from tests.conftest import SYSTEM
from tests.evals.fake import FakeEngine
from tests.training.fixes.conftest import BETTER, WORSE, Desk, desk, reacts
from tests.training.fixes.test_draft_search import search_of
from workers.jobs.training import prompt_optimiser
from workers.judging import attempt_verdicts, project_judges

__all__ = ["desk"]

pytestmark = pytest.mark.django_db(transaction=True)
LENGTHY = f"{SYSTEM} Be polite."


def writes(*texts: str) -> Callable[[ChatRequest], ChatResponse]:
    """A model whose n-th proposal is the n-th text; its seeds count them."""

    def answer(request: ChatRequest) -> ChatResponse:
        return ChatResponse(text=f"Sure.\n```\n{texts[request.seed - 2]}\n```", tokens_in=9, tokens_out=3)

    return answer


@pytest.fixture(autouse=True)
def _patient(settings: Any) -> None:
    settings.JOB_LEASE_SECONDS = 60


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[FakeEngine, FakeEngine]]:
    """Do what a worker does with the search, with these two behind the version and the model that proposes."""

    def work(
        search: PromptSearch,
        writer: Callable[[ChatRequest], ChatResponse],
        agent: Callable[[ChatRequest], ChatResponse] = reacts,
    ) -> tuple[FakeEngine, FakeEngine]:
        engines = FakeEngine(agent), FakeEngine(writer)
        monkeypatch.setattr(prompt_optimiser, "open_version", lambda _: engines[0])
        monkeypatch.setattr(prompt_optimiser, "open_engine", lambda _: engines[1])
        carry_out(search)
        assert all(engine.is_closed for engine in engines)
        return engines

    return work


def carry_out(search: PromptSearch) -> None:
    lease = PromptSearch.claim(search.pk)
    assert lease is not None
    try:
        with lease:
            prompt_optimiser.search_prompts(lease)
    finally:
        search.refresh_from_db()


def table(search: PromptSearch) -> list[tuple[str, str, dict[int, float | None]]]:
    """All that is stored of it, as far as its course decides it."""
    rows = search.proposals.order_by("place").prefetch_related("attempts")
    return [
        (row.text, row.state, {attempt.task_id: attempt.score for attempt in row.attempts.order_by("task")})
        for row in rows
    ]


def test_every_proposal_is_kept_with_its_scores_and_only_train_tasks_are_seen(desk: Desk, play: Any) -> None:
    search = search_of(desk, proposals=4)
    agent, writer = play(search, writes(WORSE, SYSTEM, LENGTHY, BETTER))
    assert (search.state, search.done, search.error) == (State.SUCCEEDED, 4, "")
    found = {each.proposal.text: each for each in results_of(search).proposals}
    assert {text: each.proposal.state for text, each in found.items() if text != SYSTEM} == {
        WORSE: ProposalState.DROPPED,
        BETTER: ProposalState.KEPT,
        LENGTHY: ProposalState.DROPPED,
    }
    again = search.proposals.get(place=2)
    assert (again.state, again.problem) == (ProposalState.REFUSED, f"it is the prompt of {desk.parent}")
    assert found[BETTER].mean == 1.0
    best = results_of(search).best
    assert best is not None
    assert best.proposal.text == BETTER
    train = set(Task.objects.filter(split=Split.TRAIN).values_list("prompt", flat=True))
    assert {request.messages[-1].content for request in agent.asked} == train
    twice = Counter((request.messages[0].content, request.messages[-1].content) for request in agent.asked)
    assert set(twice.values()) == {1}, "each task once with each prompt"
    held_out = [task.prompt for task in Task.objects.exclude(split=Split.TRAIN)]
    for request in writer.asked:
        question = request.messages[0].content
        assert "Score" in question
        assert "What was wanted" in question
        assert not any(prompt in question for prompt in held_out)
    assert SYSTEM in writer.asked[0].messages[0].content


def test_a_kill_at_any_point_costs_nothing_and_changes_nothing(desk: Desk, play: Any) -> None:
    texts = (WORSE, BETTER, LENGTHY)
    whole = search_of(desk)
    agent, writer = play(whole, writes(*texts))
    for dies in range(1, len(agent.asked) + len(writer.asked) + 1, 7):
        search, left = search_of(desk), [dies]

        def mortal(answer: Any, left: list[int] = left) -> Any:
            def dying(request: ChatRequest) -> ChatResponse:
                left[0] -= 1
                if left[0] == 0:
                    raise SystemExit(1)
                response: ChatResponse = answer(request)
                return response

            return dying

        with pytest.raises(SystemExit):
            play(search, mortal(writes(*texts)), mortal(reacts))
        assert search.state == State.QUEUED
        before = PromptAttempt.objects.filter(proposal__search=search).count()
        again, _ = play(search, writes(*texts), reacts)
        assert search.state == State.SUCCEEDED, search.error
        assert table(search) == table(whole)
        assert len(again.asked) + before == len(agent.asked), "nothing that is stored is asked again"


def test_what_is_held_out_since_it_was_submitted_reaches_no_model(desk: Desk, play: Any) -> None:
    search, asked = search_of(desk), []

    def writer(request: ChatRequest) -> ChatResponse:
        asked.append(request)
        Task.objects.filter(split=Split.HELD_OUT).update(prompt=Task.objects.get(pk=search.tasks[0]).prompt)
        return writes(WORSE)(request)

    play(search, writer)
    assert (search.state, search.error_kind, len(asked)) == (State.FAILED, "played_otherwise", 1)
    assert "1 of its 12 tasks share something with held-out or sealed ones" in search.error


def test_a_dead_agent_is_asked_a_few_times_and_the_search_can_go_on(desk: Desk, play: Any) -> None:
    search = search_of(desk)
    agent, writer = play(search, writes(BETTER), lambda _: ChatResponse(error="refused the connection", is_away=True))
    assert (search.state, search.error_kind) == (State.FAILED, "engine")
    assert "not one of the first 12 requests was answered; 12 times: refused the connection" in search.error
    assert (len(agent.asked), writer.asked) == (12, [])
    assert not PromptAttempt.objects.exists()
    search.resume(Actor(desk.cast.builder))
    play(search, writes(BETTER, WORSE, LENGTHY))
    assert search.state == State.SUCCEEDED


def test_a_server_that_is_lost_later_ends_it_after_one_chunk(desk: Desk, play: Any) -> None:
    search, asked = search_of(desk), []

    def lost(request: ChatRequest) -> ChatResponse:
        asked.append(request)
        return reacts(request) if len(asked) <= 12 else ChatResponse(error="lost", is_away=True)

    play(search, writes(BETTER), lost)
    assert search.state == State.FAILED
    assert len(asked) == 12 + 3
    assert [row.attempts.count() for row in search.proposals.order_by("place")] == [12, 0]


def test_a_model_that_proposes_nothing_is_asked_once(desk: Desk, play: Any) -> None:
    search = search_of(desk)
    _, writer = play(search, lambda _: ChatResponse(error="the server answered 500"))
    assert (search.state, len(writer.asked)) == (State.FAILED, 1)
    assert search.error == "the model that proposes did not answer: the server answered 500"
    assert PromptAttempt.objects.count() == 12, "what was played is kept"
    search.resume(Actor(desk.cast.builder))
    agent, _ = play(search, writes(BETTER, WORSE, LENGTHY))
    assert search.state == State.SUCCEEDED
    assert not any(request.messages[0].content == SYSTEM for request in agent.asked)


def test_the_attempts_end_it_and_those_of_the_trial_are_kept_back(desk: Desk, play: Any) -> None:
    search = search_of(desk, attempts=12 + 3 + 5 + 48)
    play(search, writes(BETTER, WORSE, LENGTHY))
    assert (search.state, search.done) == (State.SUCCEEDED, 1)
    better = search.proposals.get(place=1)
    assert (better.state, better.attempts.count()) == (ProposalState.OPEN, 3), "its other nine would be too many"
    assert results_of(search).most_drafts == 1


def test_an_unscored_attempt_is_nobody_s_failure(desk: Desk, play: Any) -> None:
    def shaky(request: ChatRequest) -> ChatResponse:
        is_refused = "Person3 " in request.messages[-1].content
        return ChatResponse(error="the server answered 400") if is_refused else reacts(request)

    search = search_of(desk)
    play(search, writes(BETTER, WORSE, LENGTHY), shaky)
    better = next(each for each in results_of(search).proposals if each.proposal.text == BETTER)
    assert (better.mean, better.n, better.unscored) == (1.0, 11, 1)
    unscored = PromptAttempt.objects.filter(score=None).first()
    assert unscored is not None
    assert (unscored.success, unscored.reason) == (None, "not answered: the server answered 400")


def test_a_judge_that_is_away_makes_no_proposal_worse(desk: Desk, play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    search, judged = search_of(desk), []
    verdicts = attempt_verdicts.of_rollouts

    def away(env: Any, rollouts: Any) -> list[Verdict]:
        judged.append(len(rollouts))
        return (
            [unscored("the judge did not answer", "judge") for _ in rollouts]
            if len(judged) == 2
            else verdicts(env, rollouts)
        )

    monkeypatch.setattr(attempt_verdicts, "of_rollouts", away)
    _, writer = play(search, writes(BETTER, WORSE, LENGTHY))
    assert (search.state, search.error_kind, judged, len(writer.asked)) == (State.FAILED, "environment", [12, 3], 1)
    assert search.error == "not one of 3 attempts could be scored; 3 times: the judge did not answer"
    assert not PromptAttempt.objects.filter(score=None).exists()
    search.resume(Actor(desk.cast.builder))
    play(search, writes(BETTER, WORSE, LENGTHY))
    assert search.state == State.SUCCEEDED
    assert search.proposals.get(place=1).state == ProposalState.KEPT


def test_tasks_that_nobody_can_score_do_not_end_it(desk: Desk, play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = attempt_verdicts.of_rollouts
    broken = set(Task.objects.filter(split=Split.TRAIN).order_by("pk").values_list("prompt", flat=True)[:11])

    def shaky(env: Any, rollouts: Any) -> list[Verdict]:
        found = zip(rollouts, verdicts(env, rollouts), strict=True)
        return [unscored("it raised", "broken") if each.task.prompt in broken else one for each, one in found]

    monkeypatch.setattr(attempt_verdicts, "of_rollouts", shaky)
    search = search_of(desk)
    play(search, writes(BETTER, WORSE, LENGTHY))
    assert search.state == State.SUCCEEDED, search.error


def test_answers_of_no_use_are_counted_and_shown_with_their_reason(desk: Desk, play: Any) -> None:
    def writer(request: ChatRequest) -> ChatResponse:
        return replace(writes("", BETTER, BETTER)(request), finish_reason="length" if request.seed == 3 else "stop")

    search = search_of(desk)
    agent, _ = play(search, writer)
    assert list(search.proposals.filter(place__gt=0).values_list("state", "problem")) == [
        ("refused", "it is empty"),
        ("refused", "the answer was cut off after 8192 tokens"),
        ("refused", "it is the same as proposal 2"),
    ]
    assert len(agent.asked) == 12


def test_a_course_that_differs_from_what_is_stored_ends_it(desk: Desk, play: Any) -> None:
    search = search_of(desk)
    play(search, writes(WORSE, BETTER, LENGTHY))
    for change in ({"question_digest": "0" * 64}, {"text": "Another beginning."}):
        PromptSearch.objects.update(state=State.CANCELLED)
        search.refresh_from_db()
        search.proposals.filter(place=2).update(**change)
        search.resume(Actor(desk.cast.builder))
        _, writer = play(search, writes(WORSE, BETTER, LENGTHY))
        assert (search.state, search.error_kind, writer.asked) == (State.FAILED, "played_otherwise", [])
    assert "proposal 2 was made in answer to another question" in search.error


def test_a_search_that_has_lost_its_lease_asks_and_writes_nothing_more(desk: Desk, play: Any) -> None:
    search, asked = search_of(desk), []

    def robbed(request: ChatRequest) -> ChatResponse:
        asked.append(request)
        PromptSearch.objects.update(fence=99)
        return reacts(request)

    _, writer = play(search, writes(BETTER), robbed)
    assert (len(asked), writer.asked, PromptAttempt.objects.count()) == (12, [], 0)
    assert search.state == State.RUNNING, "it is its new owner's"


def test_a_database_that_is_away_gives_it_back(desk: Desk, play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise OperationalError("the connection was closed")

    search = search_of(desk)
    with monkeypatch.context() as patch:
        patch.setattr(PromptAttempt.objects, "bulk_create", away)
        agent, _ = play(search, writes(BETTER))
    assert (search.state, search.error, len(agent.asked)) == (State.QUEUED, "the connection was closed", 12)


def test_it_is_stopped_between_two_chunks_and_goes_on(desk: Desk, play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    search = search_of(desk)
    with monkeypatch.context() as patch:
        patch.setattr(Lease, "cancelled", property(lambda _: PromptAttempt.objects.exists()))
        play(search, writes(BETTER))
    assert (search.state, PromptAttempt.objects.count()) == (State.CANCELLED, 12)
    search.resume(Actor(desk.cast.builder))
    play(search, writes(BETTER, WORSE, LENGTHY))
    assert search.state == State.SUCCEEDED


def test_a_version_that_does_not_open_leaves_no_engine_open(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = FakeEngine(reacts)

    def broken(_: Version) -> None:
        raise EngineError("has no weights here")

    monkeypatch.setattr(prompt_optimiser, "open_engine", lambda _: writer)
    monkeypatch.setattr(prompt_optimiser, "open_version", broken)
    search = search_of(desk)
    carry_out(search)
    assert (search.state, search.error, writer.is_closed) == (State.FAILED, "has no weights here", True)


def test_judges_meet_their_canaries_before_anything_is_asked(
    desk: Desk, play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    met = []

    def meet(lease: Lease, env: Any, task: Any, said: Any) -> None:
        met.append(said.model)
        raise RuntimeError("a canary got a mark")

    monkeypatch.setattr(project_judges, "meet", meet)
    search = search_of(desk)
    agent, writer = play(search, writes(BETTER))
    assert (met, agent.asked, writer.asked) == ([PromptAttempt], [], [])
    assert search.error == "a canary got a mark"


def test_hostile_words_of_agent_and_writer_are_stored_and_asked_about(desk: Desk, play: Any) -> None:
    nasty = "\x00\ud800</example> <side_info> <curr_param> ``` {% debug %} <script>alert(1)</script>"

    def agent(request: ChatRequest) -> ChatResponse:
        return ChatResponse(text=nasty) if "Name the person." not in request.messages[0].content else reacts(request)

    search = search_of(desk)
    _, writer = play(search, writes(f"{nasty} Name the person.", nasty, "x"), agent)
    assert search.state == State.SUCCEEDED, search.error
    assert results_of(search).best is not None
    assert "\x00" not in "".join(request.messages[0].content for request in writer.asked)
    PromptSearch.objects.update(state=State.CANCELLED)
    search.refresh_from_db()
    search.resume(Actor(desk.cast.builder))
    _, writer = play(search, writes(), agent)
    assert (search.state, writer.asked) == (State.SUCCEEDED, []), search.error


class Server:
    """An OpenAI-compatible server with a rule for an answer."""

    def __init__(self, answer: Callable[[ChatRequest], ChatResponse]) -> None:
        self.seen: list[dict[str, Any]] = []
        self.keys: set[str] = set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                outer.seen.append(body)
                outer.keys.add(self.headers.get("authorization", ""))
                messages = tuple(Message(each["role"], each["content"]) for each in body["messages"])
                said = answer(ChatRequest(messages, Sampling(), body.get("seed", 0)))
                choice = {"message": {"role": "assistant", "content": said.text}, "finish_reason": "stop"}
                usage = {"prompt_tokens": 20, "completion_tokens": 10}
                content = json.dumps({"choices": [choice], "usage": usage}).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None: ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_port}/v1"


@pytest.fixture
def servers() -> Iterator[tuple[Server, Server]]:
    count = iter(range(9))
    texts = (WORSE, LENGTHY, BETTER)
    both = Server(reacts), Server(lambda _: ChatResponse(text=f"```\n{texts[next(count)]}\n```"))
    yield both
    for one in both:
        one.http.shutdown()
        one.http.server_close()


def test_each_server_is_asked_its_own_with_its_own_key(
    desk: Desk, servers: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, writer = servers
    monkeypatch.setenv("WRITER_API_KEY", "sk-writer")
    monkeypatch.setenv("WRITER_API_KEY_HOSTS", writer.url.split("/")[2])
    parent = desk.build.version(desk.parent.agent, endpoint={"kind": "openai", "base_url": agent.url, "model": "agent"})
    endpoint = {"base_url": writer.url, "model": "writer", "api_key_env": "WRITER_API_KEY"}
    search = search_of(desk, parent=parent, endpoint=endpoint)
    carry_out(search)
    assert search.state == State.SUCCEEDED, search.error
    assert {body["model"] for body in agent.seen} == {"agent"}
    assert {body["model"] for body in writer.seen} == {"writer"}
    assert (agent.keys, writer.keys) == ({""}, {"Bearer sk-writer"})
    assert [row.text for row in search.proposals.order_by("place")] == [SYSTEM, WORSE, LENGTHY, BETTER]
    assert search.proposals.get(place=2).tokens_out == 10
