"""Evals on a real vLLM server: adapters come and go, are kept apart, and a killed run goes on."""

import json
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from django.db import connections
from django.test import Client
from safetensors.torch import load_file, save_file

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.agents import artifacts
from flywheel.agents.models import Agent, Version
from flywheel.agents.weights import lora_adapters
from flywheel.core.envs import Task
from flywheel.core.envs import build as build_env
from flywheel.core.envs.policy_rollouts import ChatRequest, Sampling
from flywheel.core.traces import Message
from flywheel.core.verifiers import judge_prompts
from flywheel.edge.jobs import State
from flywheel.edge.refusals import Refused
from flywheel.environments.versions import environment_versions
from flywheel.evals.models import Engine, EvalRun
from flywheel.evals.serving import loaded_adapters
from flywheel.promotions.live_version import make_first
from flywheel.system import env
from tests.conftest import Build
from tests.evals.fake import submit, work
from tests.pages import page_of
from tests.worker import Worker
from workers.engines.isolation import check_isolation
from workers.engines.process_engine import READER, ProcessEngine
from workers.engines.transformers_engine import TransformersEngine
from workers.engines.vllm_engine import VllmEngine
from workers.engines.vllm_sampler import Question, VllmSampler
from workers.jobs import eval_runs
from workers.judging import attempt_verdicts, project_judges
from workers.judging import llm_judge as asking
from workers.reference import story
from workers.reference.build import POLICY

pytestmark = pytest.mark.django_db(transaction=True)

Make = Callable[..., Version]
GREEDY = Sampling(temperature=0.0, max_tokens=32)


def requests(count: int) -> list[ChatRequest]:
    asked = story.sessions(count, seed=5)[:count]
    return [
        ChatRequest(
            (Message("system", story.SYSTEM_PROMPT), Message("user", one.prompt)), GREEDY, seed, tuple(story.TOOLS)
        )
        for seed, one in enumerate(asked)
    ]


def engine(server: str, model: str, again: Callable[[], object] = lambda: None) -> VllmEngine:
    """As evals ask: the answers are read by the base's chat template."""
    return VllmEngine(server, model, again=again, reader=ProcessEngine({"kind": READER, "path": str(POLICY)}))


def names() -> list[str]:
    return loaded_adapters._models(env.vllm_url())[1]


def _empty() -> None:
    """Take from the server what other tests had it load: in a full one the first of three would make room."""
    for name in names():
        loaded_adapters._call(env.vllm_url(), "POST", "/v1/unload_lora_adapter", {"lora_name": name})


def test_adapters_are_loaded_answer_as_in_the_worker_and_make_room(
    server: str, version: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    _empty()
    plain, first, second = version(), version(1), version(2)
    asked = requests(6)
    said = {}
    for one in (plain, first, second):
        name = loaded_adapters.load(one)
        assert loaded_adapters.load(one) == name
        said[name] = [answer.text for answer in engine(server, name).chat(asked)]
        adapter = artifacts.local(one.adapter) if one.adapter else None
        here = TransformersEngine(POLICY, adapter, device="cpu").chat(asked)
        assert said[name] == [answer.text for answer in here]
    assert len({tuple(texts) for texts in said.values()}) == 3
    assert {loaded_adapters.name_of(one) for one in (plain, first, second)} <= set(names())

    monkeypatch.setattr(loaded_adapters, "LOADED", len(names()))
    third = loaded_adapters.load(version(3))
    assert third in names()
    assert len(names()) == loaded_adapters.LOADED


def test_the_self_test_passes_with_the_identity_adapter(server: str, version: Make) -> None:
    """And with more versions than a batch takes adapters."""
    one, others = version(1), [version(2), version(3), version(4)]
    for beside in ([], others):
        arms, probes = loaded_adapters.load_arms(one, beside)
        kept_apart = check_isolation(engine(server, "-"), arms, probes, requests(3), loaded_adapters.SLOTS)
        assert kept_apart["passed"], kept_apart
        assert arms[2:] == [loaded_adapters.name_of(other) for other in beside]
        assert len(arms) + len(probes) >= loaded_adapters.SLOTS


@pytest.mark.worker
def test_a_killed_workers_run_goes_on_and_makes_no_attempt_twice(
    worker: Worker, start_worker: Any, build: Build, version: Make, sign_in: Callable[[User], Client]
) -> None:
    task_set, other = build.task_set(held_out=40), version(2)
    EvalRun.objects.filter(pk=submit(build, task_set, other, engine=Engine.VLLM).pk).update(state=State.SUCCEEDED)
    run = submit(build, task_set, version(1), samples=5, engine=Engine.VLLM)

    def has_some() -> bool:
        run.refresh_from_db()
        return run.done >= eval_runs.CHUNK

    worker.wait_until(has_some, "a first chunk is stored")
    worker.kill9()
    run.refresh_from_db()
    assert run.state == State.RUNNING
    kept = dict(run.results.values_list("pk", "trajectory"))
    assert 0 < len(kept) < 200
    start_worker().finish(run)
    assert run.state == State.SUCCEEDED, run.error
    assert run.attempt >= 2
    assert set(Counter(run.results.values_list("task_id", "sample")).values()) == {1}
    assert run.results.count() == 200
    assert set(kept.items()) <= set(run.results.values_list("pk", "trajectory"))
    assert not run.results.filter(score=None).exists()
    assert run.isolation["passed"]
    page = page_of(sign_in(build.cast.viewer).get(f"/p/acme/evals/{run.pk}/"))
    assert "Adapter isolation" in page
    assert loaded_adapters.name_of(run.version) in page
    assert loaded_adapters.name_of(other) in page


def test_a_server_that_forgot_the_adapter_gets_it_again(server: str, version: Make) -> None:
    one = version(4)
    name = loaded_adapters.load(one)
    loaded_adapters._call(env.vllm_url(), "POST", "/v1/unload_lora_adapter", {"lora_name": name})
    assert name not in names()

    def load() -> None:
        loaded_adapters.load(one)
        connections.close_all()

    (answer,) = engine(server, name, load).chat(requests(1))
    assert answer.text
    assert name in names()


def test_what_cannot_be_served_is_refused_with_its_reason(build: Build, version: Make, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"DoRA .*use_dora"):
        submit(build, build.task_set(), version(5, use_dora=True), engine=Engine.VLLM)

    tuned = tmp_path / "tuned"
    tuned.mkdir()
    for path in POLICY.iterdir():
        (tuned / path.name).write_bytes(path.read_bytes())
    tensors = load_file(POLICY / "model.safetensors")
    save_file({name: tensor * 1.001 for name, tensor in tensors.items()}, tuned / "model.safetensors")
    full = build.version(weights=artifacts.store(tuned, "model"))
    run = submit(build, build.task_set(), full, engine=Engine.VLLM)
    work(run)
    assert (run.state, run.error_kind) == (State.FAILED, "vllm")
    assert f"those of a full fine-tune, are a base of their own: serve them (make serve VERSION={full})" in run.error

    too_large = build.version(
        weights=artifacts.store(POLICY, "model"), adapter=artifacts.store(_of_rank(tmp_path / "wide", 96), "adapter")
    )
    run = submit(build, build.task_set(), too_large, engine=Engine.VLLM)
    work(run)
    assert run.state == State.FAILED
    assert "rank" in run.error


def _of_rank(place: Path, rank: int) -> Path:
    place.mkdir()
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 1, "bias": "none", "target_modules": ["q_proj"]}
    (place / "adapter_config.json").write_text(json.dumps(config))
    layers = [f"base_model.model.model.layers.{number}.self_attn.q_proj" for number in range(3)]
    a = {f"{layer}.lora_A.weight": torch.zeros(rank, 128) for layer in layers}
    save_file(
        a | {f"{layer}.lora_B.weight": torch.zeros(128, rank) for layer in layers}, place / "adapter_model.safetensors"
    )
    return place


def test_a_version_that_goes_live_is_loaded_first_and_the_gateway_answers_with_it(
    build: Build, version: Make, key: Callable[..., dict[str, str]], client: Client
) -> None:
    one = version(6)
    assert loaded_adapters.name_of(one) not in names()
    make_first(agent=one.agent, version=one, actor=Actor(build.cast.approver), reason="test")
    agent = Agent.objects.get(pk=one.agent_id)
    assert agent.served == loaded_adapters.name_of(one)
    assert agent.served in names()
    answer = client.post(
        "/gateway/v1/chat/completions",
        {"model": f"{agent.name}@live", "messages": [{"role": "user", "content": "Meet Bako on friday"}]},
        content_type="application/json",
        headers=key("gateway"),
    )
    assert answer.status_code == 200, answer.content
    assert json.loads(b"".join(answer) if answer.streaming else answer.content)["model"] == agent.served


def test_a_judge_on_it_answers_by_the_schema_or_has_no_score_and_a_canary_that_gets_a_mark_voids_the_run(
    server: str, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference policy is as bad a judge as there is: it gives 0 to all, as long as the schema has a 0."""
    plain = loaded_adapters.base_name(artifacts.digest_of(POLICY))
    ours = {"type": "judge", "name": "right", "criteria": "It books it.", "endpoint": "vllm", "model": plain}
    spec = {"kind": "rubric", "parts": [ours]}
    asked = project_judges.judge_of(build.cast.project, spec)
    env = build_env("tool_call", {"tools": story.TOOLS}, spec, replace(attempt_verdicts.RUNNERS, judge=asked))
    task = Task("t", "Meet Bako on friday", {"tool": "calendar.create_event", "arguments": {}})
    (verdict,) = attempt_verdicts.verdicts(
        env, [(task, [Message("user", task.prompt), Message("assistant", "It is done.")])]
    )
    report = asked.report["right"]
    assert (verdict.score, report["canaries"], report["judged"], report["void"]) == (0.0, 10, 1, ""), asked.problem
    assert (report["models"], report["requests"]) == ([plain], 11), "no answer was asked for twice"

    with monkeypatch.context() as patched:
        patched.setattr(asking, "TOKENS", 4)
        cut = project_judges.judge_of(build.cast.project, spec)
        env = build_env("tool_call", {"tools": story.TOOLS}, spec, replace(attempt_verdicts.RUNNERS, judge=cut))
        (verdict,) = attempt_verdicts.verdicts(
            env, [(task, [Message("user", task.prompt), Message("assistant", "Done.")])]
        )
    assert (verdict.score, verdict.cause, cut.report["right"]["requests"]) == (None, "malformed", 10)
    assert "cut off after 4 tokens" in verdict.reason

    scale = {**ours, "top": 3, "anchors": "0 = no\n3 = yes"}
    config = {"tools": story.TOOLS}
    environment_versions.environment_version(
        environment=build.environment(),
        actor=Actor(build.cast.builder),
        config=config,
        verifier={"kind": "rubric", "parts": [scale]},
    )
    run = submit(build, build.task_set())
    asked_for = judge_prompts.schema(top=3)
    asked_for["properties"]["mark"] = {"enum": [3]}
    with monkeypatch.context() as patched:
        patched.setattr(judge_prompts, "schema", lambda *_, **__: asked_for)
        work(run)
    run = EvalRun.objects.get(pk=run.pk)
    assert (run.state, run.error_kind) == (State.FAILED, "canary"), run.error
    assert "gave 3 of 3 to a canary that must get 0" in run.error
    assert run.judges["right"]["void"] in run.error
    assert not run.results.exclude(score=None).exists()


def test_without_the_identity_adapter_it_fails_where_rows_are_mixed_up_and_nothing_is_asked(
    build: Build, version: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bare base in its place, as a naive runner would ask it."""
    if torch.cuda.is_available():
        pytest.skip("only the CPU build mixes rows up")
    plain = version()
    assert plain.weights is not None
    bare = loaded_adapters.base_name(plain.weights.digest)
    probes = [f"probe{number}-{plain.weights.digest[:8]}" for number in range(loaded_adapters.SLOTS)]
    loaded_adapters._ensure(env.vllm_url(), dict.fromkeys(probes, lora_adapters.probe(plain.weights)))
    monkeypatch.setattr(loaded_adapters, "load_arms", lambda *_: ([bare], probes))
    run = submit(build, build.task_set(), plain, engine=Engine.VLLM)
    work(run)
    run = EvalRun.objects.get(pk=run.pk)
    assert (run.state, run.error_kind, run.done) == (State.FAILED, "isolation", 0)
    assert "the server mixes adapters up" in run.error
    # One of them may differ in a token that is not text, such as the end.
    assert any(each["alone"] != each["among_others"] for each in run.isolation["evidence"])
    assert not run.results.exists()


def test_more_prompts_with_seeds_than_a_batch_has_room_for_are_answered(server: str, version: Make) -> None:
    """vLLM's CPU build dies where it reads a prompt with a seed in two steps."""
    name = loaded_adapters.load(version())
    with closing(VllmSampler(server)) as sampler:
        (room,) = [row["max_model_len"] for row in sampler.models() if not row["parent"]]
        asked = [
            Question([5 + number] * (room // 4), Sampling(temperature=1.0, top_p=1.0, max_tokens=4), number)
            for number in range(6)
        ]
        said = sampler.sample(name, asked)
        assert all(each.tokens for each in said)
        assert sampler.sample(name, asked[:1]) == said[:1], "and the server lives"
