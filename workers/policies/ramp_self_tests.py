"""The self-tests of ramps: do the servers of both arms answer with the weights of their versions?

Questions are asked greedily of each arm's server, under the name by which the gateway asks it, and of the version's own
weights, which are loaded once a ramp in a process of their own. Those whose answers differ by version are asked first:
who gets another's weights shows it. Of a vLLM server is asked besides whether it keeps its adapters apart in shared
batches, as before evals. Weights that are too large to be loaded beside beat are tested by that alone.

Why: docs/design/serving.md.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from django.db import connections
from django.utils import timezone

from flywheel.agents import artifacts
from flywheel.agents.models import Version
from flywheel.agents.weights import served_weights
from flywheel.core.envs.policy_rollouts import ChatRequest, ChatResponse, EngineError, Sampling
from flywheel.core.traces import Message
from flywheel.environments.models import Split
from flywheel.evals.serving import loaded_adapters
from flywheel.promotions.models import Ramp, SelfTest
from flywheel.promotions.ramps import self_tests
from flywheel.system import env
from flywheel.trajectories.ingest.gateway import routing
from flywheel.trajectories.ingest.gateway.routing import NoRoute, Route
from workers.engines.isolation import TOLERANCE, check_isolation
from workers.engines.openai_engine import OpenAIEngine
from workers.engines.process_engine import ProcessEngine
from workers.engines.vllm_engine import Trail, VllmEngine

log = logging.getLogger(__name__)

LOADED_MOST: Final = 500_000_000
"""Bytes of weights up to which a version's own are loaded to be compared with."""
TASKS: Final = 12
"""Of the candidate's eval, whose prompts are questions."""
ODD: Final = ("1 2 3 4 5", "The quick brown fox", "zqx vlorp 77", '{"a": [')
"""Questions besides, that no policy was trained for: versions that do the same at their tasks differ in these."""
ASKED, AT_ONCE = 6, 3
"""Questions of one self-test, and those of them that are asked in shared batches."""
TOKENS: Final = 24
PROMPT_MOST: Final = 2000
PATIENCE_S: Final = 60.0
"""How long a server may answer nobody; that it does not is what is found then."""
PAUSE_S: Final = 1.0
EXCERPT: Final = 200
T = TypeVar("T")
Verdict = SelfTest.Verdict
Row = dict[str, Any]
Ask = Callable[[Sequence[dict[str, Any]], Sequence[dict[str, Any]], Version, Route], list[tuple[str, bool]]]
"""Asks a server; of each answer the text, and whether it is what the own weights say."""


@dataclass(frozen=True, slots=True)
class Found:
    """A verdict on one arm."""

    verdict: str
    words: str
    evidence: tuple[Mapping[str, Any], ...] = ()


def make(ramps: Sequence[Ramp]) -> None:
    """Make and record the self-tests of these ramps. One that fails by itself costs the others nothing."""
    for ramp in ramps:
        began = timezone.now()
        try:
            arms = [_arm(ramp, arm) for arm in ("live", "candidate")]
            self_tests.record(ramp, began, arms)
        except Exception:
            log.exception("the self-test of %s could not be made; it is tried again", ramp)


def _arm(ramp: Ramp, arm: str) -> Row:
    version: Version = getattr(ramp.split, arm)
    cannot_be_asked = bool(self_tests.why_not(version))
    if cannot_be_asked and self_tests.needs_no_way(ramp):
        return self_tests.untested(ramp, arm)
    try:
        agent = ramp.split.agent
        way = _patiently(lambda: routing.way_to(ramp.split, version, agent, agent.served))
        if cannot_be_asked:
            return self_tests.untested(ramp, arm)
        found = _tested(ramp, version, way)
    except NoRoute as error:
        if cannot_be_asked and self_tests.needs_no_way(ramp):  # its first sessions came meanwhile
            return self_tests.untested(ramp, arm)
        why = f"the gateway cannot send the {arm} arm any call, so nothing is compared: {error}"
        found = Found(Verdict.FAILED, f"{why[:1000]}; mend that, then go on")
    except (EngineError, *loaded_adapters.CANNOT) as error:
        found = Found(Verdict.FAILED, str(error)[:1000])
    return self_tests.row_of(ramp, arm, found.verdict, found.words, found.evidence)


def _tested(ramp: Ramp, version: Version, way: Route) -> Found:
    """Raises EngineError, ServerError and NotServable."""
    probes = _probes(ramp)
    other = ramp.split.candidate if version.pk == ramp.split.live_id else ramp.split.live
    is_vllm = way.base_url.removesuffix("/v1") in env.vllm_urls()
    mixed = _kept_apart(version, way, probes) if is_vllm else None
    if mixed is not None and mixed.verdict == Verdict.FAILED:
        return mixed
    if not probes or str(version.pk) not in probes[0]["answers"]:
        size = served_weights.size_of(version)
        words = f"not compared with its own weights, which have {size:,} bytes; up to {LOADED_MOST:,} are loaded for it"
        if mixed is None:
            _answers(_requests([(Message("user", ODD[0]),)]), way)  # no stage begins before its weights are there
            return Found(Verdict.NOT_TESTED, f"it answers, {words}")
        return Found(mixed.verdict, f"{mixed.words}; {words}")
    compared = _compared(version, other, probes, way, is_vllm=is_vllm)
    if mixed is None or compared.verdict == Verdict.FAILED:
        return compared
    return Found(compared.verdict, f"{compared.words}; {mixed.words}", compared.evidence)


# Questions ------------------------------------------------------------------------------------------------------------


def _probes(ramp: Ramp) -> list[Row]:
    """The ramp's questions, those first whose answers tell its versions apart; made where there are none yet."""
    if not ramp.probes:
        ramp.probes = _made(ramp)
        Ramp.objects.filter(pk=ramp.pk).update(probes=ramp.probes)
    return list(ramp.probes)


def _made(ramp: Ramp) -> list[Row]:
    """Raises EngineError."""
    messages = _questions(ramp)
    versions = [ramp.split.live, ramp.split.candidate]
    own = {
        str(one.pk): _own_answers(one, messages)
        for one in versions
        if not self_tests.why_not(one) and served_weights.size_of(one) <= LOADED_MOST
    }
    rows: list[Row] = []
    for place, asked in enumerate(messages):
        answers = {pk: said[place] for pk, said in own.items()}
        if all(not answer.error for answer in answers.values()):
            kept = {pk: _as_json(answer) for pk, answer in answers.items()}
            rows.append({"messages": [message.to_json() for message in asked], "answers": kept})
    return sorted(rows, key=lambda row: not _tells_apart(row))[:ASKED]


def _questions(ramp: Ramp) -> list[tuple[Message, ...]]:
    """None of them is sealed, and both versions are asked with the same instructions, so that the weights alone make
    their answers differ."""
    every = ramp.candidate.version_eval.task_set.members.select_related("task")
    members = every.exclude(split=Split.SEALED)
    prompts = [member.task.prompt[:PROMPT_MOST] for member in members.order_by("task__number")[:TASKS]]
    system = ramp.split.candidate.system_prompt[:PROMPT_MOST]
    opening = (Message("system", system),) if system else ()
    return [(*opening, Message("user", prompt)) for prompt in [*prompts, *ODD] if prompt.strip()]


def _own_answers(version: Version, messages: Sequence[tuple[Message, ...]]) -> list[ChatResponse]:
    """The answers of the version's own weights. Raises EngineError."""
    try:
        with contextlib.closing(ProcessEngine(version.endpoint | artifacts.places(version))) as engine:
            return engine.chat(_requests(messages, tells_tokens=True))
    except (EngineError, artifacts.ArtifactError, OSError) as error:
        raise EngineError(f"the weights of {version} cannot be asked: {error}") from error


def _requests(messages: Sequence[tuple[Message, ...]], *, tells_tokens: bool = False) -> list[ChatRequest]:
    greedy = Sampling(temperature=0.0, max_tokens=TOKENS)
    return [ChatRequest(asked, greedy, seed, tells_tokens=tells_tokens) for seed, asked in enumerate(messages)]


def _as_json(answer: ChatResponse) -> Row:
    calls = [[call.name, call.arguments] for call in answer.tool_calls]
    return {"text": answer.text.replace("\0", "\ufffd"), "calls": calls, "tokens": list(answer.token_ids)}


def _tells_apart(row: Row) -> bool:
    first, *others = row["answers"].values() or [None]
    return any(other != first for other in others)


def _requests_of(probes: Sequence[Row]) -> list[ChatRequest]:
    read = [tuple(Message.from_json(message) for message in row["messages"]) for row in probes]
    return _requests(read)


# Answers --------------------------------------------------------------------------------------------------------------


def _compared(version: Version, other: Version, probes: Sequence[Row], way: Route, *, is_vllm: bool) -> Found:
    """Whether the server says what the version's own weights do. Raises EngineError."""
    own = [row["answers"][str(version.pk)] for row in probes]
    wrong = list(_differences(probes, own, _by_vllm if is_vllm else _by_ours, version, way))
    if wrong:
        whose = _whose(wrong[0], other, probes)
        many = f"{len(wrong)} of {len(probes)} answers of its server are not those of its own weights{whose}"
        return Found(Verdict.FAILED, many, tuple(wrong))
    telling = sum(map(_tells_apart, probes))
    same = f"{len(probes)} answers of its server are those of its own weights"
    is_one = (version.weights_id, version.adapter_id) == (other.weights_id, other.adapter_id)
    if is_one or str(other.pk) not in probes[0]["answers"]:
        return Found(Verdict.PASSED, same)
    if not telling:
        return Found(Verdict.NOT_TESTED, f"not tested: {same}, and no question tells it from {other}")
    return Found(Verdict.PASSED, f"{same}, {telling} of which tell it from {other}")


def _whose(wrong: Row, other: Version, probes: Sequence[Row]) -> str:
    answers = probes[wrong["place"]]["answers"]
    theirs = answers.get(str(other.pk))
    return f" but {other}'s" if theirs is not None and theirs["text"] == wrong["server"] else ""


def _differences(
    probes: Sequence[Row], own: Sequence[Row], ask: Ask, version: Version, way: Route
) -> Iterator[dict[str, Any]]:
    for place, (row, mine, (text, is_same)) in enumerate(zip(probes, own, ask(probes, own, version, way), strict=True)):
        if not is_same:
            asked = row["messages"][-1]["content"][:EXCERPT]
            yield {"place": place, "question": asked, "own": mine["text"][:EXCERPT], "server": text[:EXCERPT]}


def _by_ours(probes: Sequence[Row], own: Sequence[Row], version: Version, way: Route) -> list[tuple[str, bool]]:
    """The same program computes both, so that they are the same to the letter."""
    found = [_as_json(answer) for answer in _answers(_requests_of(probes), way)]
    return [
        (said["text"], (said["text"], said["calls"]) == (mine["text"], mine["calls"]))
        for said, mine in zip(found, own, strict=True)
    ]


def _answers(asked: Sequence[ChatRequest], way: Route) -> list[ChatResponse]:
    """Raises EngineError."""
    with contextlib.closing(OpenAIEngine(way.base_url, way.model, way.key(), patience_s=PATIENCE_S)) as engine:
        answers = _patiently(lambda: engine.chat(asked))
    if problem := next((answer.error for answer in answers if answer.error), ""):
        raise EngineError(problem)
    return list(answers)


def _by_vllm(probes: Sequence[Row], own: Sequence[Row], version: Version, way: Route) -> list[tuple[str, bool]]:
    """vLLM rounds differently: another token may be chosen where the second best was as good."""
    trails = _patiently(lambda: _vllm(version, way).trails([(way.model, asked) for asked in _requests_of(probes)]))
    return [(trail.text, _follows(trail, mine["tokens"])) for trail, mine in zip(trails, own, strict=True)]


def _follows(trail: Trail, tokens: Sequence[int]) -> bool:
    for place, (one, other) in enumerate(zip(trail.tokens, tokens, strict=False)):
        if one != other:
            return trail.leads[place] <= TOLERANCE
    return True


def _kept_apart(version: Version, way: Route, probes: Sequence[Row]) -> Found:
    """Whether the vLLM server keeps the version apart from what is live. Raises EngineError and ServerError."""
    arms, others = loaded_adapters.load_arms(version)
    report = _patiently(
        lambda: check_isolation(
            _vllm(version, way), arms, others, _requests_of(probes[:AT_ONCE]), loaded_adapters.SLOTS
        )
    )
    if report["passed"]:
        return Found(
            Verdict.PASSED, f"the server keeps adapters apart in {report['answers']} answers of shared batches"
        )
    if not report["evidence"]:
        return Found(Verdict.FAILED, f"the server does not apply adapters: {', '.join(report['untouched'])}")
    many = f"the server mixes adapters up in {report['different']} of {report['answers']} answers of shared batches"
    shown = [
        {"question": row["asked"], "own": row["alone"], "server": row["among_others"]} for row in report["evidence"]
    ]
    return Found(Verdict.FAILED, many, tuple(shown))


def _vllm(version: Version, way: Route) -> VllmEngine:
    settings = version.endpoint.get("chat_template_kwargs")

    def again() -> None:
        try:
            loaded_adapters.load_arms(version)
        finally:
            connections.close_all()  # this thread's own, which nobody else would close

    return VllmEngine(
        way.base_url.removesuffix("/v1"),
        way.model,
        way.key(),
        again=again,
        chat_template_kwargs=settings,
        patience_s=PATIENCE_S,
    )


def _patiently(ask: Callable[[], T]) -> T:
    """The result of asking, though the server is being started or its key replaced. Raises EngineError and NoRoute."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return ask()
        except (EngineError, NoRoute):
            if time.monotonic() > until:
                raise
            time.sleep(PAUSE_S)
