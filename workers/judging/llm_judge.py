"""Asking LLM judges: votes, answers that do not fit, canaries among the attempts, and what is remembered.

One `Judge` for each run (an eval, a rescoring, a proof, a trial, a training run), since a canary that gets a mark voids
all that was judged in it. No Django here: what remembers beyond the run is handed in.
"""

import contextlib
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol
from weakref import WeakValueDictionary

from flywheel.core import digests
from flywheel.core.envs.policy_rollouts import ChatRequest, ChatResponse, Engine, EngineError, Sampling
from flywheel.core.traces import Message
from flywheel.core.verifiers import Verdict, judge_prompts, unscored
from flywheel.core.verifiers.attempt_places import TooLong
from workers.engines.engine_endpoints import open_engine

TOKENS = 1024
"""Of an answer."""
TIMEOUT_S = 120.0
AT_ONCE = 16
"""Requests under way at most, for each part; a server that is full gets fewer."""
EVERY = 20
"""After so many judgements one canary more, each kind in its turn."""
KNOWN_MAX = 50_000
"""Judgements of a part that a run without a memory knows again: it may go on for weeks."""

Asked = tuple[Mapping[str, Any], Mapping[str, Any], Any]
"""Settings of the part, the attempt as it is told, the reference."""


class JudgeError(RuntimeError):
    """A judge cannot be asked at all, or what it says cannot be believed in this run."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class Memory(Protocol):
    """Verdicts of judges in other runs, by key."""

    def recall(self, keys: Iterable[str]) -> Mapping[str, Verdict]: ...

    def keep(self, said: Mapping[str, Verdict]) -> None: ...

    def forget(self, keys: Iterable[str]) -> None: ...


class Judge:
    """`Runners.judge` of one run. It may be called from several threads, `recall` and `keep` from the run's own."""

    def __init__(
        self,
        endpoints: Mapping[str, Mapping[str, Any]],
        names: Mapping[str, str],
        report: Mapping[str, Any] | None = None,
        memory: Memory | None = None,
    ) -> None:
        """`endpoints` by the names that parts have for them; `names` of the parts by their digest. `report` is what an
        earlier owner of the run has left: its counts go on, and what was void stays void."""
        self._endpoints, self._names, self._memory = endpoints, names, memory
        self._before = report or {}
        self._parts: dict[str, _Part] = {}
        self._lock = threading.Lock()

    def __call__(
        self, settings: Mapping[str, Any], trace: Mapping[str, Any], reference: Any, *, anew: bool = False
    ) -> Verdict:
        try:
            return self._part(settings).verdict(trace, reference, anew)
        except TooLong as error:  # by its own words it has failed; by what it was told it has not
            if judge_prompts.rambles(settings, trace, reference):
                return Verdict(0.0, str(error))
            return unscored(str(error), "output")

    def recall(self, asked: Iterable[Asked]) -> None:
        """Look up at once what was said of these in other runs. The first of a part meets its canaries before."""
        waiting: dict[str, _Part] = {}
        for settings, trace, reference in asked:
            try:
                part = self._part(settings)
                if part.is_open(trace, reference):
                    waiting[part.key_of(trace, reference)] = part
            except TooLong:
                continue
        if self._memory is not None and waiting:
            for key, verdict in self._memory.recall(waiting).items():
                waiting[key].known.setdefault(key, verdict)

    def keep(self) -> None:
        """Let others know what was said since; of a judge that is void by now, nothing that it ever said of these."""
        for part in self._parts.values():
            with part.lock:
                fresh, part.fresh = part.fresh, {}
            if self._memory is not None and part.void:
                self._memory.forget(part.known)
            elif self._memory is not None and fresh:
                self._memory.keep(fresh)

    def close(self) -> None:
        """Ask nothing more, also where an answer is waited for."""
        for part in list(self._parts.values()):
            if part.engine is not None:
                part.engine.close()

    @property
    def report(self) -> dict[str, Any]:
        """By part: who answered, how much was asked, and why it is void, if it is. JSON."""
        return {**self._before, **{part.name: part.report for part in list(self._parts.values())}}

    @property
    def void(self) -> dict[str, str]:
        """The parts whose scores do not count in this run, and why."""
        return {name: row["void"] for name, row in self.report.items() if row.get("void")}

    @property
    def problem(self) -> str:
        """Why a part cannot be asked at all."""
        return next((part.problem.reason for part in list(self._parts.values()) if part.problem), "")

    def _part(self, settings: Mapping[str, Any]) -> "_Part":
        digest = judge_prompts.part_digest(settings)
        with self._lock:
            if digest not in self._parts:
                name = self._names.get(digest, digest[:12])
                endpoint = self._endpoints.get(settings["endpoint"], {})
                before = self._before.get(name, {})
                self._parts[digest] = _Part(name, digest, settings, endpoint, before, self._memory is not None)
            return self._parts[digest]


class _Part:
    """One judge: a part of a rubric, behind its endpoint."""

    def __init__(
        self,
        name: str,
        digest: str,
        settings: Mapping[str, Any],
        endpoint: Mapping[str, Any],
        before: Mapping[str, Any],
        is_kept: bool,
    ) -> None:
        self.name, self._digest, self._settings, self._is_kept = name, digest, settings, is_kept
        self._address = endpoint.get("base_url", "")
        self._top: int = settings["top"]
        self._models: list[str] = list(before.get("models", ()))
        self._model = ""
        """Who answered last."""
        self._counts = {key: int(before.get(key, 0)) for key in COUNTS}
        self._cost_usd: float | None = before.get("cost_usd") if before else 0.0
        """None once an answer came whose cost nobody knows."""
        self.void: str = before.get("void", "")
        self.problem: Verdict | None = None
        self.known: dict[str, Verdict] = {}
        self.fresh: dict[str, Verdict] = {}
        self._asking = WeakValueDictionary[str, threading.Lock]()
        self.lock, self._opening = threading.Lock(), threading.Lock()
        self._is_open, self._since, self._turn = False, 0, 0
        self._is_bounded = True
        """Whether its server takes the schema with a bound on the reason."""
        self.engine: Engine | None = None
        try:
            self.engine = engine_of(settings, endpoint)
        except EngineError as error:
            self.problem = unscored(f"the judge cannot be asked: {error}", "judge")

    @property
    def report(self) -> dict[str, Any]:
        return {"models": list(self._models), **self._counts, "cost_usd": self._cost_usd, "void": self.void}

    @property
    def refusal(self) -> Verdict | None:
        return unscored(self.void, "canary") if self.void else self.problem

    def verdict(self, trace: Mapping[str, Any], reference: Any, anew: bool) -> Verdict:
        messages = judge_prompts.messages_of(self._settings, trace, reference)
        if not self.is_open(trace, reference):
            return self.refusal or unscored("the judge was not asked", "judge")
        with self._asked_alone(self._key(messages)):
            if not anew and (found := self.known.get(self._key(messages))):
                self._count(remembered=1)
                return found
            verdict = self._ask(messages)
            if verdict.score is not None:
                self._remember(self._key(messages), verdict)  # another model may have answered by now
                self._count(judged=1)
        if verdict.score is not None:
            self._canary_in_turn(trace, reference)
        return self.refusal or verdict

    def _asked_alone(self, key: str) -> threading.Lock:
        """A lock under which one at a time asks the same: of attempts that are alike all but the first wait for what is
        said of it."""
        with self.lock:
            if (found := self._asking.get(key)) is None:
                found = self._asking[key] = threading.Lock()
        return found

    def _remember(self, key: str, verdict: Verdict) -> None:
        with self.lock:
            self.known[key] = verdict
            if self._is_kept:
                self.fresh[key] = verdict
            elif len(self.known) > KNOWN_MAX:
                del self.known[next(iter(self.known))]

    def is_open(self, trace: Mapping[str, Any], reference: Any) -> bool:
        """Whether it may judge: all kinds of canaries have got their 0, at the latest now. Raises TooLong."""
        with self._opening:
            if not self._is_open and self.refusal is None:
                found = judge_prompts.canaries(self._settings, trace)
                with ThreadPoolExecutor(AT_ONCE) as pool:
                    missing = list(pool.map(lambda name: self._canary(name, found[name], reference), found))
                unsaid = next((verdict for verdict in missing if verdict is not None), None)
                if unsaid is not None:
                    self.problem = unscored(f"its canaries could not be judged: {unsaid.reason}", unsaid.cause)
                self._is_open = unsaid is None
            return self.refusal is None

    def key_of(self, trace: Mapping[str, Any], reference: Any) -> str:
        return self._key(judge_prompts.messages_of(self._settings, trace, reference))

    def _key(self, messages: Sequence[Message]) -> str:
        """Return the key of the part, the attempt in its words, the address, and the model that answers there now."""
        said = [message.content for message in messages]
        return digests.digest([self._digest, self._address, self._model, said])

    def _canary_in_turn(self, trace: Mapping[str, Any], reference: Any) -> None:
        with self.lock:
            self._since += 1
            if self._since < EVERY:
                return
            self._since, turn = 0, self._turn
            self._turn += 1
        found = judge_prompts.canaries(self._settings, trace)
        name = list(found)[turn % len(found)]
        with contextlib.suppress(TooLong):  # beside a request that nearly fills what a judge is shown
            self._canary(name, found[name], reference)

    def _canary(self, name: str, trace: Mapping[str, Any], reference: Any) -> Verdict | None:
        """Judge one. Gives the verdict where it has no score, which says nothing about the judge."""
        verdict = self._ask(judge_prompts.messages_of(self._settings, trace, reference))
        if verdict.score is None:
            return verdict
        self._count(canaries=1)
        if verdict.score > 0:
            mark = round(verdict.score * self._top)
            self.void = (
                f"the judge {self.name} gave {mark} of {self._top} to a canary that must get 0 ({name}), "
                "so nothing that it said in this run counts"
            )
        return None

    def _ask(self, messages: tuple[Message, ...]) -> Verdict:
        """All votes; one that does not fit is asked for once more."""
        count = self._settings["votes"]
        try:
            found = enumerate(self._chat(messages, range(count)))
            votes = [self._vote(messages, response, count + number) for number, response in found]
        except judge_prompts.Malformed as error:
            return unscored(str(error), "malformed")
        except EngineError as error:
            return unscored(judge_prompts.plain(f"the judge did not answer: {error}"), "judge")
        return judge_prompts.verdict(votes, self._top)

    def _vote(self, messages: tuple[Message, ...], response: ChatResponse, seed: int) -> judge_prompts.Said:
        """Raises EngineError and Malformed."""
        try:
            return self._read(response)
        except judge_prompts.Malformed:
            if response.finish_reason == "length":  # it would write as much again
                raise
            return self._read(self._chat(messages, [seed])[0])

    def _chat(self, messages: tuple[Message, ...], seeds: Sequence[int]) -> list[ChatResponse]:
        is_bounded = self._is_bounded
        found = self._answers(messages, seeds, is_bounded)
        if is_bounded and all(response.error.startswith(REFUSED) for response in found):
            found = self._answers(messages, seeds, False)
            if not all(response.error for response in found):
                self._is_bounded = False
        return found

    def _answers(self, messages: tuple[Message, ...], seeds: Sequence[int], is_bounded: bool) -> list[ChatResponse]:
        assert self.engine is not None, "who has a problem is not asked"
        sampling, schema = (
            Sampling(temperature=0.0, max_tokens=TOKENS),
            judge_prompts.schema(self._top, is_bounded=is_bounded),
        )
        try:
            found = self.engine.chat([ChatRequest(messages, sampling, seed, schema=schema) for seed in seeds])
        except EngineError as error:
            return [ChatResponse(error=str(error)) for _ in seeds]
        for response in found:
            self._count(requests=1, tokens_in=response.tokens_in or 0, tokens_out=response.tokens_out or 0)
            if response.error:
                continue
            with self.lock:
                before, paid = self._cost_usd, response.cost_usd
                self._cost_usd = None if before is None or paid is None else before + paid
                self._model = judge_prompts.plain(response.model)
                if self._model not in self._models:
                    self._models.append(self._model)
        return found

    def _read(self, response: ChatResponse) -> judge_prompts.Said:
        """Raises EngineError for none, and Malformed."""
        if response.error:
            raise EngineError(response.error)
        if response.finish_reason == "length":
            shown = judge_prompts.plain(response.text[:80])
            raise judge_prompts.Malformed(
                f"the judge's answer was cut off after {TOKENS} tokens, unfinished: {shown!r}"
            )
        return judge_prompts.read(response.text, self._top)

    def _count(self, **more: int) -> None:
        with self.lock:
            for name, number in more.items():
                self._counts[name] += number


REFUSED = "the server answered 400"
"""How the engine begins to say that a server takes a request for wrong."""
COUNTS = ("judged", "remembered", "canaries", "requests", "tokens_in", "tokens_out")


def engine_of(settings: Mapping[str, Any], endpoint: Mapping[str, Any]) -> Engine:
    """The engine of the model that settings name, behind this endpoint. Raises EngineError where there is none."""
    if not endpoint.get("base_url"):
        raise EngineError(f"the project has no endpoint {settings['endpoint']!r}")
    if problem := endpoint.get("problem"):
        raise EngineError(problem)
    price = endpoint["table"].price_of(settings["model"]) if "table" in endpoint else None
    spec = {
        "kind": "openai",
        "base_url": endpoint["base_url"],
        "api_key_env": endpoint.get("api_key_env") or None,
        "api_key": endpoint.get("api_key"),
        "model": settings["model"],
        "timeout_s": TIMEOUT_S,
        "concurrency": AT_ONCE,
    }
    return open_engine(spec if price is None else spec | price.options())
