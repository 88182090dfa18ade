"""Two vLLM servers with a base each, kept as the supervisor keeps them: each version is answered by the weights that it
has, and a server that is killed comes back."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from django.test import Client
from safetensors.torch import load_file, save_file

from flywheel.accounts.actors import Actor
from flywheel.agents import artifacts
from flywheel.agents.models import Agent, ChosenBase, Version
from flywheel.agents.weights import chosen_bases
from flywheel.core import recipes
from flywheel.core.envs.policy_rollouts import ChatRequest, Sampling
from flywheel.core.traces import Message
from flywheel.evals.serving import loaded_adapters
from tests import waiting
from tests.benching.processes import tree
from tests.conftest import Build
from tests.serving.conftest import START_S, make_adapter
from tests.serving.right_weights import QUESTIONS, STRENGTH
from tests.waiting import wait_for
from tests.worker import database_url
from workers.engines.transformers_engine import TransformersEngine
from workers.reference import story
from workers.reference.build import POLICY

pytestmark = pytest.mark.django_db(transaction=True)
TOKENS = 12
Keepers = list[subprocess.Popen[bytes]]


@pytest.fixture
def server() -> str:
    """Of the first of two places; nobody starts one for all tests of this module."""
    if recipes.lacking(recipes.COLOCATE):
        pytest.skip("vLLM is not installed here, and could not be")
    return "http://127.0.0.1:8131"


@pytest.fixture
def keepers(server: str, monkeypatch: pytest.MonkeyPatch, settings: Any) -> Iterator[Keepers]:
    """One for each place, told of GPUs that the CPU build does not look for."""
    monkeypatch.setattr(waiting, "PATIENCE_S", START_S)
    for name, value in {"FLYWHEEL_SERVE": "vllm", "FLYWHEEL_SERVE_GPUS": "0,1", "FLYWHEEL_VLLM_URL": server}.items():
        monkeypatch.setenv(name, value)
    told = {**os.environ, "FLYWHEEL_HOME": str(settings.HOME), "DATABASE_URL": database_url()}
    with ExitStack() as stack:
        yield [stack.enter_context(_keeper(place, told)) for place in range(2)]


@contextmanager
def _keeper(place: int, told: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    words = [sys.executable, "-m", "workers.policies.vllm_keeper", str(place)]
    keeper = subprocess.Popen(words, cwd=recipes.SERVE.parent, env=told, stdin=subprocess.DEVNULL)
    try:
        yield keeper
    finally:
        of_it = tree(keeper.pid)
        keeper.terminate()
        keeper.wait(60)
        wait_for(lambda: not any(_words(pid) for pid in of_it), "nothing of it is left")


def _words(pid: int) -> str:
    """The process's command; empty where it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def of_base(build: Build, agent: str, base: Path, adapter: Path) -> Version:
    weights, made = artifacts.store(base, "model"), artifacts.store(adapter, "adapter")
    return build.version(build.agent(agent), weights=weights, adapter=made, system_prompt="", tools=[])


def tuned(place: Path) -> Path:
    """Another base: the policy with all its projections a little off, as after a full fine-tune."""
    copytree(POLICY, place)
    tensors = load_file(place / "model.safetensors")
    save_file({name: tensor * 1.2 for name, tensor in tensors.items()}, place / "model.safetensors", {"format": "pt"})
    return place


def own_words(version: Version, questions: Sequence[str]) -> list[str]:
    """What the version's own weights say."""
    assert version.weights is not None
    assert version.adapter is not None
    engine = TransformersEngine(artifacts.local(version.weights), artifacts.local(version.adapter), device="cpu")
    opening, greedy = Message("system", story.SYSTEM_PROMPT), Sampling(0.0, 1.0, TOKENS)
    asked = [ChatRequest((opening, Message("user", text)), greedy, 0) for text in questions]
    return [answer.text or "" for answer in engine.chat(asked)]


def said(version: Version, question: str, headers: dict[str, str]) -> str:
    """What the gateway answers for the agent that the version is live of."""
    told = [{"role": "system", "content": story.SYSTEM_PROMPT}, {"role": "user", "content": question}]
    body = {"model": f"{version.agent.name}@live", "messages": told, "temperature": 0, "max_tokens": TOKENS}
    answer = Client().post("/gateway/v1/chat/completions", body, content_type="application/json", headers=headers)
    content = b"".join(answer.streaming_content)  # type: ignore[attr-defined]
    assert answer.status_code == 200, content
    assert answer["X-Flywheel-Digest"] == version.digest
    return str(json.loads(content)["choices"][0]["message"]["content"])


def wait_until_ready(keepers: Keepers) -> None:
    def are_ready() -> bool:
        assert all(keeper.poll() is None for keeper in keepers)
        return ChosenBase.objects.filter(state="ready", failures=0).count() == 2

    def told() -> str:
        return str(list(ChosenBase.objects.values("place", "state", "problem")))

    wait_for(are_ready, "both servers are ready", told)


def test_each_of_two_servers_answers_for_its_base_and_one_that_is_killed_comes_back(
    build: Build, keepers: Keepers, tmp_path: Path, key: Callable[..., dict[str, str]]
) -> None:
    one = of_base(build, "desk", POLICY, make_adapter(tmp_path / "one", 21, strength=STRENGTH))
    other = of_base(build, "shop", tuned(tmp_path / "tuned"), make_adapter(tmp_path / "other", 22, strength=STRENGTH))
    questions = [session.prompt for session in story.sessions(QUESTIONS, seed=5)]
    rows = zip(questions, own_words(one, questions), own_words(other, questions), strict=True)
    question, *words = next(row for row in rows if row[1] != row[2] and "<" not in row[1] + row[2])
    expected = dict(zip((one, other), words, strict=True))
    for place, version in enumerate((one, other)):
        chosen_bases.choose(version=version, actor=Actor(build.cast.admin), place=place)
    wait_until_ready(keepers)
    for version in (one, other):
        Agent.objects.filter(pk=version.agent_id).update(live=version, served=loaded_adapters.load(version))
    headers = key("gateway")
    assert {version: said(version, question, headers) for version in (one, other)} == expected

    [vllm] = [pid for pid in tree(keepers[1].pid) if "vllm.entrypoints" in _words(pid)]
    os.kill(vllm, signal.SIGKILL)
    wait_for(lambda: ChosenBase.objects.get(place=1).state == "down", "its keeper sees it")
    assert "ended" in ChosenBase.objects.get(place=1).problem
    assert said(one, question, headers) == expected[one], "the other server answers on"
    wait_until_ready(keepers)
    loaded_adapters.load(other)
    assert said(other, question, headers) == expected[other]
