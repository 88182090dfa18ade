"""Do answers come from the weights whose digest they bear? Clients stream calls of an agent through the gateway while
its versions are loaded, unloaded, promoted and let out to a part of the sessions; what each version's own weights say
is known before."""

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.db import connections
from django.test import Client
from django.utils import timezone

from flywheel.agents import artifacts
from flywheel.agents.models import Agent, Split, Version
from flywheel.core.envs.policy_rollouts import ChatRequest, Sampling
from flywheel.core.traces import Message
from tests.waiting import PATIENCE_S
from workers.engines.transformers_engine import TransformersEngine
from workers.reference import story
from workers.reference.build import POLICY

CLIENTS = 8
BETWEEN = 6
"""Answers between two moves."""
TOKENS = 12
QUESTIONS = 40
STRENGTH = 0.1
"""Of the adapters, with which the policy says other things, yet most often in words."""
STREAMED = {"temperature": 0, "max_tokens": TOKENS, "stream": True}
SYSTEM = {"role": "system", "content": story.SYSTEM_PROMPT}


@dataclass
class Heard:
    """What all clients heard."""

    answers: int = 0
    by: Counter[str] = field(default_factory=Counter)
    """Answers by digest."""
    by_arm: Counter[str] = field(default_factory=Counter)
    wrong: list[tuple[str, str, str]] = field(default_factory=list)
    """Digest, question and answer where the digest's weights say something else."""
    refused: Counter[str] = field(default_factory=Counter)
    """Calls that were refused and made again, by the reason."""


def calls_wanted(default: int) -> int:
    return int(os.environ.get("FLYWHEEL_TEST_CALLS", default))


def telling(versions: Sequence[Version]) -> dict[str, dict[str, str]]:
    """`{digest: {question: answer}}` of the versions' own weights, for questions that all of them answer in words of
    their own."""
    questions = [one.prompt for one in story.sessions(QUESTIONS, seed=5)]
    greedy, opening = Sampling(0.0, 1.0, TOKENS), Message("system", story.SYSTEM_PROMPT)
    asked = [ChatRequest((opening, Message("user", text)), greedy, seed) for seed, text in enumerate(questions)]
    said: dict[str, list[str | None]] = {}
    for one in versions:
        adapter = artifacts.local(one.adapter) if one.adapter else None
        answers = TransformersEngine(POLICY, adapter, device="cpu").chat(asked)
        plain = (None if answer.error or answer.tool_calls or "<" in answer.text else answer.text for answer in answers)
        said[one.digest] = list(plain)
    rows = zip(questions, *said.values(), strict=True)
    kept = [question for question, *texts in rows if None not in texts and len(set(texts)) == len(texts)]
    assert len(kept) >= 3, "the versions say the same to almost everything"
    return {
        digest: {question: text or "" for question, text in zip(questions, texts, strict=True) if question in kept}
        for digest, texts in said.items()
    }


def stream(
    heard: Heard, agent: Agent, headers: Mapping[str, str], expected: Mapping[str, Mapping[str, str]], calls: int
) -> None:
    """Have `CLIENTS` clients make so many calls; `heard.wrong` is empty where all is well."""
    lock = threading.Lock()
    questions = list(next(iter(expected.values())))

    def call(browser: Client, number: int, place: int) -> bool:
        question = questions[(number + place) % len(questions)]
        answer = browser.post(
            "/gateway/v1/chat/completions",
            {**STREAMED, "model": f"{agent.name}@live", "messages": [SYSTEM, {"role": "user", "content": question}]},
            content_type="application/json",
            headers={**headers, "x-flywheel-session-id": f"{number}-{place}", "x-flywheel-record": "no"},
        )
        content = b"".join(answer.streaming_content) if answer.streaming else answer.content  # type: ignore[attr-defined,unused-ignore]
        text, problem = _read(answer.status_code, content)
        with lock:
            if problem:
                heard.refused[problem] += 1
                return False
            digest = answer["X-Flywheel-Digest"]
            heard.answers += 1
            heard.by[digest] += 1
            heard.by_arm[answer.get("X-Flywheel-Arm", "")] += 1
            if expected[digest][question] != text:
                heard.wrong.append((digest, question, text))
            return True

    def client(number: int) -> None:
        browser = Client()
        try:
            for place in range(calls // CLIENTS):
                until = time.monotonic() + PATIENCE_S
                while not call(browser, number, place) and time.monotonic() < until:
                    time.sleep(0.05)
        finally:
            connections.close_all()

    Client().get("/healthz")  # which imports all pages, before several do at once
    _together(client)


def _together(client: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=client, args=[number], name=f"client {number}") for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _read(status: int, content: bytes) -> tuple[str, str]:
    """The words of a stream, or why it is not whole."""
    events = [line.removeprefix("data: ") for line in content.decode().split("\n") if line.startswith("data: ")]
    if status != 200 or not events or events[-1] != "[DONE]":
        return "", f"{status}: {content[-200:].decode(errors='replace')}"
    deltas = [choice["delta"] for event in events[:-1] for choice in json.loads(event)["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas), ""


class Moves(threading.Thread):
    """Lets versions of an agent out, takes them back, promotes and unloads them, one after the other, each after some
    more answers, until ended."""

    def __init__(
        self,
        heard: Heard,
        agent: Agent,
        versions: Sequence[Version],
        load: Callable[[Version], str],
        unload: Callable[[Version], Any],
    ) -> None:
        super().__init__(name="moves")
        self.heard, self.agent, self.versions, self.load, self.unload = heard, agent, versions, load, unload
        self.ended, self.done, self.problem = threading.Event(), Counter[str](), ""

    def __enter__(self) -> "Moves":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.join()

    def run(self) -> None:
        try:
            live = 0
            while not self.ended.is_set():
                candidate, idle = (self.versions[(live + more) % len(self.versions)] for more in (1, 2))
                split = self._ramp(candidate)
                self._rest(split)
                self.unload(idle)
                self.done["unloaded"] += 1
                self._rest(split)
                Split.objects.filter(pk=split.pk).update(share=0, closed_at=timezone.now())
                if self.done["ramped"] % 2:
                    served = self.load(candidate)
                    Agent.objects.filter(pk=self.agent.pk).update(live=candidate, served=served)
                    live += 1
                    self.done["promoted"] += 1
                else:
                    self.done["taken back"] += 1
                self._rest(None)
        except Exception as error:
            self.problem = repr(error)
            raise
        finally:
            connections.close_all()

    def _ramp(self, candidate: Version) -> Split:
        served = {str(candidate.pk): self.load(candidate)}
        agent = Agent.objects.get(pk=self.agent.pk)
        self.done["ramped"] += 1
        assert agent.live_id is not None
        return Split.objects.create(
            agent=agent,
            live_id=agent.live_id,
            candidate=candidate,
            share=5000,
            salt=str(self.done["ramped"]),
            served={**served, str(agent.live_id): agent.served},
            lease_until=timezone.now() + timedelta(seconds=30),
        )

    def _rest(self, split: Split | None) -> None:
        until = self.heard.answers + BETWEEN
        while self.heard.answers < until and not self.ended.wait(0.1):
            if split is not None:
                Split.objects.filter(pk=split.pk).update(lease_until=timezone.now() + timedelta(seconds=30))
