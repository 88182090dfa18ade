"""Every answer of a real vLLM server bears the digest of the weights that gave it, while adapters come and go; and a
ramp's self-test tells the right adapter from another (vllm-project/vllm #47724, #42125 are the reason)."""

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from flywheel.agents import artifacts
from flywheel.agents.models import Agent, Split, Version
from flywheel.evals.serving import loaded_adapters
from flywheel.evals.serving.loaded_adapters import ServerError
from flywheel.promotions.models import Ramp, SelfTest
from flywheel.promotions.ramps import self_tests
from flywheel.system import env
from flywheel.trajectories.ingest.gateway import routing
from tests.conftest import Build
from tests.serving.conftest import make_adapter
from tests.serving.right_weights import STRENGTH, Heard, Moves, calls_wanted, stream, telling
from tests.serving.test_vllm import _empty
from tests.workers.policies.test_ramp_self_tests import released
from workers.policies import ramp_self_tests
from workers.reference.build import POLICY

pytestmark = pytest.mark.django_db(transaction=True)
BARE = {"system_prompt": "", "tools": []}


@pytest.fixture
def versions(build: Build, tmp_path: Path) -> list[Version]:
    agent, weights = build.agent(), artifacts.store(POLICY, "model")
    adapters = [
        artifacts.store(make_adapter(tmp_path / str(seed), seed, strength=STRENGTH), "adapter") for seed in (11, 12, 13)
    ]
    return [build.version(agent, weights=weights, adapter=adapter, **BARE) for adapter in adapters]


def test_each_answer_is_of_the_weights_whose_digest_it_bears(
    versions: list[Version],
    key: Callable[..., dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _empty()
    monkeypatch.setattr(routing, "_known", type(routing._known)())
    monkeypatch.setattr(routing, "FRESH_S", 0.0)
    monkeypatch.setattr(routing, "TRUSTED_S", 0.2)
    agent = versions[0].agent
    Agent.objects.filter(pk=agent.pk).update(live=versions[0], served=loaded_adapters.load(versions[0]))

    def unload(version: Version) -> None:
        with contextlib.suppress(ServerError):  # it may never have been loaded
            loaded_adapters._call(
                env.vllm_url(), "POST", "/v1/unload_lora_adapter", {"lora_name": loaded_adapters.name_of(version)}
            )

    expected = telling(versions)
    heard = Heard()
    with Moves(heard, agent, versions, loaded_adapters.load, unload) as moves:
        stream(heard, agent, key("gateway"), expected, calls_wanted(2000))
    with capsys.disabled():
        print(json.dumps({"by": heard.by, "arms": heard.by_arm, "moves": moves.done, "refused": heard.refused}))
    assert not moves.problem
    assert not heard.wrong, heard.wrong[:3]
    assert heard.answers == calls_wanted(2000), heard.refused
    assert len(heard.by) == len(versions)
    assert heard.by_arm["candidate"]


def test_a_ramps_self_test_passes_on_it_and_sees_another_adapter_under_the_name(
    build: Build, versions: list[Version], tmp_path: Path
) -> None:
    _empty()
    ramp = released(build, versions[0], versions[1])
    Ramp.objects.filter(pk=ramp.pk).update(test_wanted_at=ramp.created_at)
    ramp_self_tests.make(self_tests.due())
    test = SelfTest.objects.get()
    assert test.verdict == "passed", test.arms
    assert "the server keeps adapters apart in" in test.words

    name = Split.objects.get(pk=ramp.split_id).served[str(versions[1].pk)]
    other = tmp_path / "other"
    assert versions[2].adapter is not None
    shutil.copytree(artifacts.local(versions[2].adapter), other)
    loaded_adapters._call(env.vllm_url(), "POST", "/v1/unload_lora_adapter", {"lora_name": name})
    loaded_adapters._call(env.vllm_url(), "POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(other)})
    SelfTest.objects.all().delete()
    ramp_self_tests.make(self_tests.due())
    test = SelfTest.objects.get()
    assert test.verdict == "failed"
    assert "answers of its server are not those of its own weights" in test.words
    assert Ramp.objects.get(pk=ramp.pk).state == "holding"
